// Quantization to 8-bit floats with a scale for each part of a matrix, from the part's largest
// magnitude (*block scaling*). Both forms are made of x itself: where parts are vectors, those of
// the transposed form lie across those of the other, and so an element has two codes.
//
// Legend: R rows, C columns. x is fp32, bf16 or fp16; all tensors are contiguous.
#ifndef MEGATRON_OPS_FLOAT8_QUANTIZE_BLOCKS_H_
#define MEGATRON_OPS_FLOAT8_QUANTIZE_BLOCKS_H_

#include "megatron/ops/float8/float8_tensor.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

// Writes the codes of x in the form of a Float8Tensor's codes_RC and codes_CS, and their inverse
// scales; a form without codes is not written. The last part of a row or column may be smaller.
// Parts are not kTensor, and both forms have the same. A part's scale is Float8Scale(format, its
// largest magnitude); `power_of_two` rounds it down to a power of two. Inverse scales that belong
// to no part are 1.
void QuantizeBlocks(const Stream& stream, const Tensor& x_RC, bool power_of_two,
                    const Float8Matrix& as_it_is, const Float8Matrix& transposed);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_FLOAT8_QUANTIZE_BLOCKS_H_
