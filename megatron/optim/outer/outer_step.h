// The arithmetic of DiLoCo's outer step (outer_optimizer.h), that of torch.optim.SGD:
//
//   v = momentum * v + d
//   global -= lr * (d + momentum * v), or without Nesterov lr * v
#ifndef MEGATRON_OPTIM_OUTER_OUTER_STEP_H_
#define MEGATRON_OPTIM_OUTER_OUTER_STEP_H_

#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

struct OuterStepOptions {
  double lr = 0.7;
  double momentum = 0.9;
  bool nesterov = true;
};

// Tensors are fp32, contiguous and of one size. `gradient` is d; `momentum` is v, and empty where
// options.momentum is 0. `change` is scratch memory, which may be none of the others.
void TakeOuterStep(const Stream& stream, const OuterStepOptions& options, const Tensor& gradient,
                   const Tensor& momentum, const Tensor& change, const Tensor& global);

}  // namespace megatron

#endif  // MEGATRON_OPTIM_OUTER_OUTER_STEP_H_
