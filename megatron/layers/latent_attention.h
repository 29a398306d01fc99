// Multi-head latent attention (DeepSeek-AI, "DeepSeek-V2", arXiv 2405.04434): self-attention whose
// queries, keys and values are made from small vectors of each token, its *latents*.
//
//   [q latent | kv latent | shared key] = x W_down     the shared key is rotated
//   q of head n  = [q own | q rotated] = norm(q latent) W_q,n
//   [k own | v] of head n              = norm(kv latent) W_kv,n
//   k of head n  = [k own | shared key]
//
// Without a q latent, queries are made from x. The norms are there where
// TransformerOptions::qk_norm says so. Only what is made from latents is cut over tensor-parallel
// ranks, by heads. Latents are those of this rank's rows of the residual stream, and travel in one
// message: gathered forward, and their gradients, which all ranks' heads have summands of, reduced
// backward.
//
// With LayerContext::cached, the cache has each token's kv latent and shared key, as one key of all
// heads whose value is the latent, and W_kv,n is *absorbed* in what is on either side of attention
// (section 2.1.2 there):
//
//   scores of head n = [q own W_k,n | q rotated] [kv latent | shared key]
//   output of head n = (sum of kv latents, weighted) W_v,n
//
// Without LatentOptions::caches_latents it has keys and values of all heads.
//
// Where RecomputeOptions::attention_chunk_tokens says so, heads are made, and attended to, in
// chunks of tokens (attention_in_chunks.h). Latents are made of all tokens at once, and heads are
// kept, whatever RecomputeOptions::latent_heads says. With LayerContext::cached there are no
// chunks.
//
// In FP8 the products from the residual stream to latents have scales of all ranks' rows.
// Norms, and the absorbed form, are in the layer's dtype.
//
// Legend: T tokens, or rows of the residual stream on this rank, H hidden, L latents and shared
// key, N heads of this rank, D size of a query and key head, E of a value head.
#ifndef MEGATRON_LAYERS_LATENT_ATTENTION_H_
#define MEGATRON_LAYERS_LATENT_ATTENTION_H_

#include <memory>
#include <string>
#include <vector>

#include "megatron/layers/attention_core.h"
#include "megatron/layers/attention_in_chunks.h"
#include "megatron/layers/linear_products.h"
#include "megatron/layers/norm_layer.h"
#include "megatron/layers/parallel_linear.h"
#include "megatron/layers/replicated_linear.h"
#include "megatron/layers/rotary.h"
#include "megatron/layers/transformer_options.h"

namespace megatron {

class LatentAttention {
 public:
  struct Saved {
    Tensor x_TH;
    Tensor latent_TL;  // what W_down gives
    Tensor normed_TL;  // the same normalized, with the shared key rotated; without norms latent_TL
    Tensor dlatent_TL;
    NormLayer::Saved q_norm, kv_norm;
    LinearProducts::Saved q_down, kv_down;
    LinearSaved q, kv, proj;
    Tensor q_TND, k_TND, kv_TNC;  // kv: each head's own key, then its value
    Tensor context_TGRE;
    AttentionCore::Saved core;
    AttentionInChunks::Saved chunks;  // in chunks, in place of the heads, the context and `core`
  };

  // `name` is "decoder.layers.0.self_attention", `layer` the layer's number in the whole model,
  // from 0.
  LatentAttention(const TransformerOptions& options, const std::string& name, int64_t layer,
                  const ProcessGroup& tensor_group);

  // Writes y without the output projection's bias. `rotary` may be null. x must live as long as
  // *saved, unless saved->x_TH is set to it again before Backward.
  void Forward(const LayerContext& ctx, const RotaryTables* rotary, const Tensor& x_TH,
               const Tensor& y_TH, Saved* saved) const;
  // Writes dx, which may not be x; dy must lie in ctx.kept().
  void Backward(const LayerContext& ctx, const RotaryTables* rotary, const Tensor& dy_TH,
                const Tensor& dx_TH, Saved* saved);
  void BackwardWeight(const LayerContext& ctx, Saved* saved);

  const RowParallelLinear& output() const { return proj_; }
  void AppendParameters(std::vector<Parameter*>* out);

 private:
  // The parts of a tensor [T, L].
  Tensor QueryLatent(const Tensor& x_TL) const { return x_TL.Slice(1, 0, q_rank_); }
  Tensor KeyLatent(const Tensor& x_TL) const { return x_TL.Slice(1, q_rank_, q_rank_ + kv_rank_); }
  Tensor SharedKey(const Tensor& x_TL) const { return x_TL.Slice(1, q_rank_ + kv_rank_, width()); }
  Tensor KeyLatentAndSharedKey(const Tensor& x_TL) const { return x_TL.Slice(1, q_rank_, width()); }
  int64_t width() const { return q_rank_ + kv_rank_ + rotated_size_; }
  // The part of queries [T, N, D] that is rotated.
  Tensor RotatedPart(const Tensor& q_TND) const {
    return q_TND.Slice(2, own_size_, own_size_ + rotated_size_);
  }
  // The parts of a tensor [T, N, own key and value].
  Tensor OwnKeys(const Tensor& kv_TNC) const { return kv_TNC.Slice(2, 0, own_size_); }
  Tensor Values(const Tensor& kv_TNC) const {
    return kv_TNC.Slice(2, own_size_, own_size_ + value_size_);
  }
  // Whether backward reads the heads that Forward made.
  bool ReadsHeads(const LayerContext& ctx) const {
    return recompute_core_ || !core_.KeepsInputs(ctx);
  }
  // The context of layers that read all rows.
  static LayerContext WithAllRows(const LayerContext& ctx);
  void Rotate(const LayerContext& ctx, const RotaryTables* rotary, bool inverse,
              const Tensor& position_T, const Tensor& x) const;
  // Makes q, at these positions, from x and the queries' latents.
  void MakeQueries(const LayerContext& ctx, const RotaryTables* rotary, const Tensor& position_T,
                   const Tensor& x_TH, const Tensor& all_TL, const Tensor& q_TND,
                   LinearSaved* saved) const;
  // Makes k and kv from the other latents.
  void MakeKeys(const LayerContext& ctx, const Tensor& all_TL, const Tensor& k_TND,
                const Tensor& kv_TNC, LinearSaved* saved) const;
  // Makes q, k and kv from x and from all rows of the normalized latents, in `arena`.
  void MakeHeads(const LayerContext& ctx, Arena* arena, const RotaryTables* rotary,
                 const Tensor& x_TH, const Tensor& all_TL, Saved* saved) const;
  ops::AttentionInputs Inputs(const LayerContext& ctx, const Saved& saved) const;
  void PutInCache(const LayerContext& ctx, const Saved& saved) const;
  // Does what MakeHeads, PutInCache and Attend do, in the absorbed form.
  void AttendToLatents(const LayerContext& ctx, const RotaryTables* rotary, const Tensor& x_TH,
                       const Tensor& all_TL, Saved* saved) const;
  // Fills saved->context and saved->core from the inputs, allocated in `arena`.
  // Allocates what it writes in one arena, and what else it keeps in the other.
  void Attend(const LayerContext& ctx, Arena* output, Arena* others, Saved* saved) const;
  // The gradients of heads. Those of queries and keys are with their rotated parts.
  struct HeadGradients {
    Tensor dq_TND, dk_TND, dkv_TNC;
  };
  // Writes this rank's summands of the gradients of the latents that all_TL has rows of. Without a
  // q latent it starts to write dx, too. Puts into *q and *kv what AddHeadGradients reads.
  AsyncCall HeadsBack(const LayerContext& ctx, const RotaryTables* rotary, const Tensor& position_T,
                      const HeadGradients& gradients, const Tensor& x_TH, const Tensor& all_TL,
                      const Tensor& dx_TH, const Tensor& summand_TL, LinearSaved* q,
                      LinearSaved* kv) const;
  // Adds the gradients of the projections to heads.
  void AddHeadGradients(const LayerContext& ctx, const LinearSaved& q, const LinearSaved& kv);
  // Writes the gradient of the latents in front of their norms, and dx or what is still missing of
  // it, from that of the normalized latents, which it turns back.
  void LatentsBack(const LayerContext& ctx, const RotaryTables* rotary, const Tensor& dnormed_TL,
                   const Tensor& dx_TH, Saved* saved);
  // Forward from the latents on, and Backward, in chunks. `x_TH` has this rank's rows.
  void ForwardInChunks(const LayerContext& ctx, const RotaryTables* rotary, const Tensor& x_TH,
                       const Tensor& y_TH, Saved* saved) const;
  void BackwardInChunks(const LayerContext& ctx, const RotaryTables* rotary, const Tensor& dy_TH,
                        const Tensor& dx_TH, Saved* saved);

  int64_t layer_;  // number in the whole model
  int64_t heads_, own_size_, rotated_size_, value_size_, q_rank_, kv_rank_;
  bool recompute_core_, recompute_heads_, has_norms_, rotates_, has_window_, caches_latents_;
  DType dtype_;
  AttentionCore core_;
  AttentionInChunks in_chunks_;
  std::unique_ptr<ReplicatedLinear> q_down_;  // null without a q latent
  ReplicatedLinear kv_down_;
  std::unique_ptr<NormLayer> q_norm_, kv_norm_;  // may be null
  ColumnParallelLinear q_, kv_;
  RowParallelLinear proj_;
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_LATENT_ATTENTION_H_
