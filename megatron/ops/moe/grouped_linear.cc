#include "megatron/ops/moe/grouped_linear.h"

#include "glog/logging.h"
#include "megatron/ops/checks.h"
#include "megatron/ops/cuda/kernel_table.h"
#include "megatron/ops/linear.h"

namespace megatron::ops {
namespace {

void CheckOperands(const Stream& stream, absl::Span<const RowGroup> groups, const Tensor& x_RI,
                   const Tensor& w_EOI, DType weight_dtype, const Tensor& y_RO) {
  CheckFloating(x_RI);
  CHECK_EQ(w_EOI.rank(), 3) << w_EOI;
  CheckContiguous(stream, x_RI, x_RI.dtype(), {x_RI.dim(0), w_EOI.dim(2)});
  CheckContiguous(stream, y_RO, x_RI.dtype(), {x_RI.dim(0), w_EOI.dim(1)});
  CheckContiguous(stream, w_EOI, weight_dtype, w_EOI.shape());
  int64_t covered = 0;
  for (const RowGroup& group : groups) {
    CHECK_EQ(group.begin, covered);
    CHECK_GE(group.end, group.begin);
    CHECK(group.expert >= 0 && group.expert < w_EOI.dim(0)) << group.expert;
    covered = group.end;
  }
  CHECK_EQ(covered, x_RI.dim(0));
}

Tensor RowsOf(const Tensor& x, const RowGroup& group) { return x.Slice(0, group.begin, group.end); }

}  // namespace

void GroupedLinearForward(const Stream& stream, absl::Span<const RowGroup> groups,
                          const Tensor& x_RI, const Tensor& w_EOI, const Tensor& y_RO) {
  CheckOperands(stream, groups, x_RI, w_EOI, x_RI.dtype(), y_RO);
  if (RunsOnCuda(stream)) return OnCuda<GroupedLinearForward>(stream, groups, x_RI, w_EOI, y_RO);
  for (const RowGroup& group : groups) {
    LinearForward(stream, RowsOf(x_RI, group), w_EOI.Select(0, group.expert), Tensor(),
                  RowsOf(y_RO, group));
  }
}

void GroupedLinearBackwardInput(const Stream& stream, absl::Span<const RowGroup> groups,
                                const Tensor& dy_RO, const Tensor& w_EOI, const Tensor& dx_RI) {
  CheckOperands(stream, groups, dx_RI, w_EOI, dy_RO.dtype(), dy_RO);
  if (RunsOnCuda(stream)) {
    return OnCuda<GroupedLinearBackwardInput>(stream, groups, dy_RO, w_EOI, dx_RI);
  }
  for (const RowGroup& group : groups) {
    LinearBackwardInput(stream, RowsOf(dy_RO, group), w_EOI.Select(0, group.expert),
                        RowsOf(dx_RI, group));
  }
}

void GroupedLinearBackwardWeight(const Stream& stream, absl::Span<const RowGroup> groups,
                                 const Tensor& dy_RO, const Tensor& x_RI, const Tensor& dw_EOI) {
  CheckOperands(stream, groups, x_RI, dw_EOI, DType::kFloat32, dy_RO);
  if (RunsOnCuda(stream)) {
    return OnCuda<GroupedLinearBackwardWeight>(stream, groups, dy_RO, x_RI, dw_EOI);
  }
  for (const RowGroup& group : groups) {
    LinearBackwardWeight(stream, RowsOf(dy_RO, group), RowsOf(x_RI, group),
                         dw_EOI.Select(0, group.expert), Tensor());
  }
}

}  // namespace megatron::ops
