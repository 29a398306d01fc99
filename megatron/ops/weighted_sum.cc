#include "megatron/ops/weighted_sum.h"

#include "megatron/ops/cuda/kernel_table.h"

namespace megatron::ops {

void WeightedSum(const Stream& stream, const Tensor& x_T, const Tensor& weight_T,
                 const Tensor& out_2) {
  CHECK_EQ(x_T.shape(), weight_T.shape());
  CHECK_EQ(out_2.shape(), Shape({2}));
  CHECK(x_T.is_contiguous() && weight_T.is_contiguous());
  if (stream.is_meta()) return;
  if (stream.device().type == DeviceType::kCuda) {
    return OnCuda<WeightedSum>(stream, x_T, weight_T, out_2);
  }
  const float* x = x_T.data<float>();
  const float* weight = weight_T.data<float>();
  double sum = 0, weights = 0;
  for (int64_t t = 0; t < x_T.numel(); ++t) {
    if (weight[t] != 0) sum += double{weight[t]} * x[t];
    weights += weight[t];
  }
  out_2.data<float>()[0] += static_cast<float>(sum);
  out_2.data<float>()[1] += static_cast<float>(weights);
}

}  // namespace megatron::ops
