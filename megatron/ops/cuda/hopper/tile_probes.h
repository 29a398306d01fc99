// Kernels that each do one thing with a tile in shared memory, for tests: what they leave in `out`
// says which of Hopper's instructions was encoded wrongly.
#ifndef MEGATRON_OPS_CUDA_HOPPER_TILE_PROBES_H_
#define MEGATRON_OPS_CUDA_HOPPER_TILE_PROBES_H_

#include <cstdint>

#include "megatron/tensor/dtype.h"
#include "megatron/tensor/stream.h"

namespace megatron::ops::cuda::hopper {

constexpr int kProbeRows = 128;    // rows of the tile
constexpr int kProbeResults = 64;  // rows of the results of products

// The rows of head `head` from token `token` on, of a contiguous tensor of 16-bit floats
// [tokens, heads, head_dim]. Rows before the first token and behind the last one are zeros.
struct ProbedTile {
  DType dtype = DType::kBFloat16;
  void* data = nullptr;
  int64_t tokens = 0, heads = 0, head_dim = 0;
  int64_t head = 0, token = 0;
};

// out [kProbeRows, head_dim], fp32 = the tile, read from where the 128-byte swizzle puts each
// element: shows copies by tensor maps, their swizzle and rows out of bounds.
void ProbeCopy(const Stream& stream, const ProbedTile& tile, float* out);

// out [kProbeResults, kProbeRows], fp32 = the last kProbeResults rows of the tile times all its
// rows: shows descriptors of operands that are summed over columns.
void ProbeScores(const Stream& stream, const ProbedTile& tile, float* out);

// The weight that ProbeWeightedSums gives row `from` of the tile in row `to` of its results.
constexpr int ProbeWeight(int to, int from) { return (to * 7 + from) % 5 - 2; }
// The number that ProbeWeightedSums adds to.
constexpr float kProbeStart = 1000;

// out [kProbeResults, head_dim], fp32 = kProbeStart + weights * tile: shows left operands in
// registers, the descriptor of an operand that is summed over rows, and sums that are added to.
void ProbeWeightedSums(const Stream& stream, const ProbedTile& tile, float* out);

}  // namespace megatron::ops::cuda::hopper

#endif  // MEGATRON_OPS_CUDA_HOPPER_TILE_PROBES_H_
