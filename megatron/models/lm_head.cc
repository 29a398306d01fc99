#include "megatron/models/lm_head.h"

#include "megatron/layers/tensor_parallel.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/weighted_sum.h"
#include "megatron/tensor/weight_blocks.h"

namespace megatron {

LmHead::LmHead(const GptOptions& options, const ProcessGroup& tensor_group, Parameter* words)
    : dtype_(options.transformer.dtype),
      hidden_size_(options.transformer.hidden_size),
      words_(words),
      shares_with_embedding_(options.tied_embeddings && words->owner),
      norm_({options.transformer.norm, "decoder.final_layernorm.weight",
             "decoder.final_layernorm.bias", hidden_size_,
             /*partial_over_tensor=*/options.transformer.sequence_parallel}),
      cross_entropy_({tensor_group.rank() * options.padded_vocab_size / tensor_group.size(),
                      options.vocab_size}) {}

void LmHead::Forward(const LayerContext& ctx, const Tensor& x_TH, const Tensor& sums,
                     Saved* saved) const {
  Arena::Scope scope(ctx.scratch);
  const WeightsInUse norm(ctx.blocks, norm_block_, words_->block);
  const WeightsInUse words(ctx.blocks, words_->block);
  saved->normed_TH = Allocate(ctx.saved, ctx.rows(), hidden_size_, "norm output");
  norm_.Forward(ctx, x_TH, saved->normed_TH, &saved->norm);
  const int64_t tokens = ctx.batch->num_tokens();
  const Tensor logits_TV = Allocate(ctx.saved, tokens, words_->data.dim(0), "logits");
  ops::LinearForward(ctx.stream, Gather(ctx, saved->normed_TH), words_->data, Tensor(), logits_TV);
  const Tensor loss_T = ctx.scratch->Allocate(DType::kFloat32, {tokens}, "loss");
  cross_entropy_.Forward(ctx, logits_TV, loss_T, &saved->loss);
  ops::WeightedSum(ctx.stream, loss_T, ctx.batch->loss_weight_T, sums);
}

void LmHead::Backward(const LayerContext& ctx, const Tensor& dx_TH, Saved* saved) {
  Arena::Scope scope(ctx.scratch);
  const WeightsInUse norm(ctx.blocks, norm_block_, words_->block);
  const WeightsInUse words(ctx.blocks, words_->block);
  const GradientsInUse norm_gradients(ctx.blocks, norm_block_);
  const GradientsInUse words_gradients(ctx.blocks, words_->block,
                                       /*last=*/!shares_with_embedding_ && !PutsOff(ctx));
  const Tensor dlogits_TV = cross_entropy_.Backward(ctx, ctx.batch->gradient_weight_T, saved->loss);
  const Tensor dnormed_TH = Allocate(ctx.scratch, ctx.rows(), hidden_size_, "norm gradient");
  const Tensor summand_TH = SummandOf(ctx, dnormed_TH);
  ops::LinearBackwardInput(ctx.stream, dlogits_TV, words_->data, summand_TH);
  Reduce(ctx, summand_TH, dnormed_TH);
  if (!PutsOff(ctx)) AddWordsGradient(ctx, *saved);
  norm_.Backward(ctx, dnormed_TH, Tensor(), dx_TH, saved->norm);
}

void LmHead::BackwardWeight(const LayerContext& ctx, const Saved& saved) {
  if (!PutsOff(ctx)) return;
  const GradientsInUse words(ctx.blocks, words_->block);
  AddWordsGradient(ctx, saved);
}

// Backward has written the logits' gradient over the logits.
void LmHead::AddWordsGradient(const LayerContext& ctx, const Saved& saved) {
  Arena::Scope scope(ctx.scratch);
  ops::LinearBackwardWeight(ctx.stream, saved.loss.logits_TV, Gather(ctx, saved.normed_TH),
                            words_->grad, Tensor());
}

void LmHead::Predict(const LayerContext& ctx, const Tensor& x_TH, int64_t token,
                     const Tensor& logits_V) const {
  Arena::Scope scope(ctx.scratch);
  const WeightsInUse norm(ctx.blocks, norm_block_, words_->block);
  const WeightsInUse words(ctx.blocks, words_->block);
  const Tensor normed_1H = Allocate(ctx.scratch, 1, hidden_size_, "norm output");
  NormLayer::Saved forgotten;
  norm_.Forward(ctx, x_TH.Slice(0, token, token + 1), normed_1H, &forgotten);
  const Tensor mine_1V = Allocate(ctx.scratch, 1, words_->data.dim(0), "logits");
  ops::LinearForward(ctx.stream, normed_1H, words_->data, Tensor(), mine_1V);
  const Tensor all_1V = Allocate(ctx.scratch, 1, logits_V.numel(), "logits");
  ctx.tensor_group.AllGather(mine_1V.Flatten(), all_1V.Flatten(), ctx.stream);
  ops::Copy(ctx.stream, all_1V.Flatten(), logits_V);
}

void LmHead::AppendParameters(std::vector<Parameter*>* out) {
  std::vector<Parameter*> norm;
  norm_.AppendParameters(&norm);
  norm_block_ = NextBlock(*out);
  AppendBlock(norm, out);
}

}  // namespace megatron
