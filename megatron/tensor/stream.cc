#include "megatron/tensor/stream.h"

#include "megatron/base/thread_pool.h"

namespace megatron {

// A pool of one has no threads of its own and no state that a loop changes, so that threads can
// share it. It is never destroyed: streams may be used until the process ends.
Stream Stream::Inline() {
  static ThreadPool* const caller = new ThreadPool(1);
  return Cpu(caller);
}

}  // namespace megatron
