// Quantization to 8-bit floats with one scale per tensor, from a largest magnitude: the tensor's
// own (*current scaling*), or that of earlier steps (*delayed scaling*). The former has two steps;
// between them, ranks that hold parts of one tensor take the maximum over their parts. The scale
// stays on the device, so the host does not wait.
//
// Legend: R rows, C columns. x is fp32, bf16 or fp16; all tensors are contiguous.
#ifndef MEGATRON_OPS_FLOAT8_QUANTIZE_H_
#define MEGATRON_OPS_FLOAT8_QUANTIZE_H_

#include "megatron/ops/float8/float8_tensor.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

// amax (fp32) = the largest |x|, ignoring NaN; 0 if there are no elements.
void AbsMax(const Stream& stream, const Tensor& x_RC, const Tensor& amax_1);

// Writes the codes of x * Float8Scale(format, amax) in the forms that `out` keeps, and the inverse
// scale.
void Quantize(const Stream& stream, const Tensor& x_RC, const Tensor& amax_1,
              const Float8Tensor& out);
// The same; also largest (fp32) = max(largest, |x|), ignoring NaN.
void QuantizeAndMeasure(const Stream& stream, const Tensor& x_RC, const Tensor& amax_1,
                        const Float8Tensor& out, const Tensor& largest_1);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_FLOAT8_QUANTIZE_H_
