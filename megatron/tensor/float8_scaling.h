// The parts of a matrix of 8-bit floats that have a scale of their own.
#ifndef MEGATRON_TENSOR_FLOAT8_SCALING_H_
#define MEGATRON_TENSOR_FLOAT8_SCALING_H_

#include <cstdint>

namespace megatron {

// The elements along the summed dim of a product that share a scale, where not all do.
constexpr int64_t kFloat8Block = 128;

enum class Float8Scaling : uint8_t {
  kTensor,   // the whole matrix
  kVectors,  // kFloat8Block elements along the summed dim
  kBlocks,   // kFloat8Block x kFloat8Block elements
};

}  // namespace megatron

#endif  // MEGATRON_TENSOR_FLOAT8_SCALING_H_
