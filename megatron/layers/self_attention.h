// Self-attention: one projection to queries, keys and values, attention of this rank's heads, one
// projection back.
//
// The packed projection is [q of the group's R heads, k, v] for each group, as Megatron lays it
// out: its weight is [groups, R + 2, D, H], or [groups, R D + D + E, H] where values are not as
// wide as keys. With TransformerOptions::output_gate it is [groups, 2 R + 2, D, H]: behind a
// group's queries stand as many gates, and what a head gives is multiplied by the sigmoid of its
// gate. Tensor-parallel ranks hold whole groups; where there are more ranks than groups, several
// share one: each has some of its query heads, and all have its keys and values, of whose gradients
// each has a summand.
//
// Where RecomputeOptions::attention_chunk_tokens says so, all of it is computed in chunks of tokens
// (attention_in_chunks.h): what is packed, and what gradients of projections need, is there for one
// chunk.
//
// With LayerContext::cached, Forward computes new tokens of sequences whose keys and values are in
// a cache; not in chunks. Their bits are those of a pass over the whole sequences.
//
// Legend: T tokens, C tokens of a chunk, H hidden, G groups of this rank, R query heads that it has
// of each, D size of a query and key head, E of a value head, S = R D + D + E, W = D + E. With
// gates S = 2 R D + 2 D.
#ifndef MEGATRON_LAYERS_SELF_ATTENTION_H_
#define MEGATRON_LAYERS_SELF_ATTENTION_H_

#include <memory>
#include <string>
#include <vector>

#include "megatron/layers/attention_core.h"
#include "megatron/layers/attention_in_chunks.h"
#include "megatron/layers/norm_layer.h"
#include "megatron/layers/parallel_linear.h"
#include "megatron/layers/rotary.h"
#include "megatron/layers/transformer_options.h"

namespace megatron {

class SelfAttention {
 public:
  struct Saved {
    LinearSaved qkv, kv, proj;
    NormLayer::Saved q_norm, k_norm;
    Tensor qkv_TGS;  // rotated in place unless q and k are normalized
    // The tensors that attention read: views of qkv, or the normalized and rotated copies.
    Tensor q_TGRD, k_TGD;
    Tensor context_TGRE;
    AttentionCore::Saved core;
    AttentionInChunks::Saved chunks;  // in chunks, in place of the others but for qkv.x_TI
  };

  // `name` is "decoder.layers.0.self_attention", `layer` the layer's number in the whole model,
  // from 0.
  SelfAttention(const TransformerOptions& options, const std::string& name, int64_t layer,
                const ProcessGroup& tensor_group);

  // Writes y without the output projection's bias. `rotary` may be null.
  void Forward(const LayerContext& ctx, const RotaryTables* rotary, const Tensor& x_TH,
               const Tensor& y_TH, Saved* saved) const;
  // Writes dx, which may not be x. Reads saved->qkv.x_TI; dy must lie in ctx.kept().
  void Backward(const LayerContext& ctx, const RotaryTables* rotary, const Tensor& dy_TH,
                const Tensor& dx_TH, Saved* saved);
  void BackwardWeight(const LayerContext& ctx, Saved* saved);

  // Returns whether x need not outlive Forward.
  bool keeps_codes(const LayerContext& ctx) const { return qkv_.keeps_codes(ctx); }
  const RowParallelLinear& output() const { return proj_; }
  void AppendParameters(std::vector<Parameter*>* out);

 private:
  // The columns of the packed projection, or of its gradient, that qkv_ and kv_ write.
  Tensor Packed(const Tensor& qkv_TGS) const;
  Tensor OwnColumns(const Tensor& packed_TO) const;
  Tensor SharedColumns(const Tensor& packed_TO) const;
  Tensor Queries(const Tensor& qkv_TGS) const {
    return qkv_TGS.Slice(2, 0, heads_per_group_ * head_size_).SplitDim(2, head_size_);
  }
  Tensor Keys(const Tensor& qkv_TGS) const { return KeysOf(KeysAndValues(qkv_TGS)); }
  Tensor Values(const Tensor& qkv_TGS) const { return ValuesOf(KeysAndValues(qkv_TGS)); }
  Tensor KeysAndValues(const Tensor& qkv_TGS) const {
    return qkv_TGS.Slice(2, (heads_per_group_ + gates_per_group_) * head_size_, packed_size());
  }
  // The gates of each group's heads, [T, G, R D].
  Tensor Gates(const Tensor& qkv_TGS) const {
    const int64_t queries = heads_per_group_ * head_size_;
    return qkv_TGS.Slice(2, queries, queries + gates_per_group_ * head_size_);
  }
  bool has_gates() const { return gates_per_group_ > 0; }
  Tensor KeysOf(const Tensor& kv_TGW) const { return kv_TGW.Slice(2, 0, head_size_); }
  Tensor ValuesOf(const Tensor& kv_TGW) const {
    return kv_TGW.Slice(2, head_size_, head_size_ + value_size_);
  }
  int64_t packed_size() const {
    return (heads_per_group_ + gates_per_group_ + 1) * head_size_ + value_size_;
  }
  // Returns the shape of what attention gives for these queries.
  Shape OutputShape(const Tensor& q_TGRD) const {
    return {q_TGRD.dim(0), q_TGRD.dim(1), q_TGRD.dim(2), value_size_};
  }
  // Normalize this rank's query heads, or its key heads: each of them, or all of a token together.
  // Backward replaces d, their gradient, by that of what was normalized.
  void NormalizeHeads(const LayerContext& ctx, const NormLayer& norm, const Tensor& heads,
                      const Tensor& normed, NormLayer::Saved* saved) const;
  void NormalizeHeadsBack(const LayerContext& ctx, NormLayer* norm, const Tensor& d,
                          const NormLayer::Saved& saved) const;
  // Heads that are contiguous, as one row for each token, and a copy of other ones in ctx.scratch.
  static Tensor Joined(const Tensor& heads) {
    return heads.View({heads.dim(0), heads.numel() / heads.dim(0)});
  }
  Tensor JoinedHeads(const LayerContext& ctx, const Tensor& heads) const;
  // What attention reads: the tokens' own keys and values or, with a cache, all that it has.
  ops::AttentionInputs Inputs(const LayerContext& ctx, const Saved& saved) const;
  // Returns the gates and, behind them, what attention gave, of each token, in ctx.scratch:
  // [T, 2 G R D].
  Tensor GateOperands(const LayerContext& ctx, const Saved& saved) const;
  // Returns the input of the output projection, in `arena` where there are gates.
  Tensor Gated(const LayerContext& ctx, Arena* arena, const Saved& saved) const;
  // Replaces dcontext, the gradient of the output projection's input, by that of what attention
  // gave, and writes the gates' part of dqkv.
  void GateBack(const LayerContext& ctx, const Saved& saved, const Tensor& dcontext_TGRE,
                const Tensor& dqkv_TGS) const;
  // Puts the tokens' keys and values in the cache.
  void PutInCache(const LayerContext& ctx, const Saved& saved) const;
  // Scores of the sinks of this rank's heads, perhaps in ctx.scratch; empty if there are none.
  Tensor Sinks(const LayerContext& ctx) const;
  Tensor SinkGradients() const;
  void Rotate(const LayerContext& ctx, const RotaryTables* rotary, bool inverse,
              const Tensor& position_T, const Tensor& q_TGRD, const Tensor& k_TGD) const;
  // Fills saved->context and saved->core from the inputs, allocated in `arena`.
  // Allocates what it writes in one arena, and what else it keeps in the other.
  void Attend(const LayerContext& ctx, Arena* output, Arena* others, Saved* saved) const;

  // Forward and Backward in chunks.
  void ForwardInChunks(const LayerContext& ctx, const RotaryTables* rotary, const Tensor& x_TH,
                       const Tensor& y_TH, Saved* saved) const;
  void BackwardInChunks(const LayerContext& ctx, const RotaryTables* rotary, const Tensor& dy_TH,
                        const Tensor& dx_TH, Saved* saved);
  // Returns memory in ctx.scratch for a chunk of what is packed.
  Tensor AllocatePacked(const LayerContext& ctx, const AttentionChunk& chunk,
                        const char* name) const;
  // Returns the packed projection of a chunk, in ctx.scratch.
  Tensor ProjectChunk(const LayerContext& ctx, const AttentionChunk& chunk,
                      const Tensor& x_TH) const;
  // Writes the queries and keys of a chunk, and returns its values, in ctx.scratch.
  Tensor MakeChunk(const LayerContext& ctx, const RotaryTables* rotary, const AttentionChunk& chunk,
                   const Tensor& x_TH, const Tensor& q_CGRD, const Tensor& k_CGD) const;
  // Writes a chunk of dx from the packed gradients of the chunk's queries, keys and values, which
  // it rotates back in place, and adds the weights' gradients.
  void ProjectChunkBack(const LayerContext& ctx, const RotaryTables* rotary,
                        const AttentionChunk& chunk, const Tensor& dqkv_CGS, const Tensor& x_TH,
                        const Tensor& dx_TH);

  int64_t layer_;  // number in the whole model
  int64_t groups_, heads_per_group_, head_size_, value_size_;
  int64_t gates_per_group_;  // heads_per_group_ or 0
  bool recompute_, qk_norm_, qk_norm_all_heads_;
  bool rotates_, has_window_;
  AttentionSink sink_;
  DType dtype_;
  AttentionCore core_;
  AttentionInChunks in_chunks_;
  ColumnParallelLinear qkv_;                  // the queries alone where the group is shared
  std::unique_ptr<ColumnParallelLinear> kv_;  // keys and values of a shared group, else null
  RowParallelLinear proj_;
  NormLayer q_norm_, k_norm_;
  Parameter softmax_offset_;  // [heads], cut by heads; only with learned sinks
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_SELF_ATTENTION_H_
