// Weights in 8-bit floats (E4M3) with a scale for each block of 128 x 128 of them, as DeepSeek-V3
// is published: a weight is its code times the scale of its block. Blocks at the ends of rows and
// columns may be smaller.
#ifndef MEGATRON_TOOLS_HUGGINGFACE_BLOCK_FLOAT8_H_
#define MEGATRON_TOOLS_HUGGINGFACE_BLOCK_FLOAT8_H_

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "megatron/models/huggingface/hf_weights.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// Returns the shape of the scales of a weight: one for each block.
std::vector<int64_t> Float8ScalesShape(const HfTensor& tensor);

// Writes the parameter of which `tensor` is made: `codes` are its bytes, row by row, and `scales`
// fp32. `out` is of a floating type, to which each product, formed in fp32, is rounded.
void DequantizeFloat8Blocks(const HfTensor& tensor, absl::string_view codes,
                            absl::string_view scales, const Tensor& out);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_HUGGINGFACE_BLOCK_FLOAT8_H_
