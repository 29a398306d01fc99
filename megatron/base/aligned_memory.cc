#include "megatron/base/aligned_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

namespace megatron {
namespace {

constexpr int64_t kLargePage = int64_t{2} << 20;

}  // namespace

void* AllocateAligned(int64_t bytes, int64_t alignment) {
  void* data = nullptr;
  const bool large = bytes >= kLargePage;
  if (large) alignment = std::max(alignment, kLargePage);
  if (posix_memalign(&data, alignment, bytes) != 0) return nullptr;
  // A system without large pages refuses, and the block stays as it is.
  if (large) static_cast<void>(madvise(data, bytes, MADV_HUGEPAGE));
  return data;
}

}  // namespace megatron
