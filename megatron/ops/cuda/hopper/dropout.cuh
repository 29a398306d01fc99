// Dropout of a tile's probabilities: which of a lane's sums are kept, by the rule of
// ../../attention.h.
//
// One call of Philox has the words of four keys for one query. A lane has two of the four where
// rows are queries, and one where rows are keys. So the lanes that share a call's words draw for
// each other, and a lane calls Philox once for every four of its sums.
#ifndef MEGATRON_OPS_CUDA_HOPPER_DROPOUT_CUH_
#define MEGATRON_OPS_CUDA_HOPPER_DROPOUT_CUH_

#include <cstdint>

#include "megatron/base/philox.h"
#include "megatron/ops/cuda/attention.cuh"

namespace megatron::ops::cuda::hopper {

// Which of the lane's sums are kept: bit 4 (n % 8) + i of word n / 8 is that of element i of tile
// n.
template <int kTiles>
struct Kept {
  static_assert(kTiles % 8 == 0, "whole words");

  uint32_t bits[kTiles / 8];

  __device__ bool Has(int n, int i) const { return (bits[n / 8] >> (4 * (n % 8) + i) & 1u) != 0; }
};

// The part of a draw's counter that belongs to the query.
struct DrawnQuery {
  uint32_t sample_lo = 0, sample_hi = 0, position = 0;

  DrawnQuery() = default;
  __device__ DrawnQuery(const AttentionArgs& args, int64_t query) {
    const auto sample = static_cast<uint64_t>(args.sample_T[query]);
    sample_lo = static_cast<uint32_t>(sample);
    sample_hi = static_cast<uint32_t>(sample >> 32);
    position = static_cast<uint32_t>(args.position_T[query]);
  }
};

__device__ inline PhiloxKey DropoutKey(const AttentionArgs& args, int64_t head) {
  return DeriveKey(args.dropout_seed, kPhiloxDropout, static_cast<uint64_t>(args.first_head + head),
                   0);
}

// Returns which of keys [4 four, 4 four + 4) the query keeps, as bits 0 to 3.
__device__ inline uint32_t DrawFour(PhiloxKey key, uint32_t threshold, const DrawnQuery& query,
                                    uint32_t four) {
  const PhiloxBlock words = Philox(key, {{query.sample_lo, query.sample_hi, query.position, four}});
  uint32_t kept = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) kept |= words.word[j] >= threshold ? 1u << j : 0u;
  return kept;
}

// Rows are queries, columns keys from `first_key` on, counted from the sequence's first and a
// multiple of four. `drawn` is the query of this lane's row 8 (lane % 2).
template <int kTiles>
__device__ Kept<kTiles> KeysKeptBy(const AttentionArgs& args, PhiloxKey key,
                                   const DrawnQuery& drawn, int64_t first_key) {
  constexpr uint32_t kPairs = 0x33333333;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, pair = lane % 2;
  const auto four = static_cast<uint32_t>(first_key / 4) + lane % 4 / 2;
  Kept<kTiles> kept;
#pragma unroll
  for (int w = 0; w < kTiles / 8; ++w) {
    uint32_t mine = 0;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      mine |= DrawFour(key, args.dropout_threshold, drawn, four + 2 * (8 * w + n)) << (4 * n);
    }
    const uint32_t others = __shfl_xor_sync(0xffffffffu, mine, 1);
    const uint32_t row_0 = pair == 0 ? mine : others, row_8 = pair == 0 ? others : mine;
    kept.bits[w] = (row_0 >> 2 * pair & kPairs) | (row_8 >> 2 * pair & kPairs) << 2;
  }
  return kept;
}

// Rows are keys, columns queries from `first_query` on, of which those before `end_query` exist.
// `row_key` is the key of this lane's first row, counted from the sequence's first; the warp's
// first row is a multiple of four.
template <int kTiles>
__device__ Kept<kTiles> QueriesThatKeep(const AttentionArgs& args, PhiloxKey key, int64_t row_key,
                                        int64_t first_query, int64_t end_query) {
  constexpr uint32_t kOneOfFour = 0x11111111;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, of_four = lane / 4 % 4;
  // This lane draws for element `of_four` of the four lanes whose keys share a call.
  const auto four = static_cast<uint32_t>(row_key / 4) + of_four / 2 * 2;
  const int64_t query = first_query + lane % 4 * 2 + of_four % 2;
  Kept<kTiles> kept;
#pragma unroll
  for (int w = 0; w < kTiles / 8; ++w) {
    uint32_t mine = 0;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const DrawnQuery drawn(args, min(query + 8 * (8 * w + n), end_query - 1));
      mine |= DrawFour(key, args.dropout_threshold, drawn, four) << (4 * n);
    }
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t drawn = __shfl_sync(0xffffffffu, mine, (lane & ~12) | i << 2);
      bits |= (drawn >> of_four & kOneOfFour) << i;
    }
    kept.bits[w] = bits;
  }
  return kept;
}

}  // namespace megatron::ops::cuda::hopper

#endif  // MEGATRON_OPS_CUDA_HOPPER_DROPOUT_CUH_
