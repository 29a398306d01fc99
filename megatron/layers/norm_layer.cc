#include "megatron/layers/norm_layer.h"

namespace megatron {

NormLayer::NormLayer(const NormOptions& options) : norm_(options.norm) {
  const AxisSet partial = options.partial_over_tensor ? AxisSet{Axis::kTensor} : AxisSet{};
  weight_.name = options.weight_name;
  weight_.initializer = norm_.zero_centered_gamma ? Initializer::Zeros() : Initializer::Ones();
  bias_.name = options.bias_name;
  for (Parameter* parameter : {&weight_, &bias_}) {
    parameter->sharding = Replicated({options.size}, partial);
    parameter->weight_decay = false;
  }
}

ops::NormTensors NormLayer::Tensors(const Saved& saved) const {
  return {weight_.data, is_layer_norm() ? bias_.data : Tensor(), saved.mean_T, saved.rstd_T};
}

void NormLayer::AllocateStatistics(const LayerContext& ctx, const Tensor& x_TH,
                                   Saved* saved) const {
  const int64_t rows = x_TH.numel() / x_TH.dim(-1);
  if (is_layer_norm())
    saved->mean_T = ctx.saved->Allocate(DType::kFloat32, {rows}, "norm statistics");
  saved->rstd_T = ctx.saved->Allocate(DType::kFloat32, {rows}, "norm statistics");
}

void NormLayer::Forward(const LayerContext& ctx, const Tensor& x_TH, const Tensor& y_TH,
                        Saved* saved) const {
  saved->x_TH = x_TH;
  AllocateStatistics(ctx, x_TH, saved);
  ops::NormForward(ctx.stream, norm_, x_TH, Tensors(*saved), y_TH);
}

void NormLayer::ForwardResidual(const LayerContext& ctx, const ops::Dropout& dropout,
                                const Tensor& x_TH, const Tensor& bias_H, const Tensor& residual_TH,
                                const Tensor& sum_TH, const Tensor& y_TH, Saved* saved) const {
  saved->x_TH = sum_TH;
  AllocateStatistics(ctx, x_TH, saved);
  ops::ResidualNormForward(ctx.stream, norm_, dropout, x_TH, bias_H, residual_TH, sum_TH,
                           Tensors(*saved), y_TH);
}

void NormLayer::Recompute(const LayerContext& ctx, const Saved& saved, const Tensor& y_TH) const {
  ops::NormForward(ctx.stream, norm_, saved.x_TH, Tensors(saved), y_TH);
}

void NormLayer::Backward(const LayerContext& ctx, const Tensor& dy_TH, const Tensor& dresidual_TH,
                         const Tensor& dx_TH, const Saved& saved, const Tensor& dbias_H) {
  ops::NormBackward(ctx.stream, norm_, dy_TH, saved.x_TH, Tensors(saved), dresidual_TH, dx_TH,
                    weight_.grad, is_layer_norm() ? bias_.grad : Tensor(), dbias_H);
}

void NormLayer::AppendParameters(std::vector<Parameter*>* out) {
  out->push_back(&weight_);
  if (is_layer_norm()) out->push_back(&bias_);
}

}  // namespace megatron
