// Cross-attention: queries of a decoder's tokens, keys and values of its encoder's, attention of
// this rank's heads, one projection back.
//
// Each sequence of the decoder sees all of the encoder's sequence of the same number. The
// projection of the encoder is [k, v] for each head, as Megatron lays it out. Tensor-parallel ranks
// hold whole heads, context-parallel ranks tokens of both. Legend: T tokens of the decoder, U of
// the encoder (of this rank), H hidden, N heads of this rank, D head size.
#ifndef MEGATRON_LAYERS_CROSS_ATTENTION_H_
#define MEGATRON_LAYERS_CROSS_ATTENTION_H_

#include <string>
#include <vector>

#include "megatron/layers/attention_core.h"
#include "megatron/layers/parallel_linear.h"
#include "megatron/layers/transformer_options.h"

namespace megatron {

class CrossAttention {
 public:
  struct Saved {
    LinearSaved q, kv, proj;
    Tensor q_TND, kv_UN2D, context_TND;
    AttentionCore::Saved core;
  };

  // `name` is "decoder.layers.0.cross_attention", `layer` the layer's number in its stack.
  CrossAttention(const TransformerOptions& options, const std::string& name, int64_t layer,
                 const ProcessGroup& tensor_group);

  // Writes y without the output projection's bias. Reads ctx.encoder_UH.
  void Forward(const LayerContext& ctx, const Tensor& x_TH, const Tensor& y_TH, Saved* saved) const;
  // Writes dx and adds to ctx.encoder_gradient_UH. Reads saved->q.x_TI; dy must lie in ctx.kept().
  void Backward(const LayerContext& ctx, const Tensor& dy_TH, const Tensor& dx_TH, Saved* saved);
  void BackwardWeight(const LayerContext& ctx, Saved* saved);

  const RowParallelLinear& output() const { return proj_; }
  void AppendParameters(std::vector<Parameter*>* out);

 private:
  ops::AttentionInputs Inputs(const Tensor& q_TND, const Tensor& kv_UN2D) const;
  Tensor Flat(const Tensor& x_TND) const { return x_TND.View({x_TND.dim(0), heads_ * head_size_}); }
  Tensor WithGroups(const Tensor& x_TND) const {
    return x_TND.View({x_TND.dim(0), heads_, 1, head_size_});
  }
  // Fills saved->context and saved->core, allocated in `arena`.
  void Attend(const LayerContext& ctx, Arena* arena, Saved* saved) const;

  int64_t heads_, head_size_;
  bool recompute_;
  DType dtype_;
  AttentionCore core_;
  ColumnParallelLinear q_, kv_;
  RowParallelLinear proj_;
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_CROSS_ATTENTION_H_
