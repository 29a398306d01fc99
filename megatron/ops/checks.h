// What every op checks before it works: that operands are where and what it expects. The same
// checks run on the meta device, where they validate a plan.
#ifndef MEGATRON_OPS_CHECKS_H_
#define MEGATRON_OPS_CHECKS_H_

#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

// CHECK-fails unless the tensor has this dtype and shape and lives on the stream's device.
void CheckTensor(const Stream& stream, const Tensor& tensor, DType dtype, const Shape& shape);
// And is contiguous.
void CheckContiguous(const Stream& stream, const Tensor& tensor, DType dtype, const Shape& shape);
// fp32, bf16 or fp16.
void CheckFloating(const Tensor& tensor);

// Where the op has work to do; on the meta device, nowhere.
inline bool RunsOnCpu(const Stream& stream) { return stream.device().type == DeviceType::kCpu; }
inline bool RunsOnCuda(const Stream& stream) { return stream.device().type == DeviceType::kCuda; }

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CHECKS_H_
