#include "megatron/layers/token_dropping.h"

#include "glog/logging.h"
#include "megatron/base/philox.h"
#include "megatron/layers/tensor_parallel.h"
#include "megatron/ops/embedding.h"

namespace megatron {
namespace {

// What attention of context-parallel ranks knows of the kept tokens.
ContextBatch KeptContext(const LayerContext& ctx, const ops::KeptPart& mine, const Tensor& kept_K) {
  const MicroBatch& batch = *ctx.batch;
  const int64_t samples = batch.num_samples, length = batch.context.sample_length;
  const auto allocate = [&](DType dtype, const Shape& shape) {
    return ctx.saved->Allocate(dtype, shape, "kept tokens");
  };
  ContextBatch context;
  context.sample_length = ctx.kept_tokens;
  context.team_size = batch.context.team_size;
  const int teams = ctx.context_group.size() / context.team_size;
  const int team = ctx.context_group.rank() / context.team_size;
  const int64_t of_team = kept_K.numel() / teams;
  context.cu_seqlens = allocate(DType::kInt32, {teams, samples + 1});
  context.place_CT = allocate(DType::kInt32, {teams, of_team});
  context.sample_T = mine.sample_M;
  context.sample_position_T = mine.position_M;
  if (context.team_size > 1) {
    context.sample_T = allocate(DType::kInt64, {of_team});
    context.sample_position_T = allocate(DType::kInt32, {of_team});
  }
  for (int t = 0; t < teams; ++t) {
    ops::KeptPart part = {context.cu_seqlens.Select(0, t), context.place_CT.Select(0, t), {}, {}};
    if (t == team && context.team_size > 1) {
      part.sample_M = context.sample_T;
      part.position_M = context.sample_position_T;
    }
    ops::FindKeptPart(ctx.stream, {teams, t}, samples, length, kept_K, batch.sample_T, part);
  }
  return context;
}

// The first of this rank's rows among those of all tensor-parallel ranks.
int64_t FirstRow(const LayerContext& ctx) {
  return ctx.sequence_parallel ? ctx.tensor_group.rank() * ctx.rows() : 0;
}

// Chooses the kept tokens of a batch. `rows`, unless it is null, is where they are among its rows.
MicroBatch ChooseOf(const LayerContext& ctx, const MicroBatch& batch, int64_t layer,
                    ops::KeptRows* rows) {
  const int ranks = ctx.context_group.size();
  const int64_t samples = batch.num_samples, count = samples * ctx.kept_tokens;
  const int64_t tokens = batch.num_tokens() * ranks;
  CHECK_EQ(batch.num_sequences(), samples);
  CHECK(ranks == 1 || batch.context.sample_length * samples == tokens);
  const auto allocate = [&](DType dtype, int64_t size) {
    return ctx.saved->Allocate(dtype, {size}, "kept tokens");
  };
  Arena::Scope scope(ctx.scratch);
  const Tensor kept_K = ctx.scratch->Allocate(DType::kInt32, {count}, "kept tokens");
  const Tensor place_W = ctx.scratch->Allocate(DType::kInt32, {tokens}, "places of kept tokens");
  const ops::SampleCut cut = {ranks, ctx.context_group.rank()};
  ops::ChooseTokens(ctx.stream,
                    DeriveKey(ctx.seed, kPhiloxTokenDropping, static_cast<uint64_t>(layer), 0),
                    samples, batch.sample_T, kept_K, place_W);
  if (rows != nullptr) {
    *rows = {allocate(DType::kInt32, count), allocate(DType::kInt32, batch.num_tokens()),
             allocate(DType::kInt32, batch.num_tokens())};
    ops::FindKeptRows(ctx.stream, cut, samples, kept_K, place_W, *rows);
  }
  const ops::KeptPart mine = {Tensor(), Tensor(), allocate(DType::kInt64, count / ranks),
                              allocate(DType::kInt32, count / ranks)};
  const int64_t length = tokens / samples;
  ops::FindKeptPart(ctx.stream, cut, samples, length, kept_K, batch.sample_T, mine);
  MicroBatch kept;
  kept.sample_T = mine.sample_M;
  kept.sample_position_T = mine.position_M;
  kept.tokens_T = kept.position_T = mine.position_M;
  if (ranks == 1) {
    kept.position_T = allocate(DType::kInt32, count);
    ops::GatherNumbers(ctx.stream, kept_K, batch.position_T, kept.position_T);
  }
  kept.cu_seqlens = allocate(DType::kInt32, samples + 1);
  ops::FindKeptPart(ctx.stream, {1, 0}, samples, length, kept_K, batch.sample_T,
                    {kept.cu_seqlens, Tensor(), Tensor(), Tensor()});
  if (ranks > 1) kept.context = KeptContext(ctx, mine, kept_K);
  kept.max_seqlen = ctx.kept_tokens;
  kept.num_samples = samples;
  kept.sample_weight = batch.sample_weight;
  return kept;
}

}  // namespace

void ChooseKept(const LayerContext& ctx, int64_t layer, KeptTokens* kept) {
  kept->batch = ChooseOf(ctx, *ctx.batch, layer, &kept->rows);
  // The choice is that of the sample, so the ranks that have it in the other layout make the same.
  if (ctx.inner != nullptr) kept->inner = ChooseOf(ctx, *ctx.inner, layer, /*rows=*/nullptr);
}

// A table's rows are looked up by the tokens' numbers; a number that is not in it gives zeros.
void TakeKept(const LayerContext& ctx, const KeptTokens& kept, const Tensor& x_RH,
              const Tensor& x_MH) {
  Arena::Scope scope(ctx.scratch);
  const LayerContext of_kept = kept.Context(ctx);
  const int64_t columns = x_RH.dim(1), ranks = ctx.context_group.size();
  const Tensor of_rank = SummandOf(of_kept, x_MH);
  Tensor of_all = of_rank;
  if (ranks > 1) {
    of_all = ctx.scratch->Allocate(x_RH.dtype(), {kept.rows.row_K.numel(), columns},
                                   "rows of kept tokens");
  }
  ops::EmbeddingForward(ctx.stream, kept.rows.row_K, x_RH, FirstRow(ctx), /*accumulate=*/false,
                        of_all);
  if (ranks > 1) ctx.context_group.ReduceScatter(of_all, of_rank, ctx.stream);
  if (ctx.sequence_parallel) Reduce(of_kept, of_rank, x_MH);
}

void PutKept(const LayerContext& ctx, const KeptTokens& kept, const Tensor& y_MH,
             const Tensor& x_RH, const Tensor& y_RH) {
  Arena::Scope scope(ctx.scratch);
  const Tensor of_rank = Gather(kept.Context(ctx), y_MH);
  Tensor of_all = of_rank;
  if (ctx.context_group.size() > 1) {
    of_all = ctx.scratch->Allocate(y_MH.dtype(), {kept.rows.row_K.numel(), y_MH.dim(1)},
                                   "rows of kept tokens");
    ctx.context_group.AllGather(of_rank, of_all, ctx.stream);
  }
  ops::EmbeddingForward(ctx.stream, ctx.MyRows(kept.rows.place_T), of_all, /*first_row=*/0,
                        /*accumulate=*/false, y_RH);
  ops::EmbeddingForward(ctx.stream, ctx.MyRows(kept.rows.bypass_T), x_RH, FirstRow(ctx),
                        /*accumulate=*/true, y_RH);
}

}  // namespace megatron
