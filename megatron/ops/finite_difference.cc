#include "megatron/ops/finite_difference.h"

namespace megatron::ops {

std::vector<double> FiniteDifference(HostTensor* x, absl::FunctionRef<double()> loss, double step) {
  CHECK_EQ(x->tensor().dtype(), DType::kFloat32);
  std::vector<double> out(x->numel());
  for (int64_t i = 0; i < x->numel(); ++i) {
    const double value = x->Get(i);
    x->Set(i, value + step);
    const double above = x->Get(i), loss_above = loss();
    x->Set(i, value - step);
    const double below = x->Get(i), loss_below = loss();
    out[i] = (loss_above - loss_below) / (above - below);
    x->Set(i, value);
  }
  return out;
}

double Dot(const HostTensor& a, const HostTensor& b) {
  CHECK_EQ(a.numel(), b.numel());
  double sum = 0;
  for (int64_t i = 0; i < a.numel(); ++i) sum += a.Get(i) * b.Get(i);
  return sum;
}

}  // namespace megatron::ops
