// The mixer of a gated delta net (S. Yang et al., "Gated Delta Networks", arXiv 2412.06464), in
// place of self-attention:
//
//   [q | k | v | gate | beta | decay] = in_proj(input)
//   [q | k | v]                       = silu(conv1d([q | k | v]))   each channel by itself
//   y                                 = the recurrence of ops/gated_delta.h
//   output                            = out_proj(norm(y) silu(gate))   each value head by itself
//
// Nothing of one sequence reaches another. The projection is packed by groups of a key head and its
// value heads, so that tensor-parallel ranks hold whole groups; within a group the parts stand in
// Megatron's order. Context-parallel ranks share out the groups, and each has all tokens of its
// share (context_heads.h). Backward computes again the convolution, the norm and the states.
//
// With LayerContext::cached, Forward computes new tokens of sequences whose states are in a cache,
// which it brings up to date.
//
// Legend: T tokens, H hidden, G groups of this rank (of its share where tensors have all context
// ranks' tokens), R value heads of each, K width of a key head, E of a value head,
// S = 2 K + 2 R E + 2 R, C = 2 K + R E.
#ifndef MEGATRON_LAYERS_GATED_DELTA_NET_H_
#define MEGATRON_LAYERS_GATED_DELTA_NET_H_

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/layers/layer_context.h"
#include "megatron/layers/parallel_linear.h"
#include "megatron/layers/state_cache.h"
#include "megatron/layers/transformer_options.h"
#include "megatron/ops/causal_conv.h"
#include "megatron/ops/gated_delta.h"
#include "megatron/ops/gated_norm.h"
#include "megatron/tensor/parameter.h"

namespace megatron {

class GatedDeltaNet {
 public:
  struct Saved {
    LinearSaved in, out;
    Tensor packed_TGS, y_TGRE;  // those of the share
  };

  // `name` is "decoder.layers.0.self_attention", and `layer` its number in the whole model, which
  // is that of its states in a cache. The number of key heads is divisible by the number of
  // tensor-parallel ranks times that of context-parallel ranks, which must not be of the kind
  // kHierarchical. TransformerOptions::grid and float8 must be off.
  GatedDeltaNet(const TransformerOptions& options, const std::string& name, int64_t layer,
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
  int64_t values() const { return heads_ * value_; }
  int64_t convolved() const { return 2 * key_ + values(); }
  int64_t packed() const { return convolved() + values() + 2 * heads_; }
  // The parts of the packed projection.
  Tensor ConvInput(const Tensor& packed_TGS) const { return packed_TGS.Slice(2, 0, convolved()); }
  Tensor Gates(const Tensor& packed_TGS) const {
    return packed_TGS.Slice(2, convolved(), convolved() + values());
  }
  Tensor Betas(const Tensor& packed_TGS) const {
    return packed_TGS.Slice(2, convolved() + values(), packed() - heads_);
  }
  Tensor Decays(const Tensor& packed_TGS) const {
    return packed_TGS.Slice(2, packed() - heads_, packed());
  }
  ops::CausalConvInputs ConvInputs(const LayerContext& ctx, const Tensor& packed_TGS) const;
  ops::GatedDeltaInputs Inputs(const LayerContext& ctx, const Tensor& conv_TGC,
                               const Tensor& packed_TGS) const;
  ops::GatedNormInputs NormInputs(const Saved& saved) const;
  // Returns the convolution's output, in ctx.scratch. With a cache it replaces the last inputs
  // there.
  Tensor Convolve(const LayerContext& ctx, const Tensor& packed_TGS) const;
  // Returns the memory of the forward recurrence, in ctx.scratch.
  ops::GatedDeltaScratch Scratch(const LayerContext& ctx, const ops::GatedDeltaInputs& in) const;
  // Writes the recurrence's output. With a cache it replaces the states there.
  void Recur(const LayerContext& ctx, const ops::GatedDeltaInputs& in, const Tensor& y_TGRE) const;
  // Writes the input of the output projection.
  void Normalize(const LayerContext& ctx, const Saved& saved, const Tensor& normed_TGRE) const;
  // Does what lies between the two projections, for all tokens of the share: reads and overwrites
  // dnormed, and writes dpacked.
  void BackwardShare(const LayerContext& ctx, const Tensor& dnormed_TGRE, const Tensor& dpacked_TGS,
                     const Saved& saved);

  int64_t layer_;
  int64_t groups_, heads_, key_, value_;  // value heads of a group
  ops::GatedNorm norm_;
  DType dtype_;
  ColumnParallelLinear in_;
  RowParallelLinear out_;
  Parameter conv_weight_;         // [G, C, taps]
  Parameter decay_bias_, a_log_;  // [value heads]
  Parameter norm_weight_;         // [E], that of all heads
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_GATED_DELTA_NET_H_
