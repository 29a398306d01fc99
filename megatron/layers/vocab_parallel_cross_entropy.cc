#include "megatron/layers/vocab_parallel_cross_entropy.h"

#include "glog/logging.h"
#include "megatron/ops/elementwise.h"

namespace megatron {

VocabParallelCrossEntropy::Saved VocabParallelCrossEntropy::Forward(
    const LayerContext& ctx, Arena* arena, const Tensor& logits_TV, const Tensor& labels_T,
    const Tensor& weight_T, const Outputs& out) const {
  Saved saved;
  saved.logits_TV = logits_TV;
  saved.labels_T = labels_T;
  saved.weight_T = weight_T;
  if (softcap_ > 0) ops::SoftCap(ctx.stream, softcap_, logits_TV);
  if (ctx.tensor_group.size() == 1) {
    ops::CrossEntropy(ctx.stream, logits_TV, labels_T, range_, weight_T, out.loss_T, out.hit_T,
                      softcap_);
    return saved;
  }
  const int64_t tokens = logits_TV.dim(0);
  const auto statistics = [&](Arena* from) {
    return from->Allocate(DType::kFloat32, {tokens}, "loss statistics");
  };
  saved.max_T = statistics(arena);
  saved.sum_T = statistics(arena);
  Arena::Scope scope(ctx.scratch);
  // What ranks add up lies side by side, so that one message has it all.
  const Tensor sums_2T = ctx.scratch->Allocate(DType::kFloat32, {2, tokens}, "loss statistics");
  const Tensor target_T = sums_2T.Select(0, 0), sum_T = sums_2T.Select(0, 1);
  ops::CrossEntropyStatistics(ctx.stream, logits_TV, labels_T, range_, saved.max_T, sum_T,
                              target_T);
  const Tensor local_max_T = statistics(ctx.scratch);
  ops::Copy(ctx.stream, saved.max_T, local_max_T);
  ctx.tensor_group.AllReduce(saved.max_T, ReduceOp::kMax, ctx.stream);
  ops::RescaleSum(ctx.stream, local_max_T, saved.max_T, sum_T);
  ctx.tensor_group.AllReduce(sums_2T, ReduceOp::kSum, ctx.stream);
  ops::Copy(ctx.stream, sum_T, saved.sum_T);
  ops::CrossEntropyLoss(ctx.stream, saved.max_T, saved.sum_T, target_T, out.loss_T);
  if (!out.hit_T.empty()) ops::CrossEntropyHits(ctx.stream, saved.max_T, target_T, out.hit_T);
  return saved;
}

Tensor VocabParallelCrossEntropy::Backward(const LayerContext& ctx, const Saved& saved) const {
  CHECK(!saved.weight_T.empty()) << "Forward was told that there is no Backward";
  if (!saved.sum_T.empty()) {
    ops::CrossEntropyBackward(ctx.stream, saved.logits_TV, saved.labels_T, range_, saved.max_T,
                              saved.sum_T, saved.weight_T, softcap_);
  }
  return saved.logits_TV;
}

}  // namespace megatron
