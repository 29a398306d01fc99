// The feed-forward half of a transformer layer: fc1, activation or gate, fc2.
//
// What lies between fc1 and fc2 is several times as wide as the hidden states. It is computed *in
// chunks* of tokens where RecomputeOptions::mlp_chunk_tokens says so (the idea of TiledMLP of
// S. Bekman et al., "Arctic Long Sequence Training", arXiv 2506.13996): Forward keeps its input
// alone, and Backward computes that of each chunk again, in ascending order. No row of a product
// depends on the others, so that y and dx are the same; weight gradients, to which each chunk adds
// its own, are rounded differently. They are not deferred: what they read is gone.
//
// Legend: T tokens (of x and y: the rows of the residual stream on this rank), H hidden, I
// intermediate features of this rank.
#ifndef MEGATRON_LAYERS_MLP_H_
#define MEGATRON_LAYERS_MLP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "megatron/layers/parallel_linear.h"
#include "megatron/layers/transformer_options.h"

namespace megatron {

class Mlp {
 public:
  struct Saved {
    LinearSaved fc1, fc2;  // in chunks: fc1.x_TI alone
    Tensor pre_TI;         // fc1's output, [T, I] or gates and ups [T, 2I]
  };

  // `name` is "decoder.layers.0.mlp".
  // `input_outlives_forward`: x is there until the backward pass in any case, so that keeping codes
  // of it would take more memory.
  Mlp(const TransformerOptions& options, const std::string& name, const ProcessGroup& tensor_group,
      bool input_outlives_forward = false);

  // Writes y without fc2's bias.
  void Forward(const LayerContext& ctx, const Tensor& x_TH, const Tensor& y_TH, Saved* saved) const;
  // Forward in two parts of the same arguments, between which the caller may start to communicate:
  // what comes before fc2, and fc2. Where the activation is not kept for backward (in chunks, with
  // recomputation, as codes), it would take memory until the second part. Begin does all then.
  void BeginForward(const LayerContext& ctx, const Tensor& x_TH, const Tensor& y_TH,
                    Saved* saved) const;
  void EndForward(const LayerContext& ctx, const Tensor& y_TH, Saved* saved) const;
  // Writes dx. Reads saved->fc1.x_TI; dy must lie in ctx.kept().
  void Backward(const LayerContext& ctx, const Tensor& dy_TH, const Tensor& dx_TH, Saved* saved);
  void BackwardWeight(const LayerContext& ctx, Saved* saved);

  // Returns whether x need not outlive Forward.
  bool keeps_codes(const LayerContext& ctx) const { return fc1_.keeps_codes(ctx); }
  const RowParallelLinear& output() const { return fc2_; }
  void AppendParameters(std::vector<Parameter*>* out);

 private:
  // Returns whether Forward has two parts.
  bool HasTwoParts(const LayerContext& ctx) const {
    return chunk_ == 0 && !recompute_ && !fc2_.keeps_codes(ctx);
  }
  // Calls fn(begin, end) for the rows of each chunk of `rows` rows of the residual stream.
  void ForEachChunk(const LayerContext& ctx, int64_t rows,
                    absl::FunctionRef<void(int64_t begin, int64_t end)> fn) const;
  // Do what Forward and Backward say with all rows of their arguments. `arena` gets what lies
  // between fc1 and fc2; with `again`, it is not there and computed again.
  void ForwardRows(const LayerContext& ctx, const Tensor& x_TH, const Tensor& y_TH, Arena* arena,
                   Saved* saved) const;
  void BackwardRows(const LayerContext& ctx, const Tensor& dy_TH, const Tensor& dx_TH, bool again,
                    Saved* saved);
  void AddWeightGradients(const LayerContext& ctx, const Saved& saved);
  // Writes pre and returns the activated tensor, both allocated in `arena`, or the latter in
  // ctx.scratch where fc2 keeps its codes.
  Tensor ForwardToActivation(const LayerContext& ctx, const Tensor& x_TH, Arena* arena,
                             Saved* saved) const;

  bool gated_, recompute_;
  int64_t chunk_;  // RecomputeOptions::mlp_chunk_tokens
  ops::Activation activation_;
  ops::Gate gate_;
  DType dtype_;
  ColumnParallelLinear fc1_;
  RowParallelLinear fc2_;
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_MLP_H_
