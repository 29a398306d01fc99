// The mixer of a Mamba-2 layer (T. Dao and A. Gu, "Transformers are SSMs", arXiv 2405.21060), in
// place of self-attention:
//
//   [z | x | B | C | step] = in_proj(input)
//   [x | B | C]            = silu(conv1d([x | B | C]))      each channel by itself
//   y                      = the recurrence of ops/state_space.h
//   output                 = out_proj(norm(y silu(z)))      each group of heads by itself, or all
//
// Nothing of one sequence reaches another. The projection is packed by groups of heads, each with
// its part of z, x, B, C and steps, so that tensor-parallel ranks hold whole groups; within a group
// the parts stand in Megatron's order. Context-parallel ranks share out the groups, and each has
// all tokens of its share (context_heads.h). Backward computes again the convolution, the norm and
// the states. With MambaOptions::norm_all_groups both kinds of ranks add up what a row's norm needs
// of each: a number of fp32 for each token, forward and backward.
//
// With LayerContext::cached, Forward computes new tokens of sequences whose states are in a cache,
// which it brings up to date.
//
// Legend: T tokens, H hidden, G groups of this rank (of its share where tensors have all context
// ranks' tokens), R heads of each, P channels of a head, N size of the state, S = 2 R P + 2 N + R,
// K = R P + 2 N.
#ifndef MEGATRON_LAYERS_MAMBA_MIXER_H_
#define MEGATRON_LAYERS_MAMBA_MIXER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/layers/layer_context.h"
#include "megatron/layers/parallel_linear.h"
#include "megatron/layers/state_cache.h"
#include "megatron/layers/transformer_options.h"
#include "megatron/ops/causal_conv.h"
#include "megatron/ops/gated_norm.h"
#include "megatron/ops/state_space.h"
#include "megatron/tensor/parameter.h"

namespace megatron {

class MambaMixer {
 public:
  struct Saved {
    LinearSaved in, out;
    Tensor packed_TGS, y_TGRP;  // those of the share
    Tensor squares_T;           // squares of whole rows; empty: each group has a norm
  };

  // `name` is "decoder.layers.0.mixer", and `layer` its number in the whole model, which is that of
  // its states in a cache. The number of groups is divisible by the number of
  // tensor-parallel ranks times that of context-parallel ranks, which must not be of the kind
  // kHierarchical. TransformerOptions::grid and float8 must be off.
  MambaMixer(const TransformerOptions& options, const std::string& name, int64_t layer,
             const ProcessGroup& tensor_group);

  // The shapes of a sequence's states on one of so many tensor-parallel ranks.
  static StateShapes ShapesOf(const TransformerOptions& options, int ranks);

  void Forward(const LayerContext& ctx, const Tensor& x_TH, const Tensor& y_TH, Saved* saved) const;
  // Writes dx, which may not be x. Reads saved->in.x_TI; dy must lie in ctx.kept().
  void Backward(const LayerContext& ctx, const Tensor& dy_TH, const Tensor& dx_TH, Saved* saved);
  void BackwardWeight(const LayerContext& ctx, Saved* saved);

  const RowParallelLinear& output() const { return out_; }
  void AppendParameters(std::vector<Parameter*>* out);

 private:
  // The parts of the packed projection or, of the convolution's output, those behind z.
  int64_t inner() const { return heads_ * channels_; }
  int64_t convolved() const { return inner() + 2 * state_; }
  Tensor Gates(const Tensor& packed_TGS) const { return packed_TGS.Slice(2, 0, inner()); }
  Tensor ConvInput(const Tensor& packed_TGS) const {
    return packed_TGS.Slice(2, inner(), inner() + convolved());
  }
  Tensor Steps(const Tensor& packed_TGS) const {
    return packed_TGS.Slice(2, inner() + convolved(), inner() + convolved() + heads_);
  }
  // The norm's gains, and their gradients, by groups.
  Tensor Gains(const Tensor& weight) const { return weight.View({groups_, inner()}); }
  // A tensor of all heads' channels, group by group.
  Tensor ByGroups(const Tensor& y_TGRP) const {
    return y_TGRP.View({y_TGRP.dim(0), y_TGRP.dim(1), inner()});
  }
  ops::CausalConvInputs ConvInputs(const LayerContext& ctx, const Tensor& packed_TGS) const;
  ops::StateSpaceInputs Inputs(const LayerContext& ctx, const Tensor& conv_TGK,
                               const Tensor& packed_TGS) const;
  ops::GatedNorm NormOf(const Saved& saved) const;
  ops::GatedNormInputs NormInputs(const LayerContext& ctx, const Saved& saved) const;
  // Adds up the sums of the ranks that have parts of the same rows.
  static void SumOverRanks(const LayerContext& ctx, const Tensor& sums_T);
  // Does the norm's backward: reads and overwrites dnormed, and writes the gates' part of dpacked.
  void BackwardNorm(const LayerContext& ctx, const Tensor& dnormed_TGI, const Tensor& dpacked_TGS,
                    const Saved& saved);
  // Returns the convolution's output, in ctx.scratch. With a cache it replaces the last inputs
  // there.
  Tensor Convolve(const LayerContext& ctx, const Tensor& packed_TGS) const;
  // Writes the recurrence's output. With a cache it replaces the states there.
  void Recur(const LayerContext& ctx, const ops::StateSpaceInputs& in, const Tensor& y_TGRP) const;
  // Writes the input of the output projection.
  void Normalize(const LayerContext& ctx, const Saved& saved, const Tensor& normed_TGI) const;
  // Does what lies between the two projections, for all tokens of the share: reads and overwrites
  // dnormed, and writes dpacked.
  void BackwardShare(const LayerContext& ctx, const Tensor& dnormed_TGI, const Tensor& dpacked_TGS,
                     const Saved& saved);

  int64_t layer_;
  int64_t groups_, heads_, channels_, state_;  // heads of a group
  ops::GatedNorm norm_;
  bool norm_all_groups_;
  DType dtype_;
  ColumnParallelLinear in_;
  RowParallelLinear out_;
  Parameter conv_weight_, conv_bias_;   // [G, K, taps], [G, K]
  Parameter step_bias_, a_log_, skip_;  // [heads]
  Parameter norm_weight_;               // [heads times channels]
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_MAMBA_MIXER_H_
