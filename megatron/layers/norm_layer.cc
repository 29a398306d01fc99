#include "megatron/layers/norm_layer.h"

#include "glog/logging.h"
#include "megatron/layers/parameter_gradient.h"
#include "megatron/ops/cut_norm.h"
#include "megatron/ops/dropout.h"

namespace megatron {

NormLayer::NormLayer(const NormOptions& options)
    : norm_(options.norm),
      size_(options.size),
      is_cut_(options.grid.is_grid() || options.cut_ranks > 1),
      is_cut_over_tensor_(options.cut_ranks > 1) {
  CHECK(!is_cut_over_tensor_ || !options.grid.is_grid());
  const AxisSet partial = options.partial_over_tensor ? AxisSet{Axis::kTensor} : AxisSet{};
  weight_.name = options.weight_name;
  weight_.initializer = norm_.zero_centered_gamma ? Initializer::Zeros() : Initializer::Ones();
  bias_.name = options.bias_name;
  for (Parameter* parameter : {&weight_, &bias_}) {
    parameter->sharding = is_cut_over_tensor_ ? SplitOverTensor({options.size}, 0,
                                                                options.cut_ranks, options.cut_rank)
                          : is_cut_           ? SplitOverColumns({options.size}, 0, options.grid)
                                              : Replicated({options.size}, partial);
    parameter->weight_decay = false;
  }
}

ops::NormTensors NormLayer::Tensors(const Saved& saved) const {
  return {weight_.data, has_bias() ? bias_.data : Tensor(), saved.mean_T, saved.rstd_T};
}

void NormLayer::AllocateStatistics(const LayerContext& ctx, const Tensor& x_TH,
                                   Saved* saved) const {
  const int64_t rows = x_TH.numel() / x_TH.dim(-1);
  if (is_layer_norm())
    saved->mean_T = ctx.saved->Allocate(DType::kFloat32, {rows}, "norm statistics");
  saved->rstd_T = ctx.saved->Allocate(DType::kFloat32, {rows}, "norm statistics");
}

void NormLayer::Normalize(const LayerContext& ctx, const Tensor& x_TH,
                          const ops::NormTensors& tensors, const Tensor& y_TH) const {
  if (!is_cut_) return ops::NormForward(ctx.stream, norm_, x_TH, tensors, y_TH);
  Arena::Scope scope(ctx.scratch);
  const ProcessGroup& row = RanksOf(ctx);
  CHECK_EQ(row.size() * x_TH.dim(1), size_) << weight_.name;
  const Tensor sums_PT2 = ctx.scratch->Allocate(DType::kFloat32, {row.size(), x_TH.dim(0), 2},
                                                "norm statistics of parts");
  const Tensor mine_T2 = sums_PT2.Select(0, row.rank());
  ops::CutNormSums(ctx.stream, norm_, x_TH, mine_T2);
  row.AllGather(mine_T2.Flatten(), sums_PT2.Flatten(), ctx.stream);
  ops::CutNormForward(ctx.stream, norm_, x_TH, sums_PT2, tensors, y_TH);
}

void NormLayer::Forward(const LayerContext& ctx, const Tensor& x_TH, const Tensor& y_TH,
                        Saved* saved) const {
  saved->x_TH = x_TH;
  AllocateStatistics(ctx, x_TH, saved);
  Normalize(ctx, x_TH, Tensors(*saved), y_TH);
}

void NormLayer::ForwardResidual(const LayerContext& ctx, const ops::Dropout& dropout,
                                const Tensor& x_TH, const Tensor& bias_H, const Tensor& residual_TH,
                                const Tensor& sum_TH, const Tensor& y_TH, Saved* saved) const {
  saved->x_TH = sum_TH;
  AllocateStatistics(ctx, x_TH, saved);
  if (!is_cut_) {
    return ops::ResidualNormForward(ctx.stream, norm_, dropout, x_TH, bias_H, residual_TH, sum_TH,
                                    Tensors(*saved), y_TH);
  }
  ops::BiasDropoutAdd(ctx.stream, dropout, x_TH, bias_H, residual_TH, sum_TH);
  Normalize(ctx, sum_TH, Tensors(*saved), y_TH);
}

void NormLayer::Recompute(const LayerContext& ctx, const Saved& saved, const Tensor& y_TH) const {
  Normalize(ctx, saved.x_TH, Tensors(saved), y_TH);
}

void NormLayer::Backward(const LayerContext& ctx, const Tensor& dy_TH, const Tensor& dresidual_TH,
                         const Tensor& dx_TH, const Saved& saved, const Tensor& dbias_H) {
  Arena::Scope scope(ctx.scratch);
  const Tensor dgamma_H = GradientOf(ctx, weight_);
  const Tensor dbeta_H = has_bias() ? GradientOf(ctx, bias_) : Tensor();
  if (!is_cut_) {
    return ops::NormBackward(ctx.stream, norm_, dy_TH, saved.x_TH, Tensors(saved), dresidual_TH,
                             dx_TH, dgamma_H, dbeta_H, dbias_H);
  }
  const Tensor sums_T2 =
      ctx.scratch->Allocate(DType::kFloat32, {dy_TH.dim(0), 2}, "norm sums of gradients");
  ops::CutNormGradientSums(ctx.stream, norm_, dy_TH, saved.x_TH, Tensors(saved), sums_T2);
  RanksOf(ctx).AllReduce(sums_T2, ReduceOp::kSum, ctx.stream);
  ops::CutNormBackward(ctx.stream, norm_, size_, dy_TH, saved.x_TH, Tensors(saved), sums_T2,
                       dresidual_TH, dx_TH, dgamma_H, dbeta_H, dbias_H);
}

void NormLayer::AppendParameters(std::vector<Parameter*>* out) {
  out->push_back(&weight_);
  if (has_bias()) out->push_back(&bias_);
}

}  // namespace megatron
