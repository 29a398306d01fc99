// Checks that every op makes before it works: operands have the expected dtype, shape and device.
// They also run on the meta device, where they validate a plan.
#ifndef MEGATRON_OPS_CHECKS_H_
#define MEGATRON_OPS_CHECKS_H_

#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

// CHECK-fails unless the tensor has this dtype and shape and lives on the stream's device.
void CheckTensor(const Stream& stream, const Tensor& tensor, DType dtype, const Shape& shape);
// CHECK-fails also unless the tensor is contiguous.
void CheckContiguous(const Stream& stream, const Tensor& tensor, DType dtype, const Shape& shape);
// CHECK-fails unless the tensor is fp32, bf16 or fp16.
void CheckFloating(const Tensor& tensor);

// The device on which the op works. On the meta device both are false, and the op does nothing.
inline bool RunsOnCpu(const Stream& stream) { return stream.device().type == DeviceType::kCpu; }
inline bool RunsOnCuda(const Stream& stream) { return stream.device().type == DeviceType::kCuda; }

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CHECKS_H_
