// A block's shared memory: the memory of each variable, with guards between them for
// AddressSanitizer.
#ifndef MEGATRON_OPS_CUDA_EMULATION_SHARED_MEMORY_H_
#define MEGATRON_OPS_CUDA_EMULATION_SHARED_MEMORY_H_

#include <cstddef>
#include <memory>
#include <vector>

namespace megatron::emulation {

// Threads: one at a time. ThreadSanitizer does not see its accesses.
class SharedMemory {
 public:
  SharedMemory();

  // Starts another kernel, which has no variables yet. Its variables will take at most `limit`
  // bytes.
  void Clear(size_t limit);
  // Starts another block: all bytes of the variables are ones.
  void Refill();
  // Returns the variable's memory, the same in each call. Its address is divisible by `alignment`
  // and not by twice as much, so a kernel that assumes more than it has asked for fails.
  void* Of(const void* key, size_t bytes, size_t alignment);

 private:
  struct Variable {
    const void* key;
    char* begin;
    size_t bytes;
  };
  static void Fill(const Variable& variable);

  std::unique_ptr<char[]> memory_;
  char* free_ = nullptr;
  size_t used_ = 0, limit_ = 0;  // bytes of variables only
  std::vector<Variable> variables_;
};

}  // namespace megatron::emulation

#endif  // MEGATRON_OPS_CUDA_EMULATION_SHARED_MEMORY_H_
