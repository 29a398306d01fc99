// Attention in chunks of tokens, for layers that make queries, keys and values of a chunk on
// request (the order of J. Yao et al., "Fully Pipelined Distributed Transformer", arXiv
// 2408.16978).
//
// Forward makes one chunk after the other, and merges what its queries see of its own and of
// earlier chunks. Backward takes the chunks of keys in ascending order, with each of them the
// queries of its own and of later chunks; then the gradients of the chunk's queries, keys and
// values are complete, and go back to the layer. So what else belongs to these is there for one
// chunk. Weight gradients, to which each chunk adds its own, are not deferred: what they read is
// gone. With LayerContext::host_copies, tensors of all tokens lie in host memory, and chunks of
// them come and go beside computing.
//
// Chunks cut the rows of all tensor-parallel ranks. Of the layer's input, queries, keys and values
// of a chunk are those of a context-parallel rank's own rows (AttentionChunk::RowsOf).
//
// Legend: T tokens, C tokens of a chunk, H hidden, G groups of this rank, R query heads that it has
// of each, D size of a query and key head, E of a value head, W = D + E.
#ifndef MEGATRON_LAYERS_ATTENTION_IN_CHUNKS_H_
#define MEGATRON_LAYERS_ATTENTION_IN_CHUNKS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "megatron/layers/attention_core.h"
#include "megatron/layers/chunk_window.h"
#include "megatron/layers/layer_context.h"
#include "megatron/layers/parallel_linear.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

struct ChunkedHeads {
  int64_t chunk_tokens = 0;  // 0: attention is not in chunks
  int64_t groups = 0, heads_per_group = 0, head_size = 0, value_size = 0;  // this rank's sizes
  // Whether the output and its log-sum-exp are computed again in backward.
  bool recompute = false;
  DType dtype = DType::kFloat32;
};

class AttentionInChunks {
 public:
  struct Saved {
    Tensor q_TGRD, kv_TGW;  // those of all tokens
    Tensor context_TGRE, lse_TGR;
  };
  // Scores of the sinks of this rank's heads, and their gradients; empty if there are none.
  struct Sinks {
    Tensor sink_N, gradient_N;
  };
  // Writes the queries and keys of a chunk, and returns its values, perhaps in ctx.scratch.
  using Make = absl::FunctionRef<Tensor(const LayerContext& ctx, const AttentionChunk& chunk,
                                        const Tensor& q_CGRD, const Tensor& k_CGD)>;
  // The gradients of a chunk's queries, keys and values: tensors with any strides.
  struct Gradients {
    Tensor q_CGRD, k_CGD, v_CGE;
  };
  // Returns memory for them in ctx.scratch. The layer remembers what they are parts of.
  using Allocate =
      absl::FunctionRef<Gradients(const LayerContext& ctx, const AttentionChunk& chunk)>;
  // Gives the last ones back to the layer's input, and adds to the gradients of weights.
  using GiveBack = absl::FunctionRef<void(const LayerContext& ctx, const AttentionChunk& chunk)>;

  AttentionInChunks(const ChunkedHeads& heads, const AttentionCore& core)
      : heads_(heads), core_(core) {}

  bool is_on() const { return heads_.chunk_tokens > 0; }
  // Writes y, which `proj` makes of attention's output. The context that `make` gets is that of a
  // layer that reads all rows of its input.
  void Forward(const LayerContext& ctx, Make make, const Tensor& sink_N,
               const RowParallelLinear& proj, const Tensor& y_TH, Saved* saved) const;
  // What backward has of all tokens besides Saved, in ctx.scratch.
  struct OfAllTokens {
    std::vector<AttentionChunk> chunks;
    Tensor context_TGRE, lse_TGR;  // those of Saved, unless they are computed again
    Tensor dcontext_TGRE;
    Tensor dq_TGRD;  // fp32 sums
  };
  // Backward has two parts, between which a layer may take memory in ctx.scratch; the caller's
  // scope holds all of it. The first goes back through `proj`, and adds to the gradient of its
  // weight.
  OfAllTokens BackwardOutput(const LayerContext& ctx, const Tensor& dy_TH, const Tensor& sink_N,
                             RowParallelLinear* proj, const Saved& saved) const;
  // The second goes back to the layer, and adds to the gradients of the sinks. The functions get
  // the context of a layer that writes this rank's summands of all rows, and defers nothing.
  void BackwardHeads(const LayerContext& ctx, const OfAllTokens& all, Allocate allocate,
                     GiveBack give_back, const Sinks& sinks, const Saved& saved) const;

 private:
  Tensor KeysOf(const Tensor& kv_TGW) const { return kv_TGW.Slice(2, 0, heads_.head_size); }
  Tensor ValuesOf(const Tensor& kv_TGW) const {
    return kv_TGW.Slice(2, heads_.head_size, heads_.head_size + heads_.value_size);
  }
  // Returns the shape of what attention gives for these queries.
  Shape OutputShape(const Tensor& q_TGRD) const {
    return {q_TGRD.dim(0), q_TGRD.dim(1), q_TGRD.dim(2), heads_.value_size};
  }
  // Writes a chunk of the queries, keys and values: with context-parallel ranks, those of all
  // ranks' tokens and of this rank's share of the groups or, where keys are gathered, this rank's
  // queries and all ranks' keys and values, of all groups.
  void MakeChunk(const LayerContext& ctx, Make make, const AttentionChunk& chunk,
                 const Tensor& q_CGRD, const Tensor& kv_CGW) const;
  // Returns attention's output for this rank's rows of a chunk, and all of its heads: what is given
  // or, with context-parallel ranks, in ctx.scratch.
  Tensor OwnOutput(const LayerContext& ctx, const AttentionChunk& chunk,
                   const Tensor& context_CGRE) const;
  // Writes a chunk of what attention gives, from the chunk's queries, keys and values and, through
  // `earlier`, those of the chunks before. `core` is core_ or what is made of it.
  void AttendChunk(const LayerContext& ctx, const AttentionCore& core,
                   const std::vector<AttentionChunk>& chunks, size_t i, const Tensor& q_CGRD,
                   const Tensor& kv_CGW, const Tensor& sink_N, std::vector<ChunkWindow>* earlier,
                   const Tensor& context_CGRE, const Tensor& lse_CGR) const;
  // Writes the gradient of attention's output and, where these are computed again, the output and
  // its log-sum-exp.
  void ProjectOutputBack(const LayerContext& ctx, const Tensor& dy_TH, const Tensor& sink_N,
                         RowParallelLinear* proj, const Saved& saved, const OfAllTokens& all) const;

  ChunkedHeads heads_;
  AttentionCore core_;
};

// The context of a layer that reads all rows of its input and writes this rank's summands of all
// rows.
LayerContext OfAllRows(const LayerContext& ctx);

}  // namespace megatron

#endif  // MEGATRON_LAYERS_ATTENTION_IN_CHUNKS_H_
