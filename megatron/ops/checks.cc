#include "megatron/ops/checks.h"

#include "glog/logging.h"

namespace megatron::ops {

void CheckTensor(const Stream& stream, const Tensor& tensor, DType dtype, const Shape& shape) {
  CHECK(!tensor.empty()) << "no tensor where " << dtype << shape << " is needed";
  CHECK_EQ(tensor.dtype(), dtype) << tensor;
  CHECK_EQ(tensor.shape(), shape) << tensor;
  CHECK_EQ(tensor.device(), stream.device()) << tensor;
}

void CheckContiguous(const Stream& stream, const Tensor& tensor, DType dtype, const Shape& shape) {
  CheckTensor(stream, tensor, dtype, shape);
  CHECK(tensor.is_contiguous()) << tensor;
}

void CheckFloating(const Tensor& tensor) {
  CHECK(tensor.dtype() == DType::kFloat32 || tensor.dtype() == DType::kBFloat16 ||
        tensor.dtype() == DType::kFloat16)
      << tensor;
}

}  // namespace megatron::ops
