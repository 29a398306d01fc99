#include "megatron/layers/attention_in_chunks.h"

#include "glog/logging.h"
#include "megatron/layers/context_attention.h"
#include "megatron/layers/host_copies.h"
#include "megatron/layers/tensor_parallel.h"
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

// The context in which each chunk adds to the gradients of weights.
LayerContext AtOnce(const LayerContext& ctx) {
  LayerContext at_once = OfAllRows(ctx);
  at_once.deferred = nullptr;
  return at_once;
}

// [C, G, R, D] as the rows that the output projection reads.
Tensor Rows(const Tensor& x_CGRD) {
  return x_CGRD.View({x_CGRD.dim(0), x_CGRD.numel() / x_CGRD.dim(0)});
}

}  // namespace

LayerContext OfAllRows(const LayerContext& ctx) {
  LayerContext of_all_rows = ctx;
  if (!ctx.sequence_parallel) return of_all_rows;
  of_all_rows.sequence_parallel = false;
  of_all_rows.tensor_group = ProcessGroup();
  return of_all_rows;
}

void AttentionInChunks::MakeChunk(const LayerContext& ctx, Make make, const AttentionChunk& chunk,
                                  const Tensor& q_CGRD, const Tensor& kv_CGW) const {
  Arena::Scope scope(ctx.scratch);
  // Shapes of this rank's rows and all of its heads.
  const Shape q_shape{chunk.rows(), heads_.groups, heads_.heads_per_group, heads_.head_size},
      k_shape{chunk.rows(), heads_.groups, heads_.head_size};
  const bool exchanges = chunk.exchanges();
  const Tensor mine_CGW = chunk.keeps_own_keys ? kv_CGW : chunk.PartOf(kv_CGW, chunk.rank);
  const Tensor q = exchanges ? ctx.scratch->Allocate(heads_.dtype, q_shape, "attention q") : q_CGRD;
  const Tensor k =
      exchanges ? ctx.scratch->Allocate(heads_.dtype, k_shape, "attention k") : KeysOf(mine_CGW);
  Tensor v = make(ctx, chunk, q, k);
  if (exchanges) {
    const Tensor k_all =
        ctx.scratch->Allocate(heads_.dtype, KeysOf(kv_CGW).shape(), "exchanged keys");
    const Tensor v_all =
        ctx.scratch->Allocate(heads_.dtype, ValuesOf(kv_CGW).shape(), "exchanged values");
    ExchangeToHeads(ctx, {{q, q_CGRD}, {k, k_all}, {v, v_all}});
    v = v_all;
    ops::Copy(ctx.stream, k_all, KeysOf(kv_CGW));
  }
  ops::Copy(ctx.stream, v, ValuesOf(mine_CGW));
  if (chunk.gathers_keys && !chunk.keeps_own_keys) GatherKeys(ctx, chunk, kv_CGW);
}

Tensor AttentionInChunks::OwnOutput(const LayerContext& ctx, const AttentionChunk& chunk,
                                    const Tensor& context_CGRE) const {
  if (!chunk.exchanges()) return context_CGRE;
  const Tensor mine = ctx.scratch->Allocate(
      heads_.dtype, {chunk.rows(), heads_.groups, heads_.heads_per_group, heads_.value_size},
      "attention output");
  ExchangeToTokens(ctx, {{mine, context_CGRE}});
  return mine;
}

void AttentionInChunks::AttendChunk(const LayerContext& ctx, const AttentionCore& core,
                                    const std::vector<AttentionChunk>& chunks, size_t i,
                                    const Tensor& q_CGRD, const Tensor& kv_CGW,
                                    const Tensor& sink_N, std::vector<ChunkWindow>* earlier,
                                    const Tensor& context_CGRE, const Tensor& lse_CGR) const {
  Arena::Scope scope(ctx.scratch);
  const Tensor sum_CGRD =
      heads_.dtype == DType::kFloat32
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
  if (heads_.dtype != DType::kFloat32) ops::Copy(ctx.stream, sum_CGRD, context_CGRE);
}

void AttentionInChunks::Forward(const LayerContext& layer_ctx, Make make, const Tensor& sink_N,
                                const RowParallelLinear& proj, const Tensor& y_TH,
                                Saved* saved) const {
  const LayerContext ctx = OfAllRows(layer_ctx);
  Arena::Scope scope(ctx.scratch);
  const Tensor all_y_TH = SummandOf(layer_ctx, y_TH);
  const std::vector<AttentionChunk> chunks = core_.Chunks(ctx, heads_.chunk_tokens);
  // All ranks' tokens, and this rank's share of its groups; or its own queries and all groups.
  const int ranks = ctx.context_group.size(), sharing = chunks[0].exchanges() ? ranks : 1;
  const int64_t tokens = ctx.batch->num_tokens() * ranks, groups = heads_.groups / sharing;
  const int64_t queries = chunks[0].gathers_keys ? ctx.batch->num_tokens() : tokens;
  const int64_t keys = chunks[0].keeps_own_keys ? queries : tokens;
  const int64_t query_rows = QueryRows(chunks, heads_.chunk_tokens),
                key_rows = KeyRows(chunks, heads_.chunk_tokens);
  CHECK_EQ(groups * sharing, heads_.groups);
  const Shape lse_shape{queries, groups, heads_.heads_per_group};
  Arena* const kept = ForAllTokens(ctx, ctx.SavedBy(OffloadModule::kCoreAttention));
  saved->q_TGRD =
      kept->Allocate(heads_.dtype, {queries, groups, heads_.heads_per_group, heads_.head_size},
                     "attention queries");
  saved->kv_TGW = kept->Allocate(heads_.dtype, {keys, groups, heads_.head_size + heads_.value_size},
                                 "attention keys and values");
  if (!heads_.recompute) {
    saved->context_TGRE =
        ForAllTokens(ctx, ctx.SavedBy(OffloadModule::kAttentionProj))
            ->Allocate(heads_.dtype, OutputShape(saved->q_TGRD), "attention output");
    saved->lse_TGR = kept->Allocate(DType::kFloat32, lse_shape, "attention log-sum-exp");
  }
  Tensor sharp_lse_TGR;
  if (ctx.activations != nullptr)
    sharp_lse_TGR = ctx.scratch->Allocate(DType::kFloat32, lse_shape, "attention log-sum-exp");
  ChunkWindow q(ctx, saved->q_TGRD, query_rows, kQueries), kv(ctx, saved->kv_TGW, key_rows, kKeys);
  std::vector<ChunkWindow> earlier = Two(ctx, saved->kv_TGW, key_rows, kKeys), attended;
  if (!heads_.recompute) {
    attended.emplace_back(ctx, saved->context_TGRE, query_rows, kOutput);
    attended.emplace_back(ctx, saved->lse_TGR, query_rows, kLogSumExp);
  }
  for (size_t i = 0; i < chunks.size(); ++i) {
    Arena::Scope chunk_scope(ctx.scratch);
    const AttentionChunk& chunk = chunks[i];
    const Tensor q_CGRD = q.Begin(chunk.q_begin(), chunk.q_end());
    const Tensor kv_CGW = kv.Begin(chunk.k_begin(), chunk.k_end());
    MakeChunk(ctx, make, chunk, q_CGRD, kv_CGW);
    q.Send();
    kv.Send();
    Tensor context_CGRE, lse_CGR;
    if (heads_.recompute) {
      context_CGRE = ctx.scratch->Allocate(heads_.dtype, OutputShape(q_CGRD), "attention output");
      lse_CGR =
          ctx.scratch->Allocate(DType::kFloat32, {q_CGRD.dim(0), groups, heads_.heads_per_group},
                                "attention log-sum-exp");
    } else {
      context_CGRE = attended[0].Begin(chunk.q_begin(), chunk.q_end());
      lse_CGR = attended[1].Begin(chunk.q_begin(), chunk.q_end());
    }
    if (ctx.activations != nullptr) {
      AttendChunk(ctx, core_.Sharp(ctx), chunks, i, q_CGRD, kv_CGW, Tensor(), &earlier,
                  context_CGRE, chunk.OfQueries(sharp_lse_TGR));
    }
    AttendChunk(ctx, core_, chunks, i, q_CGRD, kv_CGW, sink_N, &earlier, context_CGRE, lse_CGR);
    for (ChunkWindow& window : attended) window.Send();
    LinearSaved forgotten;
    proj.Forward(ctx, Rows(OwnOutput(ctx, chunk, context_CGRE)), chunk.RowsOf(all_y_TH),
                 &forgotten);
  }
  if (layer_ctx.sequence_parallel) Reduce(layer_ctx, all_y_TH, y_TH);
  if (ctx.host_copies != nullptr) ctx.host_copies->AwaitAll();
  if (ctx.activations != nullptr) core_.AddScores(ctx, sharp_lse_TGR);
}

AttentionInChunks::OfAllTokens AttentionInChunks::BackwardOutput(const LayerContext& ctx,
                                                                 const Tensor& dy_TH,
                                                                 const Tensor& sink_N,
                                                                 RowParallelLinear* proj,
                                                                 const Saved& saved) const {
  Arena* const arena = ForAllTokens(ctx, ctx.scratch);
  const Shape& shape = saved.q_TGRD.shape();
  OfAllTokens all;
  all.chunks = core_.Chunks(ctx, heads_.chunk_tokens);
  all.context_TGRE = saved.context_TGRE;
  all.lse_TGR = saved.lse_TGR;
  if (heads_.recompute) {
    all.context_TGRE = arena->Allocate(heads_.dtype, OutputShape(saved.q_TGRD), "attention output");
    all.lse_TGR =
        arena->Allocate(DType::kFloat32, {shape[0], shape[1], shape[2]}, "attention log-sum-exp");
  }
  all.dcontext_TGRE =
      arena->Allocate(heads_.dtype, OutputShape(saved.q_TGRD), "attention gradient");
  {
    Arena::Scope rows_scope(ctx.scratch);
    ProjectOutputBack(AtOnce(ctx), Gather(ctx, dy_TH), sink_N, proj, saved, all);
  }
  all.dq_TGRD = arena->Allocate(DType::kFloat32, shape, "attention gradient sum");
  return all;
}

void AttentionInChunks::ProjectOutputBack(const LayerContext& ctx, const Tensor& dy_TH,
                                          const Tensor& sink_N, RowParallelLinear* proj,
                                          const Saved& saved, const OfAllTokens& all) const {
  const std::vector<AttentionChunk>& chunks = all.chunks;
  Arena::Scope scope(ctx.scratch);
  const int64_t rows = QueryRows(chunks, heads_.chunk_tokens);
  std::vector<ChunkWindow> q, kv, earlier;
  if (heads_.recompute) {
    q = Two(ctx, saved.q_TGRD, rows, kQueries);
    kv = Two(ctx, saved.kv_TGW, KeyRows(chunks, heads_.chunk_tokens), kKeys);
    earlier = Two(ctx, saved.kv_TGW, KeyRows(chunks, heads_.chunk_tokens), kKeys);
  }
  std::vector<ChunkWindow> context = Two(ctx, all.context_TGRE, rows, kOutput);
  ChunkWindow lse(ctx, all.lse_TGR, rows, kLogSumExp);
  ChunkWindow dcontext(ctx, all.dcontext_TGRE, rows, kGradient);
  const auto bring = [&](size_t i) {
    const int64_t begin = chunks[i].q_begin(), end = chunks[i].q_end();
    if (!heads_.recompute) return context[i % 2].Bring(begin, end);
    q[i % 2].Bring(begin, end);
    kv[i % 2].Bring(chunks[i].k_begin(), chunks[i].k_end());
  };
  bring(0);
  for (size_t i = 0; i < chunks.size(); ++i) {
    Arena::Scope chunk_scope(ctx.scratch);
    const AttentionChunk& chunk = chunks[i];
    if (i + 1 < chunks.size()) bring(i + 1);
    Tensor context_CGRE;
    if (heads_.recompute) {
      context_CGRE = context[i % 2].Begin(chunk.q_begin(), chunk.q_end());
      AttendChunk(ctx, core_, chunks, i, q[i % 2].Await(), kv[i % 2].Await(), sink_N, &earlier,
                  context_CGRE, lse.Begin(chunk.q_begin(), chunk.q_end()));
      context[i % 2].Send();
      lse.Send();
    } else {
      context_CGRE = context[i % 2].Await();
    }
    LinearSaved of_proj;
    of_proj.x_TI = Rows(OwnOutput(ctx, chunk, context_CGRE));
    const Tensor dcontext_CGRE = dcontext.Begin(chunk.q_begin(), chunk.q_end());
    const Tensor mine = !chunk.exchanges()
                            ? dcontext_CGRE
                            : ctx.scratch->Allocate(heads_.dtype,
                                                    {chunk.rows(), heads_.groups,
                                                     heads_.heads_per_group, heads_.value_size},
                                                    "attention gradient");
    proj->BackwardInput(ctx, chunk.RowsOf(dy_TH), Rows(mine), &of_proj);
    if (chunk.exchanges()) ExchangeToHeads(ctx, {{mine, dcontext_CGRE}});
    dcontext.Send();
    proj->BackwardWeight(ctx, of_proj);
  }
  if (ctx.host_copies != nullptr) ctx.host_copies->AwaitAll();
}

// The pairs of chunks stand in one line: the keys' chunks ascend, with each of them the queries'
// from its own on, as far as they may see these keys. While one pair is computed, what the next one
// needs arrives.
void AttentionInChunks::BackwardHeads(const LayerContext& layer_ctx, const OfAllTokens& all,
                                      Allocate allocate, GiveBack give_back, const Sinks& sinks,
                                      const Saved& saved) const {
  const LayerContext ctx = AtOnce(layer_ctx);
  const std::vector<AttentionChunk>& chunks = all.chunks;
  Arena::Scope scope(ctx.scratch);
  std::vector<ChunkWindow> kv = Two(ctx, saved.kv_TGW, KeyRows(chunks, heads_.chunk_tokens), kKeys);
  const int64_t rows = QueryRows(chunks, heads_.chunk_tokens);
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
    const Gradients gradients = allocate(ctx, chunks[j]);
    // Gradients of all ranks' tokens, in the model's dtype, are exchanged for those of all of this
    // rank's heads.
    const bool exchanges = chunks[j].exchanges();
    const auto all_tokens = [&](const Tensor& mine, const Shape& shape) {
      return exchanges ? ctx.scratch->Allocate(heads_.dtype, shape, "attention gradient") : mine;
    };
    const Tensor dq_all = all_tokens(gradients.q_CGRD, chunks[j].OfQueries(all.dq_TGRD).shape()),
                 dk_all = all_tokens(gradients.k_CGD, KeysOf(kv_CGW).shape()),
                 dv_all = all_tokens(gradients.v_CGE, ValuesOf(kv_CGW).shape());
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
                            {q_CGRD, KeysOf(keys), ValuesOf(keys), Tensor(), sinks.sink_N},
                            context_CGRE, lse_CGR, dcontext_CGRE,
                            {dq_CGRD, KeysOf(dkeys), ValuesOf(dkeys), Tensor(), sinks.gradient_N});
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
          ctx, {{gradients.q_CGRD, dq_all}, {gradients.k_CGD, dk_all}, {gradients.v_CGE, dv_all}});
    }
    give_back(ctx, chunks[j]);
  }
  if (ctx.host_copies != nullptr) ctx.host_copies->AwaitAll();
}

}  // namespace megatron
