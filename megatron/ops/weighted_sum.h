// The weighted sum that reports the loss of a micro-batch.
#ifndef MEGATRON_OPS_WEIGHTED_SUM_H_
#define MEGATRON_OPS_WEIGHTED_SUM_H_

#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

// out[0] += sum of weight[t] * x[t], out[1] += sum of weight[t]. All tensors are fp32 and
// contiguous. Each sum is formed in double precision in the order of t, and rounded once when it is
// added.
void WeightedSum(const Stream& stream, const Tensor& x_T, const Tensor& weight_T,
                 const Tensor& out_2);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_WEIGHTED_SUM_H_
