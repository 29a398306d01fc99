// Counts the bytes of device memory that kernels access. The kernels of a binary that uses this are
// compiled with ThreadSanitizer's instrumentation, and linked with this library in place of its
// runtime.
#ifndef MEGATRON_OPS_CUDA_EMULATION_ACCESSES_H_
#define MEGATRON_OPS_CUDA_EMULATION_ACCESSES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "megatron/ops/cuda/emulation/block.h"

namespace megatron::emulation {

struct AccessedBytes {
  int64_t read = 0, written = 0;
};

// Counts from its construction to its destruction; one at a time. A byte counts once as read, if a
// launch reads what it did not write before, and once as written, however often the launch accesses
// it.
class AccessCounter : public LaunchObserver {
 public:
  // Called after each launch with what it accessed, by the names under which memory was taken.
  using Callback = std::function<void(const std::map<std::string, AccessedBytes>& by_memory)>;

  explicit AccessCounter(Callback on_launch);
  ~AccessCounter() override;
  AccessCounter(const AccessCounter&) = delete;
  AccessCounter& operator=(const AccessCounter&) = delete;

  void Begin() override;
  void End() override;

 private:
  const Callback on_launch_;
};

}  // namespace megatron::emulation

#endif  // MEGATRON_OPS_CUDA_EMULATION_ACCESSES_H_
