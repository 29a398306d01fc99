// Where every thread of this process is, for reports of what went wrong: each thread is asked by a
// signal to walk its own stack.
//
// Functions have names if the program called absl::InitializeSymbolizer, else addresses.
#ifndef MEGATRON_BASE_THREAD_STACKS_H_
#define MEGATRON_BASE_THREAD_STACKS_H_

#include <string>
#include <vector>

#include "absl/time/time.h"

namespace megatron {

struct ThreadStack {
  int id = 0;                       // the system's
  std::string name;                 // the system's, "pretrain_gpt"
  std::vector<std::string> frames;  // innermost first; empty: it did not answer
};

// Of all threads, the calling one among them, in the order of their ids. A thread that does not
// answer within `patience`, because it is stopped, has no frames. Any thread may call; calls wait
// for each other.
std::vector<ThreadStack> AllThreadStacks(absl::Duration patience);

}  // namespace megatron

#endif  // MEGATRON_BASE_THREAD_STACKS_H_
