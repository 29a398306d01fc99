#include "megatron/models/t5/span_accuracy.h"

#include "megatron/ops/activation.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/embedding.h"
#include "megatron/ops/weighted_sum.h"

namespace megatron {

void CountExactSpans(const LayerContext& ctx, const Tensor& hit_T, const Tensor& sums_2) {
  const SpanBatch& spans = ctx.batch->spans;
  const int64_t count = spans.num_spans();
  if (count == 0) return;
  Arena::Scope scope(ctx.scratch);
  const Tensor hits_R1 = ctx.scratch->Allocate(DType::kFloat32, {count, 1}, "spans");
  const Tensor exact_R1 = ctx.scratch->Allocate(DType::kFloat32, {count, 1}, "spans");
  // 1 - labels + hits is 1 where all are hits, and at most 0 where not. The hits may be those of
  // several ranks, of which the first counts.
  const bool counts = ctx.context_group.rank() == 0;
  ops::Zero(ctx.stream, hits_R1);
  if (counts) ops::Copy(ctx.stream, spans.missing_R, hits_R1.Flatten());
  ops::EmbeddingBackward(ctx.stream, spans.span_T, hit_T.View({hit_T.numel(), 1}), 0, hits_R1);
  ctx.context_group.AllReduce(hits_R1, ReduceOp::kSum, ctx.stream);
  if (!counts) return;
  ops::ActivationForward(ctx.stream, ops::Activation::kRelu, hits_R1, exact_R1);
  ops::WeightedSum(ctx.stream, exact_R1.Flatten(), spans.weight_R, sums_2);
}

}  // namespace megatron
