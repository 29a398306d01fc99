#include "megatron/models/bert/masked_lm_transform.h"

#include "megatron/layers/linear_gradients.h"
#include "megatron/ops/activation.h"
#include "megatron/ops/linear.h"

namespace megatron {

MaskedLmTransform::MaskedLmTransform(const TransformerOptions& options, ops::Activation activation)
    : activation_(activation),
      norm_({options.norm, "lm_head.layer_norm.weight", "lm_head.layer_norm.bias",
             options.hidden_size, /*partial_over_tensor=*/options.sequence_parallel}) {
  const AxisSet partial = options.sequence_parallel ? AxisSet{Axis::kTensor} : AxisSet{};
  weight_HH_.name = "lm_head.dense.weight";
  weight_HH_.sharding = Replicated({options.hidden_size, options.hidden_size}, partial);
  weight_HH_.initializer = Initializer::Normal(options.init_std);
  weight_HH_.matrix = MatrixDims();
  bias_H_.name = "lm_head.dense.bias";
  bias_H_.sharding = Replicated({options.hidden_size}, partial);
  bias_H_.weight_decay = false;
}

void MaskedLmTransform::Forward(const LayerContext& ctx, const Tensor& x_TH, const Tensor& y_TH,
                                Saved* saved) const {
  saved->x_TH = x_TH;
  saved->pre_TH = ctx.saved->Allocate(x_TH.dtype(), x_TH.shape(), "head pre-activation");
  const Tensor activated_TH = ctx.saved->Allocate(x_TH.dtype(), x_TH.shape(), "head activation");
  ops::LinearActivationForward(ctx.stream, activation_, x_TH, weight_HH_.data, bias_H_.data,
                               saved->pre_TH, activated_TH);
  norm_.Forward(ctx, activated_TH, y_TH, &saved->norm);
}

void MaskedLmTransform::Backward(const LayerContext& ctx, const Tensor& dy_TH, const Tensor& dx_TH,
                                 const Saved& saved) {
  Arena::Scope scope(ctx.scratch);
  const Tensor dpre_TH = ctx.scratch->Allocate(dy_TH.dtype(), dy_TH.shape(), "head gradient");
  norm_.Backward(ctx, dy_TH, Tensor(), dpre_TH, saved.norm);
  ops::ActivationBackward(ctx.stream, activation_, dpre_TH, saved.pre_TH, dpre_TH);
  ops::LinearBackwardInput(ctx.stream, dpre_TH, weight_HH_.data, dx_TH);
  AddLinearGradients(ctx.stream, dpre_TH, saved.x_TH, weight_HH_, bias_H_.grad);
}

void MaskedLmTransform::AppendParameters(std::vector<Parameter*>* out) {
  out->push_back(&weight_HH_);
  out->push_back(&bias_H_);
  norm_.AppendParameters(out);
}

}  // namespace megatron
