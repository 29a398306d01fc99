#include "megatron/layers/norm_layer.h"

#include "glog/logging.h"
#include "megatron/layers/parameter_gradient.h"
#include "megatron/ops/cut_norm.h"
#include "megatron/ops/dropout.h"

namespace megatron {
namespace {

// The rows of a head.
Tensor HeadOf(const Tensor& x, int64_t head) {
  if (x.rank() == 3) return x.Select(1, head);
  CHECK_EQ(x.rank(), 4) << x;
  return x.Select(1, head / x.dim(2)).Select(1, head % x.dim(2));
}

// Statistics of a head's tokens stand together.
ops::NormTensors HeadOf(const ops::NormTensors& tensors, int64_t head, int64_t tokens) {
  const auto part = [&](const Tensor& statistics) {
    return statistics.empty() ? Tensor() : statistics.Slice(0, head * tokens, (head + 1) * tokens);
  };
  return {tensors.gamma_H.Select(0, head), Tensor(), part(tensors.mean_T), part(tensors.rstd_T)};
}

}  // namespace

NormLayer::NormLayer(const NormOptions& options)
    : norm_(options.norm),
      size_(options.size),
      heads_(options.heads / options.cut_ranks),
      is_cut_(options.grid.is_grid() || (options.cut_ranks > 1 && options.heads == 0)),
      is_cut_over_tensor_(options.cut_ranks > 1 && options.heads == 0) {
  CHECK(!options.grid.is_grid() || (!is_cut_over_tensor_ && options.heads == 0));
  CHECK_EQ(heads_ * options.cut_ranks, options.heads) << options.weight_name;
  const Shape shape = options.heads > 0 ? Shape{options.heads, options.size} : Shape{options.size};
  const AxisSet partial = options.partial_over_tensor ? AxisSet{Axis::kTensor} : AxisSet{};
  weight_.name = options.weight_name;
  weight_.initializer = norm_.zero_centered_gamma ? Initializer::Zeros() : Initializer::Ones();
  bias_.name = options.bias_name;
  for (Parameter* parameter : {&weight_, &bias_}) {
    parameter->sharding = options.heads > 0 || is_cut_over_tensor_
                              ? SplitOverTensor(shape, 0, options.cut_ranks, options.cut_rank)
                          : is_cut_ ? SplitOverColumns(shape, 0, options.grid)
                                    : Replicated(shape, partial);
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
  for (int64_t head = 0; head < heads_; ++head) {
    ops::NormForward(ctx.stream, norm_, HeadOf(x_TH, head), HeadOf(tensors, head, x_TH.dim(0)),
                     HeadOf(y_TH, head));
  }
  if (heads_ > 0) return;
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
  CHECK_EQ(heads_, 0) << weight_.name;
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
  if (heads_ > 0) {
    CHECK(dresidual_TH.empty() && dbias_H.empty()) << weight_.name;
    for (int64_t head = 0; head < heads_; ++head) {
      ops::NormBackward(ctx.stream, norm_, HeadOf(dy_TH, head), HeadOf(saved.x_TH, head),
                        HeadOf(Tensors(saved), head, dy_TH.dim(0)), Tensor(), HeadOf(dx_TH, head),
                        dgamma_H.Select(0, head), Tensor());
    }
    return;
  }
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
