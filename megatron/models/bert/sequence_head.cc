#include "megatron/models/bert/sequence_head.h"

#include "glog/logging.h"
#include "megatron/layers/dropout_site.h"
#include "megatron/layers/linear_gradients.h"
#include "megatron/ops/activation.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/embedding.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/weighted_sum.h"

namespace megatron {
namespace {

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

// Returns the logits that a label tells apart, a row for each group.
Tensor ByGroup(const Tensor& logits_SC, int64_t groups, int64_t choices) {
  if (choices == 1) return logits_SC;
  return logits_SC.Slice(0, 0, groups * choices).View({groups, choices});
}

}  // namespace

SequenceHead::SequenceHead(const TransformerOptions& transformer,
                           const SequenceHeadOptions& options)
    : options_(options),
      pooler_weight_HH_(Weight("pooler.dense.weight", transformer.hidden_size, transformer)),
      pooler_bias_H_(Bias("pooler.dense.bias", transformer.hidden_size)),
      weight_CH_(Weight(options.name + ".weight", options.classes, transformer)),
      bias_C_(Bias(options.name + ".bias", options.classes)) {
  CHECK(options.choices == 1 || options.classes == 1);
  pooler_weight_HH_.matrix = MatrixDims();
}

ops::Dropout SequenceHead::DropoutOf(const LayerContext& ctx) const {
  ops::Dropout dropout;
  if (!ctx.training || options_.dropout == 0) return dropout;
  dropout.probability = options_.dropout;
  dropout.key = DeriveKey(ctx.seed, kPhiloxDropout, /*layer=*/0,
                          static_cast<uint32_t>(DropoutSite::kSequenceHead));
  dropout.sample_T = ctx.batch->sequence_sample_S;
  dropout.position_T = ctx.batch->sequence_position_S;
  return dropout;
}

int64_t SequenceHead::GroupsOf(const MicroBatch& batch) const {
  return options_.choices > 1 ? batch.num_samples : batch.num_sequences();
}

void SequenceHead::Forward(const LayerContext& ctx, const Tensor& x_TH, const Tensor& loss_sums,
                           const Tensor& hit_sums, Saved* saved, const Tensor& losses) const {
  Arena::Scope scope(ctx.scratch);
  const MicroBatch& batch = *ctx.batch;
  const int64_t sequences = batch.num_sequences(), groups = GroupsOf(batch);
  auto keep = [&](DType dtype, const Shape& shape) {
    return ctx.saved->Allocate(dtype, shape, "sequence head");
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
  saved->dropped_SH = saved->pooled_SH;
  if (const ops::Dropout dropout = DropoutOf(ctx); dropout.probability > 0) {
    saved->dropped_SH = keep(x_TH.dtype(), hidden);
    ops::BiasDropoutAdd(ctx.stream, dropout, saved->pooled_SH, Tensor(), Tensor(),
                        saved->dropped_SH);
  }
  saved->logits_SC = keep(x_TH.dtype(), {sequences, options_.classes});
  ops::LinearForward(ctx.stream, saved->dropped_SH, weight_CH_.data, bias_C_.data,
                     saved->logits_SC);

  saved->max_G = keep(DType::kFloat32, {groups});
  saved->sum_G = keep(DType::kFloat32, {groups});
  const auto scratch = [&] {
    return ctx.scratch->Allocate(DType::kFloat32, {groups}, "sequence loss");
  };
  const Tensor target_G = scratch(), hit_G = scratch();
  const Tensor loss_G = losses ? losses.Slice(0, 0, groups) : scratch();
  const Tensor label_G = batch.sequence_label_S.Slice(0, 0, groups),
               weight_G = batch.sequence_weight_S.Slice(0, 0, groups);
  const ops::VocabRange range = {0, told_apart()};
  ops::CrossEntropyStatistics(ctx.stream, ByGroup(saved->logits_SC, groups, options_.choices),
                              label_G, range, saved->max_G, saved->sum_G, target_G);
  ops::CrossEntropyLoss(ctx.stream, saved->max_G, saved->sum_G, target_G, loss_G);
  ops::CrossEntropyHits(ctx.stream, saved->max_G, target_G, hit_G);
  ops::WeightedSum(ctx.stream, loss_G, weight_G, loss_sums);
  ops::WeightedSum(ctx.stream, hit_G, weight_G, hit_sums);
}

void SequenceHead::Backward(const LayerContext& ctx, const Tensor& dx_TH, const Saved& saved) {
  Arena::Scope scope(ctx.scratch);
  const MicroBatch& batch = *ctx.batch;
  const int64_t groups = GroupsOf(batch);
  auto allocate = [&](DType dtype, const Shape& shape) {
    return ctx.scratch->Allocate(dtype, shape, "sequence head gradient");
  };
  // The logits' gradient is written over them; sequences behind the last group have none.
  ops::CrossEntropyBackward(ctx.stream, ByGroup(saved.logits_SC, groups, options_.choices),
                            batch.sequence_label_S.Slice(0, 0, groups), {0, told_apart()},
                            saved.max_G, saved.sum_G,
                            batch.sequence_gradient_weight_S.Slice(0, 0, groups));
  const int64_t grouped = groups * options_.choices;
  if (grouped < batch.num_sequences())
    ops::Zero(ctx.stream, saved.logits_SC.Slice(0, grouped, batch.num_sequences()));
  const Tensor dpooled_SH = allocate(dx_TH.dtype(), saved.pooled_SH.shape());
  ops::LinearBackwardInput(ctx.stream, saved.logits_SC, weight_CH_.data, dpooled_SH);
  AddLinearGradients(ctx.stream, saved.logits_SC, saved.dropped_SH, weight_CH_, bias_C_.grad);
  if (const ops::Dropout dropout = DropoutOf(ctx); dropout.probability > 0)
    ops::DropoutBackward(ctx.stream, dropout, dpooled_SH, dpooled_SH, Tensor());
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

void SequenceHead::AppendParameters(std::vector<Parameter*>* out) {
  for (Parameter* parameter : {&pooler_weight_HH_, &pooler_bias_H_, &weight_CH_, &bias_C_})
    out->push_back(parameter);
}

}  // namespace megatron
