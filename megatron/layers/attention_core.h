// The core of attention, between its projections: softmax attention of this rank's heads, for this
// rank's tokens, over the keys of all context-parallel ranks.
//
// Legend: T tokens of this rank, G groups of this rank, R query heads that it has of each, D width
// of a query and key head, E of a value head.
#ifndef MEGATRON_LAYERS_ATTENTION_CORE_H_
#define MEGATRON_LAYERS_ATTENTION_CORE_H_

#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "megatron/layers/context_attention.h"
#include "megatron/layers/layer_context.h"
#include "megatron/layers/transformer_options.h"
#include "megatron/ops/attention.h"

namespace megatron {

struct AttentionCoreOptions {
  int64_t layer = 0;       // number in the whole model, from 0; a key of dropout
  int64_t first_head = 0;  // this rank's first query head, counted over all ranks
  int64_t head_size = 0;
  float dropout = 0;
  bool causal = true;
  float scale = 0;          // factor of the scores; 0 means 1 / sqrt(head_size)
  float softcap = 0;        // ops::Attention::softcap
  int64_t window_size = 0;  // ops::Attention::window_size
  bool cross = false;       // the keys are those of the encoder's tokens
  // True if each rank gets all keys at once, where ranks form no teams (context_slice.h).
  bool gathers_keys = false;
  ops::AttentionKernels kernels;
};

// Some tokens of a chunk, and what they are of the micro-batch's sequences (ops/sequence_part.h).
struct AttentionChunkPart {
  Tensor cu_seqlens, place_T;
};

// Consecutive tokens of all ranks. Each of `ranks` context-parallel ranks has the same number of
// them, in stripes. Attention is that of all these tokens and of a rank's share of the groups.
// Where keys are gathered, it is that of a rank's own queries and all of its groups; the chunk of
// keys then has the ranks' rows one behind the other. Where a rank keeps its own keys, it gathers a
// chunk of them for each use.
struct AttentionChunk {
  int64_t begin = 0, end = 0;
  int ranks = 1;
  bool gathers_keys = false;
  bool keeps_own_keys = false;
  // One of all tokens, or where keys are gathered one of each rank's.
  absl::InlinedVector<AttentionChunkPart, 1> parts;
  int rank = 0;  // this one

  int64_t rows() const { return (end - begin) / ranks; }
  bool exchanges() const { return ranks > 1 && !gathers_keys; }
  // The chunk of a tensor of all ranks' tokens.
  Tensor Of(const Tensor& x_T) const { return x_T.Slice(0, begin, end); }
  // The chunk of a tensor of this rank's tokens.
  Tensor RowsOf(const Tensor& x_T) const { return x_T.Slice(0, begin / ranks, end / ranks); }
  // The chunk in tensors of queries, which has q_end() - q_begin() rows.
  int64_t q_begin() const { return gathers_keys ? begin / ranks : begin; }
  int64_t q_end() const { return gathers_keys ? end / ranks : end; }
  Tensor OfQueries(const Tensor& x_T) const { return x_T.Slice(0, q_begin(), q_end()); }
  // The chunk in tensors of keys that are kept, which has k_end() - k_begin() rows.
  int64_t k_begin() const { return keeps_own_keys ? begin / ranks : begin; }
  int64_t k_end() const { return keeps_own_keys ? end / ranks : end; }
  // The keys of a part in those of the chunk.
  Tensor PartOf(const Tensor& x_C, int part) const {
    return gathers_keys ? x_C.Slice(0, part * rows(), (part + 1) * rows()) : x_C;
  }
  int num_parts() const { return static_cast<int>(parts.size()); }
};

class AttentionCore {
 public:
  struct Saved {
    Tensor lse_TGR;
    AllToAllSaved all_to_all;  // set in place of lse_TGR where KeepsInputs() holds
  };

  explicit AttentionCore(const AttentionCoreOptions& options) : options_(options) {}

  // Returns whether Forward keeps what backward needs of `in`, so that the caller need not.
  bool KeepsInputs(const LayerContext& ctx) const;
  // Writes out. Allocates in `arena` what backward needs besides `in` and `out`.
  void Forward(const LayerContext& ctx, Arena* arena, const ops::AttentionInputs& in,
               const Tensor& out_TGRE, Saved* saved) const;
  // Adds the largest score of the pass to ctx.activations, which must be set: of all heads of this
  // rank, and of the keys that a query sees, with the bias; sinks do not count. Collective like
  // Forward.
  void MeasureScores(const LayerContext& ctx, const ops::AttentionInputs& in) const;
  // Writes the gradients of the inputs, from what Forward read and wrote.
  void Backward(const LayerContext& ctx, const ops::AttentionInputs& in, const Tensor& out_TGRE,
                const Tensor& dout_TGRE, const ops::AttentionInputs& gradients,
                const Saved& saved) const;

  // Returns the micro-batch's tokens in chunks of `tokens`, the last of which may be smaller, with
  // tensors in ctx.scratch. Context-parallel ranks have stripes of each chunk's tokens.
  std::vector<AttentionChunk> Chunks(const LayerContext& ctx, int64_t tokens) const;
  // Returns whether queries of one chunk may see keys of another, which is not a later one.
  bool MaySee(const AttentionChunk& queries, const AttentionChunk& keys) const {
    return options_.window_size == 0 || keys.end + options_.window_size > queries.begin;
  }
  // Does for queries of one chunk and keys of a part of another what Forward and Backward do for
  // all. out, the gradient of the queries (`first`: written, else added to) and those of the keys
  // (`first_queries`: written, else added to) are fp32. in.sink_N and its gradient are those of all
  // heads, and count with the first part where the chunks are the same.
  void ForwardChunk(const LayerContext& ctx, const AttentionChunk& queries,
                    const AttentionChunk& keys, int part, bool first,
                    const ops::AttentionInputs& in, const Tensor& out_TGRE,
                    const Tensor& lse_TGR) const;
  void BackwardChunk(const LayerContext& ctx, const AttentionChunk& queries,
                     const AttentionChunk& keys, int part, bool first, bool first_queries,
                     const ops::AttentionInputs& in, const Tensor& out_TGRE, const Tensor& lse_TGR,
                     const Tensor& dout_TGRE, const ops::AttentionInputs& gradients) const;
  // Does for the log-sum-exp of Sharp(ctx), of all queries, what MeasureScores does.
  void AddScores(const LayerContext& ctx, const Tensor& sharp_lse_TGR) const;
  // Returns the core whose log-sum-exp is the largest score times ActivationMeter::kSharpness.
  AttentionCore Sharp(const LayerContext& ctx) const;

 private:
  // The attention of `heads` heads of each context-parallel rank.
  ops::Attention OfChunks(const LayerContext& ctx, const AttentionChunk& queries,
                          const AttentionChunk& keys, int part, int64_t heads) const;
  // The sinks, or their gradient, of a rank's share of the heads; empty where they do not count.
  static Tensor SinksOfChunks(const LayerContext& ctx, const AttentionChunk& queries,
                              const AttentionChunk& keys, int part, const Tensor& sink_N);
  // The attention over all ranks' tokens.
  ops::Attention Whole(const LayerContext& ctx) const;
  ContextAttention OverRanks(const LayerContext& ctx) const;

  AttentionCoreOptions options_;
  bool measures_largest_scores_ = true;  // whether Forward raises LayerContext::largest_scores_LN
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_ATTENTION_CORE_H_
