// This file is compiled without ThreadSanitizer's instrumentation, like block.cc. It allocates
// nothing: the threads that allocate and free would not be ordered.
#include "megatron/ops/cuda/emulation/tensor_core.h"

#include <array>

namespace megatron::emulation {
namespace {

constexpr size_t kMostThreads = 1024;
constexpr size_t kMostCopies = 128;  // pending copies of a thread

// The pending copies of a thread, in the order in which they were issued.
struct Copies {
  std::array<AsyncCopy, kMostCopies> ring;
  std::array<int64_t, kMostCopies> group;
  size_t taken = 0, asked = 0;  // so far
  int64_t committed = 0;        // groups
};

// The copies of the running block; blocks run one after the other.
struct CopiesOfBlock {
  std::array<Copies, kMostThreads> of_thread;
  bool at_end_is_asked_for = false;
};

CopiesOfBlock& OfBlock() {
  static CopiesOfBlock& block = *new CopiesOfBlock;
  return block;
}

Copies& OfThread() { return OfBlock().of_thread[threadIdx.x]; }

void CheckAtEnd() {
  for (const Copies& copies : OfBlock().of_thread)
    CHECK_EQ(copies.taken, copies.asked) << "a block ended while its copies were to come";
  OfBlock().at_end_is_asked_for = false;
}

}  // namespace

void AddCopy(const AsyncCopy& copy) {
  CHECK_EQ(reinterpret_cast<uintptr_t>(copy.shared) % kAsyncCopyBytes, 0u);
  CHECK_EQ(reinterpret_cast<uintptr_t>(copy.global) % kAsyncCopyBytes, 0u);
  if (!OfBlock().at_end_is_asked_for) AtBlockEnd(CheckAtEnd);
  OfBlock().at_end_is_asked_for = true;
  Copies& copies = OfThread();
  CHECK_LT(copies.asked - copies.taken, kMostCopies) << "more copies at once than are emulated";
  copies.ring[copies.asked % kMostCopies] = copy;
  copies.group[copies.asked % kMostCopies] = copies.committed;
  ++copies.asked;
}

void CommitCopies() { ++OfThread().committed; }

bool TakeCopy(int64_t pending, AsyncCopy* copy) {
  Copies& copies = OfThread();
  if (copies.taken == copies.asked) return false;
  const size_t next = copies.taken % kMostCopies;
  if (copies.group[next] + pending >= copies.committed) return false;
  *copy = copies.ring[next];
  ++copies.taken;
  return true;
}

}  // namespace megatron::emulation
