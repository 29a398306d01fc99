// Low-rank adapters of linear layers (E. Hu et al., "LoRA", arXiv 2106.09685): beside the product
// with a weight that is frozen, y = x Wᵀ, the products with two small matrices are trained,
//
//   y += alpha / dim · (x Aᵀ) Bᵀ,
//
// where A is [dim, I] and begins as in PEFT, uniform between ±1 / sqrt(I); B is [O, dim] and begins
// with zeros. Of tensor-parallel ranks each has the columns of A or the rows of B that belong to
// its part of W, and the other matrix whole; its output and its dx are then summands or columns as
// those of W are, so that the adapter sends nothing of its own in a pass. The gradient of the whole
// matrix is a summand.
//
// With dropout, A reads x with some of its elements dropped in training. An element's fate is that
// of its sample, place and column (ops/dropout.h), and so the same on any layout; x then has all of
// the micro-batch's tokens.
//
// Nothing is kept for backward: x Aᵀ is computed again.
//
// Legend: T tokens, I input features, O output features, both of this rank, R dim.
#ifndef MEGATRON_LAYERS_LOW_RANK_ADAPTER_H_
#define MEGATRON_LAYERS_LOW_RANK_ADAPTER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/layers/layer_context.h"
#include "megatron/layers/lora_options.h"
#include "megatron/ops/dropout.h"
#include "megatron/tensor/parameter.h"

namespace megatron {

// A parameter belongs to an adapter if its name has this part:
// "decoder.layers.0.mlp.linear_fc1.adapter.linear_in.weight" is A, linear_out B.
inline constexpr char kAdapterName[] = ".adapter.";

class LowRankAdapter {
 public:
  // `name` is that of the linear layer and `weight` the sharding of its weight, whose last dim has
  // the input features. `by_input`: ranks have parts of that dim, else of the others.
  LowRankAdapter(const LowRankOptions& options, const std::string& name, const Sharding& weight,
                 bool by_input);

  bool empty() const { return options_.dim == 0; }

  // y += the adapter's output of the same rows of x. Does nothing if the adapter is empty, as all
  // of these.
  void AddForward(const LayerContext& ctx, const Tensor& x_TI, const Tensor& y_TO) const;
  // dx += the gradient of x through the adapter.
  void AddBackwardInput(const LayerContext& ctx, const Tensor& dy_TO, const Tensor& dx_TI) const;
  // Adds the gradients of A and B.
  void BackwardWeight(const LayerContext& ctx, const Tensor& dy_TO, const Tensor& x_TI);

  void AppendParameters(std::vector<Parameter*>* out);

 private:
  Tensor b_OR() const;
  ops::Dropout DropoutOf(const LayerContext& ctx, const Tensor& x_TI) const;
  // Returns what A reads of x: x itself, or x with dropout in ctx.scratch.
  Tensor Dropped(const LayerContext& ctx, const Tensor& x_TI) const;
  // Return scale · x Aᵀ and scale · dy B, in ctx.scratch.
  Tensor Hidden(const LayerContext& ctx, const Tensor& x_TI) const;
  Tensor HiddenGradient(const LayerContext& ctx, const Tensor& dy_TO) const;

  LowRankOptions options_;
  uint64_t dropout_stream_ = 0;  // tells the random numbers of adapters apart
  Parameter a_, b_;
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_LOW_RANK_ADAPTER_H_
