// The metrics and the fields of StepMetrics that hold them. Whoever writes or reads steps goes
// through these lists, so that no two files differ in what a value is called.
//
//   VisitValues(step, [&](const Metric& metric, const auto& field) { ... });
//
// A field is a double, int64_t or bool, or an std::optional of one. A step that is not const gives
// fields that can be set.
#ifndef MEGATRON_TRAIN_METRICS_STEP_VALUES_H_
#define MEGATRON_TRAIN_METRICS_STEP_VALUES_H_

#include "megatron/train/metrics/metric_table.h"
#include "megatron/train/metrics/step_metrics.h"

namespace megatron {

// The place of the step in training.
template <typename Step, typename Visitor>
void VisitPosition(Step& step, const Visitor& visit) {
  visit(metric::kIteration, step.iteration);
  visit(metric::kConsumedSamples, step.consumed_samples);
}

// The values that metrics.jsonl has of every step, without the measures of the model.
template <typename Step, typename Visitor>
void VisitValues(Step& step, const Visitor& visit) {
  visit(metric::kLearningRate, step.learning_rate);
  visit(metric::kDecoupledLearningRate, step.decoupled_learning_rate);
  visit(metric::kGradNorm, step.grad_norm);
  visit(metric::kParamsNorm, step.params_norm);
  visit(metric::kNumZeros, step.num_zeros);
  visit(metric::kSentGradients, step.sent_gradients);
  visit(metric::kLossScale, step.loss_scale);
  visit(metric::kBatchSize, step.global_batch_size);
  visit(metric::kSeqLength, step.seq_length);
  visit(metric::kConsumedTokens, step.consumed_tokens);
  visit(metric::kKeptTokens, step.kept_tokens);
  visit(metric::kSkipped, step.skipped);
  visit(metric::kLossScore, step.loss_score);
  visit(metric::kGradNormScore, step.grad_norm_score);
  visit(metric::kPredictionExcess, step.prediction_excess);
  visit(metric::kEpsilon, step.epsilon);
  visit(metric::kMaxAttentionLogit, step.diagnostics.max_attention_logit);
  visit(metric::kNoiseScale, step.diagnostics.noise_scale);
  visit(metric::kElapsed, step.speed.elapsed_ms);
  visit(metric::kTokensPerSecond, step.speed.tokens_per_second);
  visit(metric::kTflops, step.speed.model_tflops);
  visit(metric::kMfu, step.speed.mfu);
  for (int i = 0; i < kNumTimeCategories; ++i)
    visit(ShareMetric(static_cast<TimeCategory>(i)), step.time_shares.categories[i]);
  for (int i = 0; i < kNumTimeCategories; ++i) {
    visit(LeastShareMetric(static_cast<TimeCategory>(i)), step.time_shares.least[i]);
    visit(MostShareMetric(static_cast<TimeCategory>(i)), step.time_shares.most[i]);
  }
  visit(metric::kCommunicationShare, step.time_shares.communication);
  visit(metric::kHiddenShare, step.time_shares.hidden);
  visit(metric::kSlowestRank, step.time_shares.slowest_rank);
  visit(metric::kSlowestExcess, step.time_shares.slowest_excess);
}

}  // namespace megatron

#endif  // MEGATRON_TRAIN_METRICS_STEP_VALUES_H_
