#include "megatron/layers/attention_core.h"

#include <algorithm>
#include <cmath>

#include "megatron/layers/activation_meter.h"
#include "megatron/layers/context_slice.h"
#include "megatron/layers/dropout_site.h"
#include "megatron/layers/kv_cache.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/sequence_part.h"
#include "megatron/tensor/trace/trace.h"

namespace megatron {

ops::Attention AttentionCore::Whole(const LayerContext& ctx) const {
  ops::Attention attention;
  attention.kernels = options_.kernels;
  attention.scale = options_.scale != 0 ? options_.scale
                                        : 1.0f / std::sqrt(static_cast<float>(options_.head_size));
  attention.softcap = options_.softcap;
  attention.causal = options_.causal;
  attention.window_size = options_.window_size;
  const MicroBatch& batch = ctx.inner_batch();
  attention.cu_seqlens_q = batch.cu_seqlens;
  attention.cu_seqlens_k = options_.cross ? batch.encoder.cu_seqlens : batch.cu_seqlens;
  attention.max_seqlen_q = batch.max_seqlen;
  attention.max_seqlen_k = options_.cross ? batch.encoder.max_seqlen : batch.max_seqlen;
  if (ctx.cached != nullptr && !options_.cross) {
    const KvCache& cache = *ctx.cached->cache;
    attention.cu_seqlens_k = cache.cu_seqlens();
    attention.max_seqlen_k = cache.capacity();
    attention.place_q_T = batch.position_T;
    attention.place_k_U = cache.position_U();
  }
  attention.dropout = DropoutAt(ctx, options_.dropout, options_.layer,
                                options_.cross ? DropoutSite::kCrossAttentionProbabilities
                                               : DropoutSite::kAttentionProbabilities);
  attention.dropout.first_column = options_.first_head;
  if (ctx.largest_scores_LN && measures_largest_scores_ && !options_.cross)
    attention.largest_scores_N = ctx.largest_scores_LN.Select(0, options_.layer);
  return attention;
}

ContextAttention AttentionCore::OverRanks(const LayerContext& ctx) const {
  const MicroBatch& batch = ctx.inner_batch();
  return {Whole(ctx), &batch.context, options_.cross ? &batch.encoder.context : &batch.context};
}

bool AttentionCore::KeepsInputs(const LayerContext& ctx) const {
  return ctx.context_group.size() > 1 && ctx.batch->context.team_size > 1;
}

void AttentionCore::Forward(const LayerContext& ctx, Arena* arena, const ops::AttentionInputs& in,
                            const Tensor& out_TGRE, Saved* saved) const {
  const TraceSpan span(ctx.stream, "core attention");
  if (KeepsInputs(ctx)) {
    return AllToAllAttentionForward(ctx, arena, OverRanks(ctx), in, out_TGRE, &saved->all_to_all);
  }
  const Shape& shape = in.q_TGRD.shape();
  saved->lse_TGR =
      arena->Allocate(DType::kFloat32, {shape[0], shape[1], shape[2]}, "attention log-sum-exp");
  if (ctx.context_group.size() == 1) {
    ops::AttentionForward(ctx.stream, Whole(ctx), in, out_TGRE, saved->lse_TGR);
  } else if (options_.gathers_keys) {
    GatherAttentionForward(ctx, OverRanks(ctx), in, out_TGRE, saved->lse_TGR);
  } else {
    RingAttentionForward(ctx, OverRanks(ctx), in, out_TGRE, saved->lse_TGR);
  }
}

std::vector<AttentionChunk> AttentionCore::Chunks(const LayerContext& ctx, int64_t tokens) const {
  const int ranks = ctx.context_group.size();
  const ContextBatch& context = ctx.batch->context;
  const int64_t end = ctx.batch->num_tokens() * ranks;
  if (ranks > 1) CHECK_EQ(tokens % (ranks * kContextStripe), 0) << tokens << " tokens of a chunk";
  const bool gathers = ranks > 1 && context.team_size == 1;
  CHECK(ranks == 1 || gathers || context.team_size == ranks);
  std::vector<AttentionChunk> chunks;
  for (int64_t begin = 0; begin < end; begin += tokens) {
    AttentionChunk chunk;
    chunk.begin = begin;
    chunk.end = std::min(begin + tokens, end);
    chunk.ranks = ranks;
    chunk.gathers_keys = gathers;
    chunk.keeps_own_keys = gathers && !options_.gathers_keys;
    chunk.rank = ctx.context_group.rank();
    for (int rank = 0; rank < (gathers ? ranks : 1); ++rank) {
      // The sequences among the tokens of a rank, or of all.
      const Tensor cu_seqlens =
          gathers ? context.cu_seqlens.Select(0, rank) : ctx.batch->cu_seqlens;
      AttentionChunkPart part;
      part.cu_seqlens =
          ctx.scratch->Allocate(DType::kInt32, cu_seqlens.shape(), "sequences of chunks");
      part.place_T = ctx.scratch->Allocate(DType::kInt32, {chunk.q_end() - chunk.q_begin()},
                                           "places in chunks");
      ops::PartOfSequences(ctx.stream, cu_seqlens, chunk.q_begin(), chunk.q_end(), part.cu_seqlens,
                           part.place_T);
      // A rank's tokens are not all of a sequence.
      if (gathers) part.place_T = chunk.OfQueries(context.place_CT.Select(0, rank));
      chunk.parts.push_back(part);
    }
    chunks.push_back(chunk);
  }
  return chunks;
}

ops::Attention AttentionCore::OfChunks(const LayerContext& ctx, const AttentionChunk& queries,
                                       const AttentionChunk& keys, int part, int64_t heads) const {
  ops::Attention attention = Whole(ctx);
  const AttentionChunkPart& of_queries = queries.parts[queries.gathers_keys ? queries.rank : 0];
  attention.place_q_T = of_queries.place_T;
  attention.place_k_U = keys.parts[part].place_T;
  attention.cu_seqlens_q = of_queries.cu_seqlens;
  attention.cu_seqlens_k = keys.parts[part].cu_seqlens;
  attention.max_seqlen_q = std::min(attention.max_seqlen_q, of_queries.place_T.numel());
  attention.max_seqlen_k = std::min(attention.max_seqlen_k, attention.place_k_U.numel());
  ops::Dropout& dropout = attention.dropout;
  if (queries.exchanges()) dropout.first_column += ctx.context_group.rank() * heads;
  if (dropout.probability == 0) return attention;
  if (queries.exchanges()) {
    dropout.sample_T = ctx.batch->context.sample_T;
    dropout.position_T = ctx.batch->context.sample_position_T;
  }
  dropout.sample_T = queries.OfQueries(dropout.sample_T);
  dropout.position_T = queries.OfQueries(dropout.position_T);
  return attention;
}

Tensor AttentionCore::SinksOfChunks(const LayerContext& ctx, const AttentionChunk& queries,
                                    const AttentionChunk& keys, int part, const Tensor& sink_N) {
  if (!sink_N || queries.begin != keys.begin || part > 0) return Tensor();
  if (!queries.exchanges()) return sink_N;
  const int64_t heads = sink_N.numel() / queries.ranks;
  const int64_t first = ctx.context_group.rank() * heads;
  return sink_N.Slice(0, first, first + heads);
}

void AttentionCore::ForwardChunk(const LayerContext& ctx, const AttentionChunk& queries,
                                 const AttentionChunk& keys, int part, bool first,
                                 const ops::AttentionInputs& in, const Tensor& out_TGRE,
                                 const Tensor& lse_TGR) const {
  const TraceSpan span(ctx.stream, "core attention");
  ops::Attention attention =
      OfChunks(ctx, queries, keys, part, in.q_TGRD.dim(1) * in.q_TGRD.dim(2));
  attention.add_to_queries = !first;
  ops::AttentionInputs inputs = in;
  inputs.sink_N = SinksOfChunks(ctx, queries, keys, part, in.sink_N);
  ops::AttentionForward(ctx.stream, attention, inputs, out_TGRE, lse_TGR);
}

void AttentionCore::BackwardChunk(const LayerContext& ctx, const AttentionChunk& queries,
                                  const AttentionChunk& keys, int part, bool first,
                                  bool first_queries, const ops::AttentionInputs& in,
                                  const Tensor& out_TGRE, const Tensor& lse_TGR,
                                  const Tensor& dout_TGRE,
                                  const ops::AttentionInputs& gradients) const {
  const TraceSpan span(ctx.stream, "core attention");
  ops::Attention attention =
      OfChunks(ctx, queries, keys, part, in.q_TGRD.dim(1) * in.q_TGRD.dim(2));
  attention.add_to_queries = !first;
  attention.add_to_keys = !first_queries;
  ops::AttentionInputs inputs = in, outputs = gradients;
  inputs.sink_N = SinksOfChunks(ctx, queries, keys, part, in.sink_N);
  outputs.sink_N = SinksOfChunks(ctx, queries, keys, part, gradients.sink_N);
  ops::AttentionBackward(ctx.stream, attention, inputs, out_TGRE, lse_TGR, dout_TGRE, outputs);
}

AttentionCore AttentionCore::Sharp(const LayerContext& ctx) const {
  AttentionCore sharp(*this);
  sharp.options_.scale = ActivationMeter::kSharpness * Whole(ctx).scale;
  sharp.options_.softcap = ActivationMeter::kSharpness * options_.softcap;
  sharp.options_.dropout = 0;
  sharp.options_.kernels = {};
  sharp.measures_largest_scores_ = false;
  return sharp;
}

// Attention itself is computed a second time, with sharper scores: this needs no kernel of its own,
// and holds wherever the keys are.
void AttentionCore::MeasureScores(const LayerContext& ctx, const ops::AttentionInputs& in) const {
  const TraceSpan span(ctx.stream, "attention scores");
  Arena::Scope scope(ctx.scratch);
  const AttentionCore sharp = Sharp(ctx);
  ops::AttentionInputs inputs = in;
  inputs.sink_N = Tensor();
  if (in.bias_WN) {
    inputs.bias_WN =
        ctx.scratch->Allocate(DType::kFloat32, in.bias_WN.shape(), "relative positions");
    ops::Copy(ctx.stream, in.bias_WN, inputs.bias_WN);
    ops::Scale(ctx.stream, ActivationMeter::kSharpness, inputs.bias_WN);
  }
  Shape out_shape = in.q_TGRD.shape();
  out_shape[3] = in.v_UGE.dim(2);
  const Tensor out_TGRE = ctx.scratch->Allocate(in.q_TGRD.dtype(), out_shape, "attention output");
  Saved saved;
  sharp.Forward(ctx, ctx.scratch, inputs, out_TGRE, &saved);
  AddScores(ctx, KeepsInputs(ctx) ? saved.all_to_all.lse_TGR : saved.lse_TGR);
}

void AttentionCore::AddScores(const LayerContext& ctx, const Tensor& sharp_lse_TGR) const {
  ctx.activations->AddScores(ctx.stream, options_.layer, sharp_lse_TGR);
}

void AttentionCore::Backward(const LayerContext& ctx, const ops::AttentionInputs& in,
                             const Tensor& out_TGRE, const Tensor& dout_TGRE,
                             const ops::AttentionInputs& gradients, const Saved& saved) const {
  const TraceSpan span(ctx.stream, "core attention");
  if (KeepsInputs(ctx)) {
    AllToAllAttentionBackward(ctx, OverRanks(ctx), saved.all_to_all, in.sink_N, dout_TGRE,
                              gradients);
  } else if (ctx.context_group.size() == 1) {
    ops::AttentionBackward(ctx.stream, Whole(ctx), in, out_TGRE, saved.lse_TGR, dout_TGRE,
                           gradients);
  } else if (options_.gathers_keys) {
    GatherAttentionBackward(ctx, OverRanks(ctx), in, out_TGRE, saved.lse_TGR, dout_TGRE, gradients);
  } else {
    RingAttentionBackward(ctx, OverRanks(ctx), in, out_TGRE, saved.lse_TGR, dout_TGRE, gradients);
  }
}

}  // namespace megatron
