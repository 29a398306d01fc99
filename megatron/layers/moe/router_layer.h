// The router of one layer: a linear layer from a token's row to a logit for each expert, in fp32
// whatever the model's dtype is, the choice, and the losses that balance it.
//
// Legend: N rows of the residual stream that this rank routes, S samples of the micro-batch, H
// hidden, E experts, K experts a token.
#ifndef MEGATRON_LAYERS_MOE_ROUTER_LAYER_H_
#define MEGATRON_LAYERS_MOE_ROUTER_LAYER_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "megatron/layers/layer_context.h"
#include "megatron/layers/moe/moe_options.h"
#include "megatron/layers/moe/routed_rows.h"
#include "megatron/layers/moe/router_state.h"
#include "megatron/layers/transformer_options.h"
#include "megatron/ops/moe/router.h"
#include "megatron/tensor/parameter.h"

namespace megatron {

class RouterLayer {
 public:
  struct Saved {
    Tensor x_NH;
    Tensor logits_NE;
    Tensor expert_NK;       // the choices that are sent; -1 where one was dropped
    Tensor chosen_NK;       // the choices before drops
    Tensor probability_NK;  // the probabilities of the choices
  };

  // `name` is "decoder.layers.0.mlp.router".
  RouterLayer(const TransformerOptions& options, const std::string& name, int64_t layer,
              const ProcessGroup& tensor_group, const ProcessGroup& data_group);

  const std::string& name() const { return name_; }
  // A function that is called with what each Forward decided and the biases that it used ([E], or
  // with sinkhorn [samples, E]). Tests see by it how near a decision was.
  using Observer = std::function<void(const Saved& saved, const Tensor& bias)>;
  void set_observer(Observer observer) { observer_ = std::move(observer); }
  void set_state(const RouterState::Layer& state) { state_ = state; }

  // Where no backward follows in training, it adds to the sums of the state.
  void Forward(const LayerContext& ctx, const Tensor& x_NH, Saved* saved) const;
  // Adds to dx, from the probabilities' gradients and the losses, to the weight's gradient and to
  // the sums of the state.
  void Backward(const LayerContext& ctx, const Tensor& dprobability_NK, const Tensor& dx_NH,
                const Saved& saved);

  void AppendParameters(std::vector<Parameter*>* out) {
    out->push_back(&weight_);
    if (has_bias()) out->push_back(&bias_);
  }

 private:
  struct Losses {
    ops::RouterLosses terms;
    // The factors that turn the sums of `terms` into the losses, times samples.
    double balance_factor = 0, z_factor = 0;
  };

  bool has_bias() const { return !bias_.name.empty(); }
  void CountLoad(const LayerContext& ctx, const Saved& saved) const;
  void CountMargins(const LayerContext& ctx, const Saved& saved) const;
  // Returns x in fp32: x itself, or a copy in scratch memory.
  Tensor InFloat(const LayerContext& ctx, const Tensor& x) const;
  // Returns the tensor that is multiplied with the weight.
  Tensor Input(const LayerContext& ctx, const Tensor& x_NH) const;
  bool jitters(const LayerContext& ctx) const {
    return ctx.training && options_.input_jitter_eps > 0;
  }
  void Jitter(const LayerContext& ctx, const Tensor& x_NH, const Tensor& out_NH) const;
  // Returns the biases by sample, in scratch memory.
  Tensor ChooseBalanced(const LayerContext& ctx, const Saved& saved) const;
  void Drop(const LayerContext& ctx, const Saved& saved) const;
  // The units of this rank's rows: samples, or groups of consecutive ones.
  static ops::RouterUnits Units(const LayerContext& ctx, int64_t samples_of_unit);
  // Writes counts[u, e], the choices of all of a unit's tokens, whatever rank holds them.
  void CountUnits(const LayerContext& ctx, BalanceUnit unit, const Tensor& expert_NK,
                  const ops::RouterUnits& units, const Tensor& counts_UE) const;
  // Returns the choices that balance losses count: those without biases and groups.
  Tensor UnbiasedChoices(const LayerContext& ctx, const Saved& saved) const;
  // The terms of one balance loss; `expert_NK` are the unbiased choices.
  Losses FindLosses(const LayerContext& ctx, const BalanceLoss& loss,
                    const Tensor& expert_NK) const;
  // Writes dlogits, from the probabilities' gradients and the losses, and adds to the sums of the
  // state.
  void AddLosses(const LayerContext& ctx, const Tensor& dprobability_NK, const Saved& saved,
                 const Tensor& dlogits_NE) const;
  // Adds what balance losses but the first add to dlogits and to the sums of the state.
  void AddFurtherLosses(const LayerContext& ctx, const Saved& saved, const Tensor& expert_NK,
                        const Tensor& dlogits_NE) const;

  MoeOptions options_;
  std::string name_;
  int64_t layer_;
  ProcessGroup data_group_;
  DType dtype_;
  Parameter weight_;
  Parameter bias_;  // has no name if there is none
  RouterState::Layer state_;
  Observer observer_;
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_MOE_ROUTER_LAYER_H_
