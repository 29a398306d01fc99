// A matrix in 8-bit floats: quantize.h makes it and product.h multiplies it.
//
// The value of an element is the value of its code (tensor/float8.h) times inverse_scale_1.
// Products sum along the rows of both operands, so a matrix is kept as it is, transposed, or both,
// depending on the products that read it. Legend: R rows, C columns, a multiple of
// kFloat8Alignment; S is R rounded up to a multiple of it, and elements behind R are zero.
#ifndef MEGATRON_OPS_FLOAT8_FLOAT8_TENSOR_H_
#define MEGATRON_OPS_FLOAT8_FLOAT8_TENSOR_H_

#include <cstdint>

#include "megatron/tensor/float8_format.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

// The GPU's matrix units read rows in pieces of 16 bytes.
constexpr int64_t kFloat8Alignment = 16;

inline int64_t Float8Padded(int64_t rows) {
  return (rows + kFloat8Alignment - 1) / kFloat8Alignment * kFloat8Alignment;
}

// One of the two forms of a Float8Tensor.
struct Float8Matrix {
  Float8Format format = Float8Format::kE4M3;
  Tensor codes;            // uint8, contiguous
  Tensor inverse_scale_1;  // fp32
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
