// Self-attention in chunks of tokens.
#include "glog/logging.h"
#include "megatron/layers/self_attention.h"
#include "megatron/ops/dropout.h"
#include "megatron/ops/elementwise.h"

namespace megatron {
namespace {

Tensor KeysOf(const Tensor& kv_C2GD) { return kv_C2GD.Select(1, 0); }
Tensor ValuesOf(const Tensor& kv_C2GD) { return kv_C2GD.Select(1, 1); }

// [C, G, R, D] as the rows that the output projection reads.
Tensor Rows(const Tensor& x_CGRD) {
  return x_CGRD.View({x_CGRD.dim(0), x_CGRD.numel() / x_CGRD.dim(0)});
}

}  // namespace

Tensor SelfAttention::ProjectChunk(const LayerContext& ctx, const AttentionChunk& chunk,
                                   const Tensor& x_TH) const {
  const Tensor qkv_CGSD = ctx.scratch->Allocate(
      dtype_, {chunk.end - chunk.begin, groups_, heads_per_group_ + 2, head_size_},
      "attention qkv");
  LinearSaved forgotten;
  qkv_.Forward(ctx, chunk.Of(x_TH), OwnColumns(Packed(qkv_CGSD)), &forgotten);
  if (kv_ != nullptr)
    kv_->Forward(ctx, chunk.Of(x_TH), SharedColumns(Packed(qkv_CGSD)), &forgotten);
  return qkv_CGSD;
}

void SelfAttention::MakeChunk(const LayerContext& ctx, const RotaryTables* rotary,
                              const AttentionChunk& chunk, const Tensor& x_TH, const Tensor& q_CGRD,
                              const Tensor& kv_C2GD) const {
  Arena::Scope scope(ctx.scratch);
  const Tensor qkv_CGSD = ProjectChunk(ctx, chunk, x_TH);
  const Tensor k_CGD = KeysOf(kv_C2GD);
  if (qk_norm_) {
    LayerContext forgetting = ctx;
    forgetting.saved = ctx.scratch;
    NormLayer::Saved forgotten;
    q_norm_.Forward(forgetting, Queries(qkv_CGSD), q_CGRD, &forgotten);
    k_norm_.Forward(forgetting, Keys(qkv_CGSD), k_CGD, &forgotten);
  } else {
    ops::Copy(ctx.stream, Queries(qkv_CGSD), q_CGRD);
    ops::Copy(ctx.stream, Keys(qkv_CGSD), k_CGD);
  }
  ops::Copy(ctx.stream, Values(qkv_CGSD), ValuesOf(kv_C2GD));
  Rotate(ctx, rotary, /*inverse=*/false, chunk.Of(ctx.batch->position_T), q_CGRD, k_CGD);
}

void SelfAttention::AttendChunk(const LayerContext& ctx, const AttentionCore& core,
                                const std::vector<AttentionChunk>& chunks, size_t i,
                                const Saved& saved, const Tensor& context_CGRD,
                                const Tensor& lse_CGR) const {
  Arena::Scope scope(ctx.scratch);
  const Tensor sum_CGRD =
      dtype_ == DType::kFloat32
          ? context_CGRD
          : ctx.scratch->Allocate(DType::kFloat32, context_CGRD.shape(), "attention sum");
  const auto attend = [&](size_t j, bool first) {
    const Tensor kv_C2GD = chunks[j].Of(saved.kv_T2GD);
    core.ForwardChunk(ctx, chunks[i], chunks[j], first,
                      {chunks[i].Of(saved.q_TGRD), KeysOf(kv_C2GD), ValuesOf(kv_C2GD), Tensor()},
                      sum_CGRD, lse_CGR);
  };
  attend(i, /*first=*/true);
  for (size_t j = 0; j < i; ++j) attend(j, /*first=*/false);
  if (dtype_ != DType::kFloat32) ops::Copy(ctx.stream, sum_CGRD, context_CGRD);
}

void SelfAttention::ForwardInChunks(const LayerContext& ctx, const RotaryTables* rotary,
                                    const Tensor& x_TH, const Tensor& y_TH, Saved* saved) const {
  Arena::Scope scope(ctx.scratch);
  const std::vector<AttentionChunk> chunks = AttentionCore::Chunks(ctx, chunk_);
  const int64_t tokens = ctx.batch->num_tokens();
  const Shape lse_shape{tokens, groups_, heads_per_group_};
  saved->qkv.x_TI = x_TH;
  saved->q_TGRD = ctx.saved->Allocate(dtype_, {tokens, groups_, heads_per_group_, head_size_},
                                      "attention queries");
  saved->kv_T2GD =
      ctx.saved->Allocate(dtype_, {tokens, 2, groups_, head_size_}, "attention keys and values");
  if (!recompute_) {
    saved->context_TGRD = ctx.saved->Allocate(dtype_, saved->q_TGRD.shape(), "attention output");
    saved->core.lse_TGR = ctx.saved->Allocate(DType::kFloat32, lse_shape, "attention log-sum-exp");
  }
  Tensor sharp_lse_TGR;
  if (ctx.activations != nullptr)
    sharp_lse_TGR = ctx.scratch->Allocate(DType::kFloat32, lse_shape, "attention log-sum-exp");
  for (size_t i = 0; i < chunks.size(); ++i) {
    Arena::Scope chunk_scope(ctx.scratch);
    const AttentionChunk& chunk = chunks[i];
    const Tensor q_CGRD = chunk.Of(saved->q_TGRD);
    MakeChunk(ctx, rotary, chunk, x_TH, q_CGRD, chunk.Of(saved->kv_T2GD));
    const Shape lse_of_chunk{q_CGRD.dim(0), groups_, heads_per_group_};
    const Tensor context_CGRD =
        recompute_ ? ctx.scratch->Allocate(dtype_, q_CGRD.shape(), "attention output")
                   : chunk.Of(saved->context_TGRD);
    const Tensor lse_CGR =
        recompute_ ? ctx.scratch->Allocate(DType::kFloat32, lse_of_chunk, "attention log-sum-exp")
                   : chunk.Of(saved->core.lse_TGR);
    if (ctx.activations != nullptr) {
      AttendChunk(ctx, core_.Sharp(ctx), chunks, i, *saved, context_CGRD, chunk.Of(sharp_lse_TGR));
    }
    AttendChunk(ctx, core_, chunks, i, *saved, context_CGRD, lse_CGR);
    LinearSaved forgotten;
    proj_.Forward(ctx, Rows(context_CGRD), chunk.Of(y_TH), &forgotten);
  }
  if (ctx.activations != nullptr) core_.AddScores(ctx, sharp_lse_TGR);
}

void SelfAttention::ProjectChunkBack(const LayerContext& ctx, const RotaryTables* rotary,
                                     const AttentionChunk& chunk, const Tensor& dq_CGRD,
                                     const Tensor& dkv_C2GD, const Tensor& x_TH,
                                     const Tensor& dx_TH) {
  Arena::Scope scope(ctx.scratch);
  const Tensor dqkv_CGSD = ctx.scratch->Allocate(
      dtype_, {dq_CGRD.dim(0), groups_, heads_per_group_ + 2, head_size_}, "attention gradient");
  const Tensor dq = Queries(dqkv_CGSD), dk = Keys(dqkv_CGSD);
  ops::Copy(ctx.stream, dq_CGRD, dq);
  ops::Copy(ctx.stream, KeysOf(dkv_C2GD), dk);
  ops::Copy(ctx.stream, ValuesOf(dkv_C2GD), Values(dqkv_CGSD));
  Rotate(ctx, rotary, /*inverse=*/true, chunk.Of(ctx.batch->position_T), dq, dk);
  if (qk_norm_) {
    // What was in front of the norms is computed again.
    Arena::Scope norm_scope(ctx.scratch);
    LayerContext again = ctx;
    again.saved = ctx.scratch;
    const Tensor qkv_CGSD = ProjectChunk(ctx, chunk, x_TH);
    const Tensor normed_CGRD =
        ctx.scratch->Allocate(dtype_, dq_CGRD.shape(), "attention normalized q");
    const Tensor normed_CGD = ctx.scratch->Allocate(dtype_, dk.shape(), "attention normalized k");
    NormLayer::Saved q_norm, k_norm;
    q_norm_.Forward(again, Queries(qkv_CGSD), normed_CGRD, &q_norm);
    k_norm_.Forward(again, Keys(qkv_CGSD), normed_CGD, &k_norm);
    q_norm_.Backward(ctx, dq, Tensor(), dq, q_norm);
    k_norm_.Backward(ctx, dk, Tensor(), dk, k_norm);
  }
  const Tensor dpacked_CO = Packed(dqkv_CGSD), dx_CH = chunk.Of(dx_TH);
  LinearSaved own, shared;
  own.x_TI = shared.x_TI = chunk.Of(x_TH);
  const AsyncCall reducing = qkv_.BackwardInput(ctx, OwnColumns(dpacked_CO), dx_CH, &own);
  AsyncCall reducing_shared;
  Tensor dshared_CH;
  if (kv_ != nullptr) {
    dshared_CH = ctx.scratch->Allocate(dtype_, dx_CH.shape(), "attention gradient");
    reducing_shared = kv_->BackwardInput(ctx, SharedColumns(dpacked_CO), dshared_CH, &shared);
  }
  qkv_.BackwardWeight(ctx, own);
  if (kv_ != nullptr) kv_->BackwardWeight(ctx, shared);
  reducing.Wait();
  reducing_shared.Wait();
  if (kv_ != nullptr)
    ops::BiasDropoutAdd(ctx.stream, ops::Dropout(), dshared_CH, Tensor(), dx_CH, dx_CH);
}

void SelfAttention::BackwardInChunks(const LayerContext& ctx, const RotaryTables* rotary,
                                     const Tensor& dy_TH, const Tensor& dx_TH, Saved* saved) {
  LayerContext at_once = ctx;
  at_once.deferred = nullptr;
  Arena::Scope scope(ctx.scratch);
  const std::vector<AttentionChunk> chunks = AttentionCore::Chunks(ctx, chunk_);
  const Shape& shape = saved->q_TGRD.shape();
  Tensor context_TGRD = saved->context_TGRD, lse_TGR = saved->core.lse_TGR;
  if (recompute_) {
    context_TGRD = ctx.scratch->Allocate(dtype_, shape, "attention output");
    lse_TGR = ctx.scratch->Allocate(DType::kFloat32, {shape[0], shape[1], shape[2]},
                                    "attention log-sum-exp");
  }
  const Tensor dcontext_TGRD = ctx.scratch->Allocate(dtype_, shape, "attention gradient");
  for (size_t i = 0; i < chunks.size(); ++i) {
    const AttentionChunk& chunk = chunks[i];
    const Tensor context_CGRD = chunk.Of(context_TGRD);
    if (recompute_) AttendChunk(ctx, core_, chunks, i, *saved, context_CGRD, chunk.Of(lse_TGR));
    Arena::Scope chunk_scope(ctx.scratch);
    LinearSaved proj;
    proj.x_TI = Rows(context_CGRD);
    proj_.BackwardInput(at_once, chunk.Of(dy_TH), Rows(chunk.Of(dcontext_TGRD)), &proj);
    proj_.BackwardWeight(at_once, proj);
  }
  const Tensor dq_TGRD = ctx.scratch->Allocate(DType::kFloat32, shape, "attention gradient sum");
  for (size_t j = 0; j < chunks.size(); ++j) {
    Arena::Scope chunk_scope(ctx.scratch);
    const Tensor kv_C2GD = chunks[j].Of(saved->kv_T2GD);
    const Tensor dkv_C2GD =
        ctx.scratch->Allocate(DType::kFloat32, kv_C2GD.shape(), "attention gradient sum");
    for (size_t i = j; i < chunks.size(); ++i) {
      const AttentionChunk& queries = chunks[i];
      core_.BackwardChunk(ctx, queries, chunks[j], /*first=*/j == 0, /*first_queries=*/i == j,
                          {queries.Of(saved->q_TGRD), KeysOf(kv_C2GD), ValuesOf(kv_C2GD), Tensor()},
                          queries.Of(context_TGRD), queries.Of(lse_TGR), queries.Of(dcontext_TGRD),
                          {queries.Of(dq_TGRD), KeysOf(dkv_C2GD), ValuesOf(dkv_C2GD), Tensor()});
    }
    ProjectChunkBack(at_once, rotary, chunks[j], chunks[j].Of(dq_TGRD), dkv_C2GD, saved->qkv.x_TI,
                     dx_TH);
  }
}

}  // namespace megatron
