// Linear layers of experts: without bias, each on its own rows.
//
// Legend: R rows, E experts, I input features, O output features. x, y and weights share one dtype
// (fp32, bf16 or fp16); products accumulate in fp32; gradients of weights are fp32. All tensors are
// contiguous. A row's result depends, to the bit, only on the row and its expert.
#ifndef MEGATRON_OPS_MOE_GROUPED_LINEAR_H_
#define MEGATRON_OPS_MOE_GROUPED_LINEAR_H_

#include <cstdint>

#include "absl/types/span.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

// Rows [begin, end) belong to the expert. The groups cover each row once, in ascending order; an
// expert may have several groups, or none.
struct RowGroup {
  int64_t expert = 0, begin = 0, end = 0;
};

// y[r] = x[r] w[expert of r]^T.
void GroupedLinearForward(const Stream& stream, absl::Span<const RowGroup> groups,
                          const Tensor& x_RI, const Tensor& w_EOI, const Tensor& y_RO);
// dx[r] = dy[r] w[expert of r].
void GroupedLinearBackwardInput(const Stream& stream, absl::Span<const RowGroup> groups,
                                const Tensor& dy_RO, const Tensor& w_EOI, const Tensor& dx_RI);
// dw[e] += sum over the expert's rows of dy[r]^T x[r].
void GroupedLinearBackwardWeight(const Stream& stream, absl::Span<const RowGroup> groups,
                                 const Tensor& dy_RO, const Tensor& x_RI, const Tensor& dw_EOI);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_MOE_GROUPED_LINEAR_H_
