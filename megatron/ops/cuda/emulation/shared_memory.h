// A block's shared memory: what each of its variables has, with space between them that
// AddressSanitizer guards.
#ifndef MEGATRON_OPS_CUDA_EMULATION_SHARED_MEMORY_H_
#define MEGATRON_OPS_CUDA_EMULATION_SHARED_MEMORY_H_

#include <cstddef>
#include <memory>
#include <vector>

namespace megatron::emulation {

// Threads: one at a time. Reads and writes nothing that ThreadSanitizer sees.
class SharedMemory {
 public:
  SharedMemory();

  // Another kernel: there are no variables. Those that it will have take at most `limit` bytes.
  void Clear(size_t limit);
  // Another block: all variables hold bytes of ones.
  void Refill();
  // The variable's memory, the same from call to call, at an address that is divisible by
  // `alignment` and not by twice as much: what a kernel assumes beyond what it has asked for fails.
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
  size_t used_ = 0, limit_ = 0;  // of variables alone
  std::vector<Variable> variables_;
};

}  // namespace megatron::emulation

#endif  // MEGATRON_OPS_CUDA_EMULATION_SHARED_MEMORY_H_
