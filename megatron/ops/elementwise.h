// Casts, sums and fills.
#ifndef MEGATRON_OPS_ELEMENTWISE_H_
#define MEGATRON_OPS_ELEMENTWISE_H_

#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

// out = in, with conversion between fp32, bf16 and fp16. Shapes are equal, strides are free. If the
// dtypes are equal, they can be any.
void Copy(const Stream& stream, const Tensor& in, const Tensor& out);

// out += in. Both are contiguous. The dtypes are floating; in has that of out, or fp32. Each sum is
// rounded once.
void Add(const Stream& stream, const Tensor& in, const Tensor& out);

// out *= factor. out is contiguous and floating.
void Scale(const Stream& stream, float factor, const Tensor& out);

// x = cap tanh(x / cap). x is contiguous and floating.
void SoftCap(const Stream& stream, float cap, const Tensor& x);

// out = 0. out is contiguous.
void Zero(const Stream& stream, const Tensor& out);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_ELEMENTWISE_H_
