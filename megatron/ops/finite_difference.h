// Gradients by central differences, which check the backward pass of ops that compute in fp32.
//
//   const double loss = ...;  // some function of x's elements, in double
//   ExpectNear(dx, FiniteDifference(&x, [&] { Forward(x, y); return Dot(y, dy); }),
//              kFiniteDifferenceTolerance);
#ifndef MEGATRON_OPS_FINITE_DIFFERENCE_H_
#define MEGATRON_OPS_FINITE_DIFFERENCE_H_

#include <vector>

#include "absl/functional/function_ref.h"
#include "megatron/ops/host_tensor.h"

namespace megatron::ops {

// Returns d loss / d x[i] for every element of an fp32 tensor: (loss(x + step) - loss(x - step)) /
// (2 step). Afterwards x is as it was before.
std::vector<double> FiniteDifference(HostTensor* x, absl::FunctionRef<double()> loss,
                                     double step = 1e-2);

// Returns the sum of a[i] * b[i] in double: a loss whose gradient with respect to `a` is `b`.
double Dot(const HostTensor& a, const HostTensor& b);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_FINITE_DIFFERENCE_H_
