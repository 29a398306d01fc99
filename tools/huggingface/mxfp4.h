// Weights in MXFP4, as gpt-oss is published: blocks of 32 numbers that have a power of two in
// common (OCP Microscaling Formats 1.0). A number has four bits, of which the first is the sign,
// and is one of 0, 0.5, 1, 1.5, 2, 3, 4 and 6. Two of them are in a byte, the first in its low
// half. A scale has eight bits and means 2 to the power of it less 127.
#ifndef MEGATRON_TOOLS_HUGGINGFACE_MXFP4_H_
#define MEGATRON_TOOLS_HUGGINGFACE_MXFP4_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "megatron/models/huggingface/hf_weights.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

inline constexpr int64_t kMxfp4Block = 32;

// Writes the parameter of which `tensor` is made: row r of `tensor` has columns / 32 blocks of 16
// bytes, and as many scales. `out` is of a floating type; what that can't hold is rounded.
void DequantizeMxfp4(const HfTensor& tensor, absl::string_view blocks, absl::string_view scales,
                     const Tensor& out);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_HUGGINGFACE_MXFP4_H_
