#include "megatron/layers/token_dropping.h"

#include "glog/logging.h"
#include "megatron/base/philox.h"
#include "megatron/ops/embedding.h"

namespace megatron {

void ChooseKept(const LayerContext& ctx, int64_t layer, KeptTokens* kept) {
  const MicroBatch& batch = *ctx.batch;
  const int64_t samples = batch.num_samples, count = samples * ctx.kept_tokens;
  CHECK(!ctx.sequence_parallel && batch.context.cu_seqlens.empty());
  CHECK_EQ(batch.num_sequences(), samples);
  const auto allocate = [&](DType dtype, int64_t size) {
    return ctx.saved->Allocate(dtype, {size}, "kept tokens");
  };
  ops::TokenSubset& subset = kept->subset;
  subset.kept_K = allocate(DType::kInt32, count);
  subset.place_T = allocate(DType::kInt32, batch.num_tokens());
  subset.bypass_T = allocate(DType::kInt32, batch.num_tokens());
  subset.cu_seqlens = allocate(DType::kInt32, samples + 1);
  ops::ChooseTokens(ctx.stream,
                    DeriveKey(ctx.seed, kPhiloxTokenDropping, static_cast<uint64_t>(layer), 0),
                    samples, batch.sample_T, batch.sample_position_T, subset);
  const auto gathered = [&](const Tensor& numbers_T) {
    const Tensor numbers_K = allocate(numbers_T.dtype(), count);
    ops::GatherNumbers(ctx.stream, subset.kept_K, numbers_T, numbers_K);
    return numbers_K;
  };
  kept->batch = MicroBatch();
  kept->batch.tokens_T = gathered(batch.tokens_T);
  kept->batch.position_T = gathered(batch.position_T);
  kept->batch.sample_T = gathered(batch.sample_T);
  kept->batch.sample_position_T = gathered(batch.sample_position_T);
  kept->batch.cu_seqlens = subset.cu_seqlens;
  kept->batch.max_seqlen = ctx.kept_tokens;
  kept->batch.num_samples = samples;
  kept->batch.sample_weight = batch.sample_weight;
}

// A table's rows are looked up by the tokens' numbers; a number of -1 gives zeros.
void TakeKept(const LayerContext& ctx, const KeptTokens& kept, const Tensor& x_TH,
              const Tensor& x_KH) {
  ops::EmbeddingForward(ctx.stream, kept.subset.kept_K, x_TH, /*first_row=*/0, /*accumulate=*/false,
                        x_KH);
}

void PutKept(const LayerContext& ctx, const KeptTokens& kept, const Tensor& y_KH,
             const Tensor& x_TH, const Tensor& y_TH) {
  ops::EmbeddingForward(ctx.stream, kept.subset.place_T, y_KH, /*first_row=*/0,
                        /*accumulate=*/false, y_TH);
  ops::EmbeddingForward(ctx.stream, kept.subset.bypass_T, x_TH, /*first_row=*/0,
                        /*accumulate=*/true, y_TH);
}

}  // namespace megatron
