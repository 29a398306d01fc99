#include "megatron/layers/vocab_parallel_cross_entropy.h"

#include "megatron/ops/elementwise.h"

namespace megatron {

void VocabParallelCrossEntropy::Forward(const LayerContext& ctx, const Tensor& logits_TV,
                                        const Tensor& loss_T, const Tensor& hit_T,
                                        Saved* saved) const {
  Arena::Scope scope(ctx.scratch);
  const Shape shape{logits_TV.dim(0)};
  saved->logits_TV = logits_TV;
  saved->max_T = ctx.saved->Allocate(DType::kFloat32, shape, "loss statistics");
  saved->sum_T = ctx.saved->Allocate(DType::kFloat32, shape, "loss statistics");
  const Tensor target_T = ctx.scratch->Allocate(DType::kFloat32, shape, "loss statistics");
  ops::CrossEntropyStatistics(ctx.stream, logits_TV, ctx.batch->labels_T, range_, saved->max_T,
                              saved->sum_T, target_T);
  if (ctx.tensor_group.size() > 1) {
    const Tensor local_max_T = ctx.scratch->Allocate(DType::kFloat32, shape, "loss statistics");
    ops::Copy(ctx.stream, saved->max_T, local_max_T);
    ctx.tensor_group.AllReduce(saved->max_T, ReduceOp::kMax, ctx.stream);
    ops::RescaleSum(ctx.stream, local_max_T, saved->max_T, saved->sum_T);
    ctx.tensor_group.AllReduce(saved->sum_T, ReduceOp::kSum, ctx.stream);
    ctx.tensor_group.AllReduce(target_T, ReduceOp::kSum, ctx.stream);
  }
  ops::CrossEntropyLoss(ctx.stream, saved->max_T, saved->sum_T, target_T, loss_T);
  if (!hit_T.empty()) ops::CrossEntropyHits(ctx.stream, saved->max_T, target_T, hit_T);
}

Tensor VocabParallelCrossEntropy::Backward(const LayerContext& ctx, const Tensor& weight_T,
                                           const Saved& saved) const {
  ops::CrossEntropyBackward(ctx.stream, saved.logits_TV, ctx.batch->labels_T, range_, saved.max_T,
                            saved.sum_T, weight_T);
  return saved.logits_TV;
}

}  // namespace megatron
