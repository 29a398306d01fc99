// The one table of a run's metrics: how each is called, and what it means. metrics.jsonl, the
// TensorBoard files and docs/metrics.md read it.
//
// A new metric is a row in metric_table.cc, and a line in VisitValues (step_values.h) or, if
// metrics.jsonl does not have it, in TensorboardWriter::WriteStep.
#ifndef MEGATRON_TRAIN_METRICS_METRIC_TABLE_H_
#define MEGATRON_TRAIN_METRICS_METRIC_TABLE_H_

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "megatron/tensor/trace/time_category.h"

namespace megatron {

// The times at which TensorBoard gets the value. metrics.jsonl has the values of steps at every
// step, and those of log lines at the steps that are logged.
enum class MetricRate { kEachStep, kEachLogLine, kEachEvaluation };

enum class MetricAxis {
  kIterations,
  kIterationsAndSamples,  // in a second curve, "<tag> vs samples", x counts consumed samples
};

struct Metric {
  const char* key;    // name in metrics.jsonl; empty: it is not there
  const char* tag;    // name in TensorBoard; empty: it is not there
  const char* unit;   // empty: none
  MetricAxis axis;    // TensorBoard's x
  MetricRate rate;    // TensorBoard's
  const char* chart;  // the picture of TensorBoard's layout that has the curve; empty: none
  const char* help;   // a sentence
};

namespace metric {

// Values of every step.
extern const Metric kIteration, kConsumedSamples, kLearningRate, kDecoupledLearningRate, kGradNorm,
    kParamsNorm, kNumZeros, kSentGradients, kLossScale, kBatchSize, kSeqLength, kConsumedTokens,
    kKeptTokens, kSkipped, kElapsed, kIterationTime, kTokensPerSecond, kTflops, kThroughput, kMfu;
// Values of the steps that are logged.
extern const Metric kWorldSize, kSkippedIterations, kNanIterations, kMemory, kPeakMemory,
    kCommunicationShare, kHiddenShare, kSlowestRank, kSlowestExcess;
// Values of the steps that logging.diagnostics_interval measures.
extern const Metric kMaxAttentionLogit, kNoiseScale;
// The loss on each of several training files; see SourceLossName.
extern const Metric kSourceLoss;
// Those of each layer; see LayerMetricName.
extern const Metric kLayerGradNorm, kLayerParamsNorm, kLayerUpdateNorm, kLayerUpdateRatio,
    kLayerOutputRms, kLayerOutputMax, kLayerAttentionLogit, kLayerMostLoaded, kLayerLeastLoaded,
    kLayerDropped, kLayerExpertEntropy, kLayerExpertLoad;
// Values of every step with logging.spike_threshold.
extern const Metric kLossScore, kGradNormScore;
// The value of the step at which a run compares itself with its prediction.
extern const Metric kPredictionExcess;
// The value of the steps with a round of a federated run.
extern const Metric kEpsilon;
// Values of evaluations, besides the measures of the model.
extern const Metric kPerplexity;
// Metrics of the tasks of train.eval_tasks; see TaskMetricName.
extern const Metric kTask;

}  // namespace metric

// All metrics, in the order of the documentation.
absl::Span<const Metric* const> AllMetrics();

// The measures of all models (models/measure.h), kLmLossName first. They are among AllMetrics().
absl::Span<const Metric> ModelMeasures();
// Returns the one with this name; null if there is none.
const Metric* FindMeasure(absl::string_view name);

// Returns the name of a metric of one layer: "grad-norm/decoder.layers.0". The table has these
// metrics with "LAYER" in place of the layer.
std::string LayerMetricName(const Metric& metric, absl::string_view layer);
// Returns the table's metric of a layer with this name; null if there is none.
const Metric* FindLayerMetric(absl::string_view name);
// Returns the layer in the name of a metric of one: "decoder.layers.0".
absl::string_view LayerOf(absl::string_view name);

// Returns the share of time that goes into the category, "share/compute".
const Metric& ShareMetric(TimeCategory category);
// Return the least and the most of it on any rank, "share/least-compute". TensorBoard lacks them.
const Metric& LeastShareMetric(TimeCategory category);
const Metric& MostShareMetric(TimeCategory category);
// Returns the timer with this tag, "optimizer-time"; null if there is none.
const Metric* FindTimer(absl::string_view tag);

// Returns the name of a measure's mean over an evaluation: "lm loss validation".
std::string EvaluationName(absl::string_view measure, bool on_test_set);
// Returns the name of the loss on one of several validation sets: "lm loss validation news".
std::string ValidationSetName(absl::string_view set);
// Returns the set in such a name; empty if it is none.
absl::string_view ValidationSetOf(absl::string_view name);
// Returns the name of the loss on one of several training files: "lm loss train news".
std::string SourceLossName(absl::string_view source);
// Returns the file in such a name; empty if it is none.
absl::string_view SourceOf(absl::string_view name);
// Returns the name of a task's metric, which is "hellaswag/acc" in EvaluationMetrics:
// "tasks/hellaswag/acc".
std::string TaskMetricName(absl::string_view metric);
// Returns "hellaswag/acc" for such a name; empty if it is none.
absl::string_view TaskMetricOf(absl::string_view name);
// Returns the name of the perplexity of a loss with that name: "lm loss validation ppl".
std::string PerplexityName(absl::string_view name);

// Returns what TensorBoard shows with the curve: the help and the unit.
std::string DescribeMetric(const Metric& metric);

// Returns the table of docs/metrics.md.
std::string MetricReference();

}  // namespace megatron

#endif  // MEGATRON_TRAIN_METRICS_METRIC_TABLE_H_
