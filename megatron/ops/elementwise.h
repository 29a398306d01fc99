// Casts, sums and fills.
#ifndef MEGATRON_OPS_ELEMENTWISE_H_
#define MEGATRON_OPS_ELEMENTWISE_H_

#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

// out = in, converted between fp32, bf16 and fp16 if the dtypes differ. Equal shapes, any strides
// (equal dtypes: any dtype).
void Copy(const Stream& stream, const Tensor& in, const Tensor& out);

// out += in (both contiguous, one floating dtype; the sum is rounded once).
void Add(const Stream& stream, const Tensor& in, const Tensor& out);

// out *= factor (contiguous, floating).
void Scale(const Stream& stream, float factor, const Tensor& out);

// out = 0 (contiguous).
void Zero(const Stream& stream, const Tensor& out);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_ELEMENTWISE_H_
