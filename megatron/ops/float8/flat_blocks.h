// The codes of a run of a matrix's elements, with a scale for each block of the matrix, for
// messages: what a receiver decodes and quantizes by QuantizeBlocks gets the codes and the scales
// that the sender's matrix would get.
//
// A code is that of x times its block's scale, which is that of QuantizeBlocks: made of the largest
// magnitude in the block. A decoded element is the code's value over the scale, rounded to x's
// dtype; but the code that the largest magnitude has is decoded to that magnitude, so that it is
// the largest one of the decoded block, too. (With scales that are powers of two, the code's own
// value may be so much smaller that the block would get another scale.)
//
// Legend: N elements of a matrix, in the order of its rows; B blocks of kFloat8Block x kFloat8Block
// of the whole matrix, those of the first rows first; the last of a row or column may be smaller. x
// is fp32, bf16 or fp16; all tensors are contiguous.
#ifndef MEGATRON_OPS_FLOAT8_FLAT_BLOCKS_H_
#define MEGATRON_OPS_FLOAT8_FLAT_BLOCKS_H_

#include <cstdint>

#include "megatron/tensor/float8_scaling.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

// Where a run lies: the place of its first element among those of the matrix.
struct MatrixRun {
  int64_t begin = 0, columns = 1;
};

inline int64_t Float8BlocksAlong(int64_t size) { return (size + kFloat8Block - 1) / kFloat8Block; }
inline int64_t NumFloat8Blocks(int64_t rows, int64_t columns) {
  return Float8BlocksAlong(rows) * Float8BlocksAlong(columns);
}

// largest (fp32) = max(largest, |x|) for the blocks that the run's elements lie in, ignoring NaN.
void AbsMaxOfBlocks(const Stream& stream, const Tensor& x_N, const MatrixRun& run,
                    const Tensor& largest_B);
// `power_of_two` as in QuantizeBlocks.
void EncodeFloat8Blocks(const Stream& stream, const Tensor& x_N, const MatrixRun& run,
                        const Tensor& largest_B, bool power_of_two, const Tensor& codes_N);
void DecodeFloat8Blocks(const Stream& stream, const Tensor& codes_N, const MatrixRun& run,
                        const Tensor& largest_B, bool power_of_two, const Tensor& x_N);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_FLOAT8_FLAT_BLOCKS_H_
