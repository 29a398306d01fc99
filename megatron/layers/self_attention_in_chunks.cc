// Self-attention in chunks of tokens.
#include <vector>

#include "glog/logging.h"
#include "megatron/layers/chunk_window.h"
#include "megatron/layers/context_attention.h"
#include "megatron/layers/host_copies.h"
#include "megatron/layers/self_attention.h"
#include "megatron/layers/tensor_parallel.h"
#include "megatron/ops/dropout.h"
#include "megatron/ops/elementwise.h"

namespace megatron {
namespace {

// The names of copies.
constexpr char kQueries[] = "queries", kKeys[] = "keys and values", kOutput[] = "attention output",
               kLogSumExp[] = "log-sum-exp", kGradient[] = "attention gradient";

// The arena for tensors of all tokens that live as long as those of `arena`.
Arena* ForAllTokens(const LayerContext& ctx, Arena* arena) {
  return ctx.host_copies != nullptr ? arena->host() : arena;
}

// The context of a layer that reads all rows of its input and writes this rank's summands of all
// rows: chunks cut the rows of all tensor-parallel ranks.
LayerContext OfAllRows(const LayerContext& ctx) {
  LayerContext of_all_rows = ctx;
  if (!ctx.sequence_parallel) return of_all_rows;
  of_all_rows.sequence_parallel = false;
  of_all_rows.tensor_group = ProcessGroup();
  return of_all_rows;
}

// Two windows of a tensor: one for the chunk at work and one for the next.
std::vector<ChunkWindow> Two(const LayerContext& ctx, const Tensor& whole, int64_t rows,
                             const char* name) {
  std::vector<ChunkWindow> windows;
  for (int i = 0; i < 2; ++i) windows.emplace_back(ctx, whole, rows, name);
  return windows;
}

// The number of the first chunk whose keys queries of chunk i may see.
size_t FirstSeen(const AttentionCore& core, const std::vector<AttentionChunk>& chunks, size_t i) {
  size_t j = 0;
  while (!core.MaySee(chunks[i], chunks[j])) ++j;
  return j;
}

// The most rows of a chunk of queries, where chunks have `tokens` tokens of all ranks.
int64_t QueryRows(const std::vector<AttentionChunk>& chunks, int64_t tokens) {
  return chunks[0].gathers_keys ? tokens / chunks[0].ranks : tokens;
}

// Fills a chunk of keys and values, of which this rank's part is there, with those of all ranks.
void GatherKeys(const LayerContext& ctx, const AttentionChunk& chunk, const Tensor& kv_CGW) {
  ctx.context_group.AllGather(chunk.PartOf(kv_CGW, chunk.rank).Flatten(), kv_CGW.Flatten(),
                              ctx.stream);
}

// The most rows of a chunk of keys that are kept.
int64_t KeyRows(const std::vector<AttentionChunk>& chunks, int64_t tokens) {
  return chunks[0].keeps_own_keys ? tokens / chunks[0].ranks : tokens;
}

// Returns a chunk of keys and values of all ranks, of which kept_CGW is what this rank keeps.
Tensor AllKeys(const LayerContext& ctx, const AttentionChunk& chunk, const Tensor& kept_CGW) {
  if (!chunk.keeps_own_keys) return kept_CGW;
  const Shape& shape = kept_CGW.shape();
  const Tensor all_CGW = ctx.scratch->Allocate(
      kept_CGW.dtype(), {chunk.end - chunk.begin, shape[1], shape[2]}, "gathered keys and values");
  ops::Copy(ctx.stream, kept_CGW, chunk.PartOf(all_CGW, chunk.rank));
  GatherKeys(ctx, chunk, all_CGW);
  return all_CGW;
}

// Sums the ranks' gradients of a chunk of keys and values, each in this rank's part.
Tensor SumOwnKeys(const LayerContext& ctx, const AttentionChunk& chunk, const Tensor& dkv_CGW) {
  const Tensor mine_CGW = chunk.PartOf(dkv_CGW, chunk.rank);
  ctx.context_group.ReduceScatter(dkv_CGW.Flatten(), mine_CGW.Flatten(), ctx.stream);
  return mine_CGW;
}

// [C, G, R, D] as the rows that the output projection reads.
Tensor Rows(const Tensor& x_CGRD) {
  return x_CGRD.View({x_CGRD.dim(0), x_CGRD.numel() / x_CGRD.dim(0)});
}

}  // namespace

Tensor SelfAttention::AllocatePacked(const LayerContext& ctx, const AttentionChunk& chunk,
                                     const char* name) const {
  return ctx.scratch->Allocate(dtype_, {chunk.rows(), groups_, packed_size()}, name);
}

Tensor SelfAttention::ProjectChunk(const LayerContext& ctx, const AttentionChunk& chunk,
                                   const Tensor& x_TH) const {
  const Tensor qkv_CGS = AllocatePacked(ctx, chunk, "attention qkv");
  LinearSaved forgotten;
  qkv_.Forward(ctx, chunk.RowsOf(x_TH), OwnColumns(Packed(qkv_CGS)), &forgotten);
  if (kv_ != nullptr)
    kv_->Forward(ctx, chunk.RowsOf(x_TH), SharedColumns(Packed(qkv_CGS)), &forgotten);
  return qkv_CGS;
}

void SelfAttention::MakeChunk(const LayerContext& ctx, const RotaryTables* rotary,
                              const AttentionChunk& chunk, const Tensor& x_TH, const Tensor& q_CGRD,
                              const Tensor& kv_CGW) const {
  Arena::Scope scope(ctx.scratch);
  const Tensor qkv_CGS = ProjectChunk(ctx, chunk, x_TH);
  // Shapes of this rank's rows and all of its heads.
  const Shape q_shape{chunk.rows(), groups_, heads_per_group_, head_size_},
      k_shape{chunk.rows(), groups_, head_size_};
  const bool exchanges = chunk.exchanges();
  const Tensor mine_CGW = chunk.keeps_own_keys ? kv_CGW : chunk.PartOf(kv_CGW, chunk.rank);
  const Tensor q = exchanges ? ctx.scratch->Allocate(dtype_, q_shape, "attention q") : q_CGRD;
  const Tensor k =
      exchanges ? ctx.scratch->Allocate(dtype_, k_shape, "attention k") : KeysOf(mine_CGW);
  if (qk_norm_) {
    const LayerContext forgetting = ctx.SavingIn(ctx.scratch);
    NormLayer::Saved forgotten;
    q_norm_.Forward(forgetting, Queries(qkv_CGS), q, &forgotten);
    k_norm_.Forward(forgetting, Keys(qkv_CGS), k, &forgotten);
  } else {
    ops::Copy(ctx.stream, Queries(qkv_CGS), q);
    ops::Copy(ctx.stream, Keys(qkv_CGS), k);
  }
  Rotate(ctx, rotary, /*inverse=*/false, chunk.RowsOf(ctx.batch->position_T), q, k);
  Tensor v = Values(qkv_CGS);
  if (exchanges) {
    const Tensor k_all = ctx.scratch->Allocate(dtype_, KeysOf(kv_CGW).shape(), "exchanged keys");
    const Tensor v_all =
        ctx.scratch->Allocate(dtype_, ValuesOf(kv_CGW).shape(), "exchanged values");
    ExchangeToHeads(ctx, {{q, q_CGRD}, {k, k_all}, {v, v_all}});
    v = v_all;
    ops::Copy(ctx.stream, k_all, KeysOf(kv_CGW));
  }
  ops::Copy(ctx.stream, v, ValuesOf(mine_CGW));
  if (chunk.gathers_keys && !chunk.keeps_own_keys) GatherKeys(ctx, chunk, kv_CGW);
}

Tensor SelfAttention::OwnOutput(const LayerContext& ctx, const AttentionChunk& chunk,
                                const Tensor& context_CGRE) const {
  if (!chunk.exchanges()) return context_CGRE;
  const Tensor mine = ctx.scratch->Allocate(
      dtype_, {chunk.rows(), groups_, heads_per_group_, value_size_}, "attention output");
  ExchangeToTokens(ctx, {{mine, context_CGRE}});
  return mine;
}

void SelfAttention::AttendChunk(const LayerContext& ctx, const AttentionCore& core,
                                const std::vector<AttentionChunk>& chunks, size_t i,
                                const Tensor& q_CGRD, const Tensor& kv_CGW, const Tensor& sink_N,
                                std::vector<ChunkWindow>* earlier, const Tensor& context_CGRE,
                                const Tensor& lse_CGR) const {
  Arena::Scope scope(ctx.scratch);
  const Tensor sum_CGRD =
      dtype_ == DType::kFloat32
          ? context_CGRE
          : ctx.scratch->Allocate(DType::kFloat32, context_CGRE.shape(), "attention sum");
  const auto attend = [&](size_t j, const Tensor& kept_CGW, bool first) {
    Arena::Scope keys_scope(ctx.scratch);
    const Tensor keys_CGW = AllKeys(ctx, chunks[j], kept_CGW);
    for (int part = 0; part < chunks[j].num_parts(); ++part) {
      const Tensor of_part = chunks[j].PartOf(keys_CGW, part);
      core.ForwardChunk(ctx, chunks[i], chunks[j], part, first && part == 0,
                        {q_CGRD, KeysOf(of_part), ValuesOf(of_part), Tensor(), sink_N}, sum_CGRD,
                        lse_CGR);
    }
  };
  const auto bring = [&](size_t j) {
    (*earlier)[j % 2].Bring(chunks[j].k_begin(), chunks[j].k_end());
  };
  const size_t first = FirstSeen(core, chunks, i);
  if (first < i) bring(first);
  attend(i, kv_CGW, /*first=*/true);
  for (size_t j = first; j < i; ++j) {
    if (j + 1 < i) bring(j + 1);
    attend(j, (*earlier)[j % 2].Await(), /*first=*/false);
  }
  if (dtype_ != DType::kFloat32) ops::Copy(ctx.stream, sum_CGRD, context_CGRE);
}

void SelfAttention::ForwardInChunks(const LayerContext& layer_ctx, const RotaryTables* rotary,
                                    const Tensor& x_TH, const Tensor& y_TH, Saved* saved) const {
  const LayerContext ctx = OfAllRows(layer_ctx);
  Arena::Scope scope(ctx.scratch);
  const Tensor all_x_TH = Gather(layer_ctx, x_TH), all_y_TH = SummandOf(layer_ctx, y_TH);
  const std::vector<AttentionChunk> chunks = core_.Chunks(ctx, chunk_);
  // All ranks' tokens, and this rank's share of its groups; or its own queries and all groups.
  const int ranks = ctx.context_group.size(), sharing = chunks[0].exchanges() ? ranks : 1;
  const int64_t tokens = ctx.batch->num_tokens() * ranks, groups = groups_ / sharing;
  const int64_t queries = chunks[0].gathers_keys ? ctx.batch->num_tokens() : tokens;
  const int64_t keys = chunks[0].keeps_own_keys ? queries : tokens;
  const int64_t query_rows = QueryRows(chunks, chunk_), key_rows = KeyRows(chunks, chunk_);
  CHECK_EQ(groups * sharing, groups_);
  const Shape lse_shape{queries, groups, heads_per_group_};
  Arena* const kept = ForAllTokens(ctx, ctx.SavedBy(OffloadModule::kCoreAttention));
  saved->qkv.x_TI = x_TH;
  saved->q_TGRD =
      kept->Allocate(dtype_, {queries, groups, heads_per_group_, head_size_}, "attention queries");
  saved->kv_TGW =
      kept->Allocate(dtype_, {keys, groups, head_size_ + value_size_}, "attention keys and values");
  if (!recompute_) {
    saved->context_TGRE = ForAllTokens(ctx, ctx.SavedBy(OffloadModule::kAttentionProj))
                              ->Allocate(dtype_, OutputShape(saved->q_TGRD), "attention output");
    saved->core.lse_TGR = kept->Allocate(DType::kFloat32, lse_shape, "attention log-sum-exp");
  }
  Tensor sharp_lse_TGR;
  if (ctx.activations != nullptr)
    sharp_lse_TGR = ctx.scratch->Allocate(DType::kFloat32, lse_shape, "attention log-sum-exp");
  ChunkWindow q(ctx, saved->q_TGRD, query_rows, kQueries), kv(ctx, saved->kv_TGW, key_rows, kKeys);
  std::vector<ChunkWindow> earlier = Two(ctx, saved->kv_TGW, key_rows, kKeys), attended;
  if (!recompute_) {
    attended.emplace_back(ctx, saved->context_TGRE, query_rows, kOutput);
    attended.emplace_back(ctx, saved->core.lse_TGR, query_rows, kLogSumExp);
  }
  for (size_t i = 0; i < chunks.size(); ++i) {
    Arena::Scope chunk_scope(ctx.scratch);
    const AttentionChunk& chunk = chunks[i];
    const Tensor q_CGRD = q.Begin(chunk.q_begin(), chunk.q_end());
    const Tensor kv_CGW = kv.Begin(chunk.k_begin(), chunk.k_end());
    MakeChunk(ctx, rotary, chunk, all_x_TH, q_CGRD, kv_CGW);
    q.Send();
    kv.Send();
    Tensor context_CGRE, lse_CGR;
    if (recompute_) {
      context_CGRE = ctx.scratch->Allocate(dtype_, OutputShape(q_CGRD), "attention output");
      lse_CGR = ctx.scratch->Allocate(DType::kFloat32, {q_CGRD.dim(0), groups, heads_per_group_},
                                      "attention log-sum-exp");
    } else {
      context_CGRE = attended[0].Begin(chunk.q_begin(), chunk.q_end());
      lse_CGR = attended[1].Begin(chunk.q_begin(), chunk.q_end());
    }
    if (ctx.activations != nullptr) {
      AttendChunk(ctx, core_.Sharp(ctx), chunks, i, q_CGRD, kv_CGW, Tensor(), &earlier,
                  context_CGRE, chunk.OfQueries(sharp_lse_TGR));
    }
    AttendChunk(ctx, core_, chunks, i, q_CGRD, kv_CGW, Sinks(ctx), &earlier, context_CGRE, lse_CGR);
    for (ChunkWindow& window : attended) window.Send();
    LinearSaved forgotten;
    proj_.Forward(ctx, Rows(OwnOutput(ctx, chunk, context_CGRE)), chunk.RowsOf(all_y_TH),
                  &forgotten);
  }
  if (layer_ctx.sequence_parallel) Reduce(layer_ctx, all_y_TH, y_TH);
  if (ctx.host_copies != nullptr) ctx.host_copies->AwaitAll();
  if (ctx.activations != nullptr) core_.AddScores(ctx, sharp_lse_TGR);
}

void SelfAttention::ProjectChunkBack(const LayerContext& ctx, const RotaryTables* rotary,
                                     const AttentionChunk& chunk, const Tensor& dqkv_CGS,
                                     const Tensor& x_TH, const Tensor& dx_TH) {
  Arena::Scope scope(ctx.scratch);
  const Tensor dq = Queries(dqkv_CGS), dk = Keys(dqkv_CGS);
  Rotate(ctx, rotary, /*inverse=*/true, chunk.RowsOf(ctx.batch->position_T), dq, dk);
  if (qk_norm_) {
    // What was in front of the norms is computed again.
    Arena::Scope norm_scope(ctx.scratch);
    const LayerContext again = ctx.SavingIn(ctx.scratch);
    const Tensor qkv_CGS = ProjectChunk(ctx, chunk, x_TH);
    const Tensor normed_CGRD = ctx.scratch->Allocate(dtype_, dq.shape(), "attention normalized q");
    const Tensor normed_CGD = ctx.scratch->Allocate(dtype_, dk.shape(), "attention normalized k");
    NormLayer::Saved q_norm, k_norm;
    q_norm_.Forward(again, Queries(qkv_CGS), normed_CGRD, &q_norm);
    k_norm_.Forward(again, Keys(qkv_CGS), normed_CGD, &k_norm);
    q_norm_.Backward(ctx, dq, Tensor(), dq, q_norm);
    k_norm_.Backward(ctx, dk, Tensor(), dk, k_norm);
  }
  const Tensor dpacked_CO = Packed(dqkv_CGS), dx_CH = chunk.RowsOf(dx_TH);
  LinearSaved own, shared;
  own.x_TI = shared.x_TI = chunk.RowsOf(x_TH);
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
  LayerContext at_once = OfAllRows(ctx);
  at_once.deferred = nullptr;
  Arena::Scope scope(ctx.scratch);
  const std::vector<AttentionChunk> chunks = core_.Chunks(ctx, chunk_);
  Arena* const arena = ForAllTokens(ctx, ctx.scratch);
  const Shape& shape = saved->q_TGRD.shape();
  OfAllTokens all = {saved->context_TGRE, saved->core.lse_TGR, Tensor(), Tensor()};
  if (recompute_) {
    all.context_TGRE = arena->Allocate(dtype_, OutputShape(saved->q_TGRD), "attention output");
    all.lse_TGR =
        arena->Allocate(DType::kFloat32, {shape[0], shape[1], shape[2]}, "attention log-sum-exp");
  }
  all.dcontext_TGRE = arena->Allocate(dtype_, OutputShape(saved->q_TGRD), "attention gradient");
  {
    Arena::Scope rows_scope(ctx.scratch);
    ProjectOutputBack(at_once, chunks, Gather(ctx, dy_TH), *saved, all);
  }
  all.dq_TGRD = arena->Allocate(DType::kFloat32, shape, "attention gradient sum");
  const Tensor all_x_TH = Gather(ctx, saved->qkv.x_TI), all_dx_TH = SummandOf(ctx, dx_TH);
  AttendBack(at_once, rotary, chunks, *saved, all, all_x_TH, all_dx_TH);
  if (ctx.sequence_parallel) Reduce(ctx, all_dx_TH, dx_TH);
  if (ctx.host_copies != nullptr) ctx.host_copies->AwaitAll();
}

void SelfAttention::ProjectOutputBack(const LayerContext& ctx,
                                      const std::vector<AttentionChunk>& chunks,
                                      const Tensor& dy_TH, const Saved& saved,
                                      const OfAllTokens& all) {
  Arena::Scope scope(ctx.scratch);
  const int64_t rows = QueryRows(chunks, chunk_);
  std::vector<ChunkWindow> q, kv, earlier;
  if (recompute_) {
    q = Two(ctx, saved.q_TGRD, rows, kQueries);
    kv = Two(ctx, saved.kv_TGW, KeyRows(chunks, chunk_), kKeys);
    earlier = Two(ctx, saved.kv_TGW, KeyRows(chunks, chunk_), kKeys);
  }
  std::vector<ChunkWindow> context = Two(ctx, all.context_TGRE, rows, kOutput);
  ChunkWindow lse(ctx, all.lse_TGR, rows, kLogSumExp);
  ChunkWindow dcontext(ctx, all.dcontext_TGRE, rows, kGradient);
  const auto bring = [&](size_t i) {
    const int64_t begin = chunks[i].q_begin(), end = chunks[i].q_end();
    if (!recompute_) return context[i % 2].Bring(begin, end);
    q[i % 2].Bring(begin, end);
    kv[i % 2].Bring(chunks[i].k_begin(), chunks[i].k_end());
  };
  bring(0);
  for (size_t i = 0; i < chunks.size(); ++i) {
    Arena::Scope chunk_scope(ctx.scratch);
    const AttentionChunk& chunk = chunks[i];
    if (i + 1 < chunks.size()) bring(i + 1);
    Tensor context_CGRE;
    if (recompute_) {
      context_CGRE = context[i % 2].Begin(chunk.q_begin(), chunk.q_end());
      AttendChunk(ctx, core_, chunks, i, q[i % 2].Await(), kv[i % 2].Await(), Sinks(ctx), &earlier,
                  context_CGRE, lse.Begin(chunk.q_begin(), chunk.q_end()));
      context[i % 2].Send();
      lse.Send();
    } else {
      context_CGRE = context[i % 2].Await();
    }
    LinearSaved proj;
    proj.x_TI = Rows(OwnOutput(ctx, chunk, context_CGRE));
    const Tensor dcontext_CGRE = dcontext.Begin(chunk.q_begin(), chunk.q_end());
    const Tensor mine =
        !chunk.exchanges()
            ? dcontext_CGRE
            : ctx.scratch->Allocate(dtype_, {chunk.rows(), groups_, heads_per_group_, value_size_},
                                    "attention gradient");
    proj_.BackwardInput(ctx, chunk.RowsOf(dy_TH), Rows(mine), &proj);
    if (chunk.exchanges()) ExchangeToHeads(ctx, {{mine, dcontext_CGRE}});
    dcontext.Send();
    proj_.BackwardWeight(ctx, proj);
  }
  if (ctx.host_copies != nullptr) ctx.host_copies->AwaitAll();
}

// The pairs of chunks stand in one line: the keys' chunks ascend, with each of them the queries'
// from its own on, as far as they may see these keys. While one pair is computed, what the next one
// needs arrives.
void SelfAttention::AttendBack(const LayerContext& ctx, const RotaryTables* rotary,
                               const std::vector<AttentionChunk>& chunks, const Saved& saved,
                               const OfAllTokens& all, const Tensor& x_TH, const Tensor& dx_TH) {
  std::vector<ChunkWindow> kv = Two(ctx, saved.kv_TGW, KeyRows(chunks, chunk_), kKeys);
  const int64_t rows = QueryRows(chunks, chunk_);
  std::vector<ChunkWindow> q = Two(ctx, saved.q_TGRD, rows, kQueries);
  std::vector<ChunkWindow> context = Two(ctx, all.context_TGRE, rows, kOutput);
  std::vector<ChunkWindow> lse = Two(ctx, all.lse_TGR, rows, kLogSumExp);
  std::vector<ChunkWindow> dcontext = Two(ctx, all.dcontext_TGRE, rows, kGradient);
  std::vector<ChunkWindow> dq = Two(ctx, all.dq_TGRD, rows, kGradient);
  const auto bring_keys = [&](size_t j) {
    kv[j % 2].Bring(chunks[j].k_begin(), chunks[j].k_end());
  };
  const auto bring = [&](std::vector<ChunkWindow>* windows, size_t at, size_t chunk) {
    (*windows)[at % 2].Bring(chunks[chunk].q_begin(), chunks[chunk].q_end());
  };
  const auto bring_queries = [&](size_t pair, size_t i) {
    for (std::vector<ChunkWindow>* windows : {&q, &context, &lse, &dcontext})
      bring(windows, pair, i);
  };
  const Tensor sink_N = Sinks(ctx);
  const size_t count = chunks.size();
  bring_keys(0);
  bring_queries(0, 0);
  size_t pair = 0;
  for (size_t j = 0; j < count; ++j) {
    Arena::Scope chunk_scope(ctx.scratch);
    if (j + 1 < count) bring_keys(j + 1);
    const Tensor kv_CGW = AllKeys(ctx, chunks[j], kv[j % 2].Await());
    const Tensor dkv_CGW =
        ctx.scratch->Allocate(DType::kFloat32, kv_CGW.shape(), "attention gradient sum");
    const Tensor dqkv_CGS = AllocatePacked(ctx, chunks[j], "attention gradient");
    // Gradients of all ranks' tokens, in the model's dtype, are exchanged for those of all of this
    // rank's heads.
    const bool exchanges = chunks[j].exchanges();
    const auto all_tokens = [&](const Tensor& mine, const Shape& shape) {
      return exchanges ? ctx.scratch->Allocate(dtype_, shape, "attention gradient") : mine;
    };
    const Tensor dq_all = all_tokens(Queries(dqkv_CGS), chunks[j].OfQueries(all.dq_TGRD).shape()),
                 dk_all = all_tokens(Keys(dqkv_CGS), KeysOf(kv_CGW).shape()),
                 dv_all = all_tokens(Values(dqkv_CGS), ValuesOf(kv_CGW).shape());
    for (size_t i = j; i < count && core_.MaySee(chunks[i], chunks[j]); ++i, ++pair) {
      // The next pair, if there is one, is that of these.
      const bool turns = i + 1 == count || !core_.MaySee(chunks[i + 1], chunks[j]);
      const bool ends = turns && j + 1 == count;
      const size_t next_i = turns ? j + 1 : i + 1, next_j = turns ? j + 1 : j;
      if (!ends) bring_queries(pair + 1, next_i);
      // The first gradient of queries is written. A sum that this pair adds to leaves first.
      const bool first = j == FirstSeen(core_, chunks, i);
      const bool next_adds = !ends && next_j > FirstSeen(core_, chunks, next_i);
      if (next_adds && next_i != i) bring(&dq, pair + 1, next_i);
      ChunkWindow& sum = dq[pair % 2];
      const Tensor dq_CGRD =
          first ? sum.Begin(chunks[i].q_begin(), chunks[i].q_end()) : sum.Await();
      const Tensor q_CGRD = q[pair % 2].Await(), context_CGRE = context[pair % 2].Await(),
                   lse_CGR = lse[pair % 2].Await(), dcontext_CGRE = dcontext[pair % 2].Await();
      for (int part = 0; part < chunks[j].num_parts(); ++part) {
        const Tensor keys = chunks[j].PartOf(kv_CGW, part), dkeys = chunks[j].PartOf(dkv_CGW, part);
        core_.BackwardChunk(ctx, chunks[i], chunks[j], part, first && part == 0,
                            /*first_queries=*/i == j,
                            {q_CGRD, KeysOf(keys), ValuesOf(keys), Tensor(), sink_N}, context_CGRE,
                            lse_CGR, dcontext_CGRE,
                            {dq_CGRD, KeysOf(dkeys), ValuesOf(dkeys), Tensor(), SinkGradients()});
      }
      if (i == j) {
        ops::Copy(ctx.stream, dq_CGRD, dq_all);
      } else {
        sum.Send();
        if (next_adds && next_i == i) bring(&dq, pair + 1, next_i);
      }
    }
    const Tensor summed = chunks[j].gathers_keys ? SumOwnKeys(ctx, chunks[j], dkv_CGW) : dkv_CGW;
    ops::Copy(ctx.stream, KeysOf(summed), dk_all);
    ops::Copy(ctx.stream, ValuesOf(summed), dv_all);
    if (exchanges) {
      ExchangeToTokens(
          ctx, {{Queries(dqkv_CGS), dq_all}, {Keys(dqkv_CGS), dk_all}, {Values(dqkv_CGS), dv_all}});
    }
    ProjectChunkBack(ctx, rotary, chunks[j], dqkv_CGS, x_TH, dx_TH);
  }
}

}  // namespace megatron
