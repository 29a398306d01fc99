#include "megatron/models/bert/sentence_order_head.h"

#include <string>

#include "megatron/layers/linear_gradients.h"
#include "megatron/ops/activation.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/embedding.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/weighted_sum.h"

namespace megatron {
namespace {

constexpr ops::VocabRange kClasses = {0, 2};

Parameter Weight(const std::string& name, int64_t outputs, const TransformerOptions& options) {
  Parameter weight;
  weight.name = name;
  weight.sharding = Replicated({outputs, options.hidden_size});
  weight.initializer = Initializer::Normal(options.init_std);
  return weight;
}

Parameter Bias(const std::string& name, int64_t outputs) {
  Parameter bias;
  bias.name = name;
  bias.sharding = Replicated({outputs});
  bias.weight_decay = false;
  return bias;
}

// Sequences that begin on other context-parallel ranks have no first token here, and weight 0.
Tensor FirstTokens(const LayerContext& ctx) {
  if (ctx.context_group.size() > 1) return ctx.batch->context.first_token_S;
  return ctx.batch->cu_seqlens.Slice(0, 0, ctx.batch->num_sequences());
}

// Returns the number of the first row of the residual stream that this rank holds.
int64_t FirstRow(const LayerContext& ctx) {
  return ctx.sequence_parallel ? ctx.tensor_group.rank() * ctx.rows() : 0;
}

}  // namespace

SentenceOrderHead::SentenceOrderHead(const TransformerOptions& options)
    : pooler_weight_HH_(Weight("pooler.dense.weight", options.hidden_size, options)),
      pooler_bias_H_(Bias("pooler.dense.bias", options.hidden_size)),
      weight_2H_(Weight("binary_head.weight", kClasses.vocab_size, options)),
      bias_2_(Bias("binary_head.bias", kClasses.vocab_size)) {
  pooler_weight_HH_.matrix = MatrixDims();
}

void SentenceOrderHead::Forward(const LayerContext& ctx, const Tensor& x_TH,
                                const Tensor& loss_sums, const Tensor& hit_sums,
                                Saved* saved) const {
  Arena::Scope scope(ctx.scratch);
  const MicroBatch& batch = *ctx.batch;
  const int64_t sequences = batch.num_sequences();
  auto keep = [&](DType dtype, const Shape& shape) {
    return ctx.saved->Allocate(dtype, shape, "sentence order");
  };
  const Shape hidden{sequences, x_TH.dim(1)};
  saved->first_SH = keep(x_TH.dtype(), hidden);
  // The residual stream is the table that first tokens are looked up in; each rank finds those
  // that it holds, and zeros for the others.
  ops::EmbeddingForward(ctx.stream, FirstTokens(ctx), x_TH, FirstRow(ctx), /*accumulate=*/false,
                        saved->first_SH);
  if (ctx.sequence_parallel)
    ctx.tensor_group.AllReduce(saved->first_SH, ReduceOp::kSum, ctx.stream);
  saved->pre_SH = keep(x_TH.dtype(), hidden);
  saved->pooled_SH = keep(x_TH.dtype(), hidden);
  ops::LinearActivationForward(ctx.stream, ops::Activation::kTanh, saved->first_SH,
                               pooler_weight_HH_.data, pooler_bias_H_.data, saved->pre_SH,
                               saved->pooled_SH);
  saved->logits_S2 = keep(x_TH.dtype(), {sequences, kClasses.vocab_size});
  ops::LinearForward(ctx.stream, saved->pooled_SH, weight_2H_.data, bias_2_.data, saved->logits_S2);

  saved->max_S = keep(DType::kFloat32, {sequences});
  saved->sum_S = keep(DType::kFloat32, {sequences});
  const Tensor target_S = ctx.scratch->Allocate(DType::kFloat32, {sequences}, "loss"),
               loss_S = ctx.scratch->Allocate(DType::kFloat32, {sequences}, "loss"),
               hit_S = ctx.scratch->Allocate(DType::kFloat32, {sequences}, "loss");
  ops::CrossEntropyStatistics(ctx.stream, saved->logits_S2, batch.sequence_label_S, kClasses,
                              saved->max_S, saved->sum_S, target_S);
  ops::CrossEntropyLoss(ctx.stream, saved->max_S, saved->sum_S, target_S, loss_S);
  ops::CrossEntropyHits(ctx.stream, saved->max_S, target_S, hit_S);
  ops::WeightedSum(ctx.stream, loss_S, batch.sequence_weight_S, loss_sums);
  ops::WeightedSum(ctx.stream, hit_S, batch.sequence_weight_S, hit_sums);
}

void SentenceOrderHead::Backward(const LayerContext& ctx, const Tensor& dx_TH, const Saved& saved) {
  Arena::Scope scope(ctx.scratch);
  const MicroBatch& batch = *ctx.batch;
  auto allocate = [&](DType dtype, const Shape& shape) {
    return ctx.scratch->Allocate(dtype, shape, "sentence order gradient");
  };
  ops::CrossEntropyBackward(ctx.stream, saved.logits_S2, batch.sequence_label_S, kClasses,
                            saved.max_S, saved.sum_S, batch.sequence_gradient_weight_S);
  const Tensor dpooled_SH = allocate(dx_TH.dtype(), saved.pooled_SH.shape());
  ops::LinearBackwardInput(ctx.stream, saved.logits_S2, weight_2H_.data, dpooled_SH);
  AddLinearGradients(ctx.stream, saved.logits_S2, saved.pooled_SH, weight_2H_, bias_2_.grad);
  ops::ActivationBackward(ctx.stream, ops::Activation::kTanh, dpooled_SH, saved.pre_SH, dpooled_SH);
  const Tensor dfirst_SH = allocate(dx_TH.dtype(), saved.first_SH.shape());
  ops::LinearBackwardInput(ctx.stream, dpooled_SH, pooler_weight_HH_.data, dfirst_SH);
  AddLinearGradients(ctx.stream, dpooled_SH, saved.first_SH, pooler_weight_HH_,
                     pooler_bias_H_.grad);

  // The gradients go back to where they were looked up: a table's gradient is fp32.
  const Tensor table_TH = allocate(DType::kFloat32, dx_TH.shape());
  ops::Zero(ctx.stream, table_TH);
  ops::EmbeddingBackward(ctx.stream, FirstTokens(ctx), dfirst_SH, FirstRow(ctx), table_TH);
  const Tensor scattered_TH = allocate(dx_TH.dtype(), dx_TH.shape());
  ops::Copy(ctx.stream, table_TH, scattered_TH);
  ops::Add(ctx.stream, scattered_TH, dx_TH);
}

void SentenceOrderHead::AppendParameters(std::vector<Parameter*>* out) {
  for (Parameter* parameter : {&pooler_weight_HH_, &pooler_bias_H_, &weight_2H_, &bias_2_})
    out->push_back(parameter);
}

}  // namespace megatron
