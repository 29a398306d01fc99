#include "megatron/models/bert/sequence_classifier.h"

#include <string>

#include "absl/strings/match.h"
#include "megatron/ops/elementwise.h"
#include "megatron/tensor/trace/trace.h"

namespace megatron {
namespace {

// Megatron's names.
constexpr char kClasses[] = "classification_head", kChoices[] = "multichoice_head";

SequenceHeadOptions HeadOptions(const ModelOptions& options) {
  SequenceHeadOptions head;
  head.name = options.num_choices > 1 ? kChoices : kClasses;
  head.classes = options.num_classes;
  head.choices = options.num_choices;
  head.dropout = options.transformer.hidden_dropout;
  return head;
}

Tensor RowOf(const Measures& measures, const Tensor& sums, MeasureKind kind) {
  return sums.Select(0, megatron::RowOf(measures, kind));
}

}  // namespace

SequenceClassifier::SequenceClassifier(const ModelOptions& options, const Measures& measures)
    : dtype_(options.transformer.dtype),
      measures_(measures),
      head_(options.transformer, HeadOptions(options)) {
  const TransformerOptions& transformer = options.transformer;
  if (transformer.post_norm) return;
  const std::string norm = transformer.name + ".final_layernorm.";
  norm_ = std::make_unique<NormLayer>(
      NormOptions{transformer.norm, norm + "weight", norm + "bias", transformer.hidden_size,
                  /*partial_over_tensor=*/transformer.sequence_parallel});
}

void SequenceClassifier::Forward(const LayerContext& ctx, const Tensor& x_TH, const Tensor& sums,
                                 Saved* saved, const Tensor& losses) const {
  const TraceSpan span(ctx.stream, "head");
  Arena::Scope scope(ctx.scratch);
  const WeightsInUse weights(ctx.blocks, block_);
  Tensor normed_TH = x_TH;
  if (norm_ != nullptr) {
    normed_TH = ctx.saved->Allocate(dtype_, x_TH.shape(), "norm output");
    norm_->Forward(ctx, x_TH, normed_TH, &saved->norm);
  }
  head_.Forward(ctx, normed_TH, RowOf(measures_, sums, MeasureKind::kLmLoss),
                RowOf(measures_, sums, MeasureKind::kClassAccuracy), &saved->head, losses);
}

void SequenceClassifier::Backward(const LayerContext& ctx, const Tensor& dx_TH,
                                  const Saved& saved) {
  const TraceSpan span(ctx.stream, "head");
  Arena::Scope scope(ctx.scratch);
  const WeightsInUse weights(ctx.blocks, block_);
  const GradientsInUse gradients(ctx.blocks, block_);
  const Tensor d_TH =
      norm_ == nullptr ? dx_TH : ctx.scratch->Allocate(dtype_, dx_TH.shape(), "norm gradient");
  ops::Zero(ctx.stream, d_TH);
  head_.Backward(ctx, d_TH, saved.head);
  if (norm_ != nullptr) norm_->Backward(ctx, d_TH, Tensor(), dx_TH, saved.norm);
}

void SequenceClassifier::AppendParameters(std::vector<Parameter*>* out) {
  std::vector<Parameter*> own;
  if (norm_ != nullptr) norm_->AppendParameters(&own);
  head_.AppendParameters(&own);
  block_ = NextBlock(*out);
  AppendBlock(own, out);
}

bool SequenceClassifier::IsOwn(absl::string_view name) {
  return absl::StartsWith(name, kClasses) || absl::StartsWith(name, kChoices) ||
         absl::StartsWith(name, "pooler.");
}

bool SequenceClassifier::HasClasses(absl::string_view name) {
  return absl::StartsWith(name, kClasses);
}

bool SequenceClassifier::IsOfOtherHead(absl::string_view name) {
  return IsOwn(name) || absl::StartsWith(name, "lm_head.") ||
         absl::StartsWith(name, "binary_head.") || absl::StartsWith(name, "output_layer.");
}

}  // namespace megatron
