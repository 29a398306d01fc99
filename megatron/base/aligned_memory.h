// Memory of large arrays, in pages of 2 MiB where the system has them: with pages of 4 KiB, reading
// a matrix by columns costs a walk through the page tables for each element.
#ifndef MEGATRON_BASE_ALIGNED_MEMORY_H_
#define MEGATRON_BASE_ALIGNED_MEMORY_H_

#include <cstdint>

namespace megatron {

// Returns a block of `bytes` bytes whose address is a multiple of `alignment`, a power of two, or
// null if there is no memory. std::free gives it back. A block of 2 MiB or more begins at a
// multiple of 2 MiB, and the system is asked for large pages.
void* AllocateAligned(int64_t bytes, int64_t alignment);

}  // namespace megatron

#endif  // MEGATRON_BASE_ALIGNED_MEMORY_H_
