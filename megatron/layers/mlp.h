// The feed-forward half of a transformer layer: fc1, activation or gate, fc2.
#ifndef MEGATRON_LAYERS_MLP_H_
#define MEGATRON_LAYERS_MLP_H_

#include <string>
#include <vector>

#include "megatron/layers/parallel_linear.h"
#include "megatron/layers/transformer_options.h"

namespace megatron {

class Mlp {
 public:
  struct Saved {
    LinearSaved fc1, fc2;
    Tensor pre_TI;  // fc1's output, [T, I] or gates and ups [T, 2I]
  };

  // `name` is "decoder.layers.0.mlp".
  // `input_outlives_forward`: x is there until the backward pass in any case, so that keeping codes
  // of it would take more memory.
  Mlp(const TransformerOptions& options, const std::string& name, const ProcessGroup& tensor_group,
      bool input_outlives_forward = false);

  // Writes y without fc2's bias.
  void Forward(const LayerContext& ctx, const Tensor& x_TH, const Tensor& y_TH, Saved* saved) const;
  // Writes dx. Reads saved->fc1.x_TI; dy must lie in ctx.kept().
  void Backward(const LayerContext& ctx, const Tensor& dy_TH, const Tensor& dx_TH, Saved* saved);
  void BackwardWeight(const LayerContext& ctx, Saved* saved);

  // Returns whether x need not outlive Forward.
  bool keeps_codes(const LayerContext& ctx) const { return fc1_.keeps_codes(ctx); }
  const RowParallelLinear& output() const { return fc2_; }
  void AppendParameters(std::vector<Parameter*>* out);

 private:
  // Writes pre and returns the activated tensor, both allocated in `arena`, or the latter in
  // ctx.scratch where fc2 keeps its codes.
  Tensor ForwardToActivation(const LayerContext& ctx, const Tensor& x_TH, Arena* arena,
                             Saved* saved) const;

  bool gated_, recompute_;
  ops::Activation activation_, gate_;
  DType dtype_;
  ColumnParallelLinear fc1_;
  RowParallelLinear fc2_;
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_MLP_H_
