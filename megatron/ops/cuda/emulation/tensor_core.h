// The instructions of ../tensor_core.cuh on the CPU: the values of each lane before and after, as
// the PTX ISA defines them.
#ifndef MEGATRON_OPS_CUDA_EMULATION_TENSOR_CORE_H_
#define MEGATRON_OPS_CUDA_EMULATION_TENSOR_CORE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "glog/logging.h"
#include "megatron/ops/cuda/emulation/block.h"

namespace megatron::emulation {

inline void CheckRowOfMatrix(const void* row) {
  CHECK_EQ(reinterpret_cast<uintptr_t>(row) % 16, 0u) << "a row of a matrix";
}

inline void LoadMatrices(const void* row, uint32_t (&r)[4]) {
  CheckRowOfMatrix(row);
  const WarpRegisters rows(row, /*whole_warp=*/true);
  const int g = Lane() / 4, t = Lane() % 4;
  for (int i = 0; i < 4; ++i) {
    const auto* const address = static_cast<const char*>(rows.Of<const void*>(8 * i + g));
    std::memcpy(&r[i], address + 4 * t, sizeof(r[i]));
  }
}

inline void LoadMatricesTransposed(const void* row, uint32_t (&r)[4]) {
  CheckRowOfMatrix(row);
  const WarpRegisters rows(row, /*whole_warp=*/true);
  const int g = Lane() / 4, t = Lane() % 4;
  for (int i = 0; i < 4; ++i) {
    uint16_t pair[2];
    for (int j = 0; j < 2; ++j) {
      const auto* const address = static_cast<const char*>(rows.Of<const void*>(8 * i + 2 * t + j));
      std::memcpy(&pair[j], address + 2 * g, sizeof(pair[j]));
    }
    std::memcpy(&r[i], pair, sizeof(r[i]));
  }
}

// "cp.async" of 16 bytes, delivered as late as possible: the destination is poisoned when the copy
// is issued, and the bytes arrive when its thread waits for them. Both are accesses of that thread.
struct AsyncCopy {
  void* shared = nullptr;
  const void* global = nullptr;
  bool there = false;  // if false, zeros are copied
};
constexpr size_t kAsyncCopyBytes = 16;

// Asynchronous copies of the running thread.
void AddCopy(const AsyncCopy& copy);
void CommitCopies();
// Returns the next copy to deliver if more than `pending` groups are incomplete; returns false if
// there is none.
bool TakeCopy(int64_t pending, AsyncCopy* copy);

// Copies word by word: ThreadSanitizer sees these accesses, but not every memcpy that becomes
// instructions.
inline void PutLine(void* shared, const uint64_t (&words)[2]) {
  for (int i = 0; i < 2; ++i)
    std::memcpy(static_cast<char*>(shared) + 8 * i, &words[i], sizeof(words[i]));
}

inline void CopyAsync(void* shared, const void* global, bool there) {
  AddCopy({shared, global, there});
  PutLine(shared, {~uint64_t{0}, ~uint64_t{0}});  // NaN
}

inline void WaitForCopies(int64_t pending) {
  AsyncCopy copy;
  while (TakeCopy(pending, &copy)) {
    uint64_t words[2] = {};
    for (int i = 0; copy.there && i < 2; ++i)
      std::memcpy(&words[i], static_cast<const char*>(copy.global) + 8 * i, sizeof(words[i]));
    PutLine(copy.shared, words);
  }
}

// to_float converts an operand's element.
template <typename ToFloat>
void MultiplyAdd(const uint32_t (&a)[4], uint32_t b0, uint32_t b1, float (&c)[4],
                 ToFloat to_float) {
  struct Halves {
    uint16_t of[8];
  };
  const int g = Lane() / 4, t = Lane() % 4;
  // Element k of a row or column is in lane k % 8 / 2 of four, in half k % 2 of a register.
  float left[2][16], right[2][16];
  const WarpRegisters lefts(a, /*whole_warp=*/true);
  for (int k = 0; k < 16; ++k) {
    const auto halves = lefts.Of<Halves>(4 * g + k % 8 / 2);
    for (int row = 0; row < 2; ++row)
      left[row][k] = to_float(&halves.of[4 * (k / 8) + 2 * row + k % 2]);
  }
  const uint32_t b[2] = {b0, b1};
  const WarpRegisters rights(b, /*whole_warp=*/true);
  for (int k = 0; k < 16; ++k) {
    for (int column = 0; column < 2; ++column) {
      const auto halves = rights.Of<Halves>(4 * (2 * t + column) + k % 8 / 2);
      right[column][k] = to_float(&halves.of[2 * (k / 8) + k % 2]);
    }
  }
  for (int i = 0; i < 4; ++i) {
    for (int k = 0; k < 16; ++k) c[i] += left[i / 2][k] * right[i % 2][k];
  }
}

}  // namespace megatron::emulation

#endif  // MEGATRON_OPS_CUDA_EMULATION_TENSOR_CORE_H_
