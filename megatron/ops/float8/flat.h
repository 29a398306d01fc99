// The codes of a run of elements, for messages: what a receiver decodes and quantizes with the same
// scale gets the codes that the sender's elements would get.
//
// A code is that of x * Float8Scale(E4M3, amax). A decoded element is the code's value over the
// scale, rounded to x's dtype: off by less than half a step between codes, so that it has the same
// code. Legend: N elements. x is fp32, bf16 or fp16; all tensors are contiguous.
#ifndef MEGATRON_OPS_FLOAT8_FLAT_H_
#define MEGATRON_OPS_FLOAT8_FLAT_H_

#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

void EncodeFloat8(const Stream& stream, const Tensor& x_N, const Tensor& amax_1,
                  const Tensor& codes_N);
void DecodeFloat8(const Stream& stream, const Tensor& codes_N, const Tensor& amax_1,
                  const Tensor& x_N);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_FLOAT8_FLAT_H_
