// A matrix in 8-bit floats: quantize.h and quantize_blocks.h make it, and product.h multiplies it.
//
// The value of an element is the value of its code (tensor/float8.h) times the inverse scale of the
// part of the matrix that it lies in. Products sum along the rows of both operands, so a matrix is
// kept as it is, transposed, or both, depending on the products that read it. Legend: R rows, C
// columns, a multiple of kFloat8Alignment; S is R rounded up to a multiple of it, and elements
// behind R are zero.
#ifndef MEGATRON_OPS_FLOAT8_FLOAT8_TENSOR_H_
#define MEGATRON_OPS_FLOAT8_FLOAT8_TENSOR_H_

#include <cstdint>

#include "megatron/tensor/float8_format.h"
#include "megatron/tensor/float8_scaling.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

// The GPU's matrix units read rows in pieces of 16 bytes.
constexpr int64_t kFloat8Alignment = 16;

inline int64_t Float8Padded(int64_t rows) {
  return (rows + kFloat8Alignment - 1) / kFloat8Alignment * kFloat8Alignment;
}

// Returns the shape of a matrix's inverse scales, in the layout of cuBLASLt: one; for each block of
// columns those of the rows, whose number is rounded up to a multiple of 4; for each block of rows
// those of the blocks of columns, whose number is rounded up likewise.
inline Shape Float8ScalesShape(Float8Scaling scaling, int64_t rows, int64_t columns) {
  const auto blocks = [](int64_t count) { return (count + kFloat8Block - 1) / kFloat8Block; };
  const auto fours = [](int64_t count) { return (count + 3) / 4 * 4; };
  if (scaling == Float8Scaling::kTensor) return {1};
  if (scaling == Float8Scaling::kVectors) return {blocks(columns), fours(rows)};
  return {blocks(rows), fours(blocks(columns))};
}

// A form of a Float8Tensor, or one with scales for parts of it.
struct Float8Matrix {
  Float8Format format = Float8Format::kE4M3;
  Tensor codes;           // uint8, contiguous
  Tensor inverse_scales;  // fp32
  Float8Scaling scaling = Float8Scaling::kTensor;
};

struct Float8Tensor {
  Float8Format format = Float8Format::kE4M3;
  Tensor codes_RC, codes_CS;  // empty if not kept
  Tensor inverse_scale_1;

  Float8Matrix AsItIs() const { return {format, codes_RC, inverse_scale_1}; }
  Float8Matrix Transposed() const { return {format, codes_CS, inverse_scale_1}; }
};

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_FLOAT8_FLOAT8_TENSOR_H_
