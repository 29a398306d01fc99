#include "megatron/ops/cuda/emulation/shared_memory.h"

#include <algorithm>
#include <cstdint>

#include "glog/logging.h"
#include "megatron/ops/cuda/emulation/sanitizers.h"

namespace megatron::emulation {
namespace {

constexpr size_t kGuardBytes = 256;
// Size of the memory, including guards and gaps of alignment.
constexpr size_t kMemoryBytes = size_t{320} << 10;

}  // namespace

SharedMemory::SharedMemory() : memory_(new char[kMemoryBytes]) {
  variables_.reserve(16);  // here and not by a fiber, since another fiber frees it
  Clear(0);
}

void SharedMemory::Clear(size_t limit) {
  variables_.clear();
  limit_ = limit;
  used_ = 0;
  free_ = memory_.get();
  Forbid(memory_.get(), kMemoryBytes);
}

void SharedMemory::Refill() {
  for (const Variable& variable : variables_) Fill(variable);
}

// The pointer is volatile, so that the loop does not become a memset, which ThreadSanitizer would
// attribute to the host.
void SharedMemory::Fill(const Variable& variable) {
  auto* const words = reinterpret_cast<volatile uint64_t*>(variable.begin);
  const size_t count = variable.bytes / sizeof(uint64_t);
  for (size_t i = 0; i < count; ++i) words[i] = ~uint64_t{0};
  volatile char* const begin = variable.begin;
  for (size_t i = count * sizeof(uint64_t); i < variable.bytes; ++i) begin[i] = -1;
}

void* SharedMemory::Of(const void* key, size_t bytes, size_t alignment) {
  for (const Variable& variable : variables_) {
    if (variable.key == key) return variable.begin;
  }
  alignment = std::max(alignment, sizeof(uint64_t));
  used_ += bytes;
  CHECK_LE(used_, limit_) << "bytes of shared memory, static and dynamic";
  auto address = reinterpret_cast<uintptr_t>(free_) + kGuardBytes;
  address = (address + 2 * alignment - 1) / (2 * alignment) * (2 * alignment) + alignment;
  const Variable variable = {key, reinterpret_cast<char*>(address), bytes};
  free_ = variable.begin + bytes;
  CHECK_LE(free_ + kGuardBytes, memory_.get() + kMemoryBytes) << "guards take too much";
  Permit(variable.begin, bytes);
  Fill(variable);
  variables_.push_back(variable);
  return variable.begin;
}

}  // namespace megatron::emulation
