#include "megatron/train/metrics/metric_table.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "glog/logging.h"
#include "megatron/train/metrics/timers.h"

namespace megatron {
namespace {

constexpr MetricAxis kIterations = MetricAxis::kIterations;
constexpr MetricAxis kBoth = MetricAxis::kIterationsAndSamples;
constexpr MetricRate kStep = MetricRate::kEachStep;
constexpr MetricRate kLogLine = MetricRate::kEachLogLine;

constexpr Metric Mtp(const char* name, const char* help) {
  return {name, name, "nats per token", kBoth, kStep, "loss", help};
}

constexpr Metric kMeasures[] = {
    {"lm loss", "lm loss", "nats per token", kBoth, kStep, "loss",
     "Mean cross-entropy of the tokens that count."},
    {"lm accuracy", "lm accuracy", "share", kBoth, kStep, "accuracy",
     "Share of the tokens that count for which the right one is the likeliest."},
    {"exact span accuracy", "exact span accuracy", "share", kBoth, kStep, "accuracy",
     "Share of the masked spans of which every token is the likeliest."},
    {"sop loss", "sop loss", "nats per sequence", kBoth, kStep, "loss",
     "Mean cross-entropy of BERT's judgement of the order of two sentences."},
    {"sop accuracy", "sop accuracy", "share", kBoth, kStep, "accuracy",
     "Share of the sequences whose order of sentences BERT judges rightly."},
    {"accuracy", "accuracy", "share", kBoth, kStep, "accuracy",
     "Share of the samples of `data.task` that a BERT classifies rightly."},
    {"load_balancing_loss", "load_balancing_loss", "", kIterations, kStep, "experts",
     "Auxiliary loss of the routers, without its coefficient, as a mean over layers: 1 if all "
     "experts are chosen alike."},
    {"seq_load_balancing_loss", "seq_load_balancing_loss", "", kIterations, kStep, "experts",
     "Auxiliary loss of the routers over single sequences, without its coefficient."},
    {"global_load_balancing_loss", "global_load_balancing_loss", "", kIterations, kStep, "experts",
     "Auxiliary loss of the routers over the whole step, without its coefficient."},
    {"z_loss", "z_loss", "", kIterations, kStep, "experts",
     "Mean square of the routers' log-sum-exp, without its coefficient."},
    Mtp("mtp_1 loss",
        "Mean cross-entropy of the tokens behind the next one, which the first layer "
        "of multi-token prediction predicts, without its factor."),
    Mtp("mtp_2 loss", "The same of the second layer, a token further on."),
    Mtp("mtp_3 loss", "The same of the third layer."),
    Mtp("mtp_4 loss", "The same of the fourth layer."),
};

constexpr Metric Share(const char* name, const char* help) {
  return {name, name, "share of time", kIterations, kLogLine, "where the time goes", help};
}

// Indexed by TimeCategory.
constexpr Metric kShares[] = {
    Share("share/other", "Work within steps that is not told apart."),
    Share("share/compute", "Forward and backward passes."),
    Share("share/tp", "Calls of tensor-parallel groups for which computing waits."),
    Share("share/cp", "Calls of context-parallel groups for which computing waits."),
    Share("share/ep", "Calls of expert-parallel groups for which computing waits."),
    Share("share/dp", "Calls of data-parallel groups for which computing waits."),
    Share("share/pp", "Exchanges between pipeline stages, as far as they are not waiting."),
    Share("share/world", "Calls of all ranks, which decide about a step together."),
    Share("share/bubble",
          "Waiting for other stages of the pipeline: the time by which calls take longer than the "
          "fastest one of their size."),
    Share("share/optimizer", "The norm of the gradients, and the update."),
    Share("share/data", "Packing samples, and waiting for those who read them."),
    Share("share/checkpoint", "Saving, as far as training waits for it."),
    Share("share/evaluation", "Evaluations."),
    Share("share/host", "What happens between steps: decisions, metrics and what is printed."),
};
static_assert(sizeof(kShares) / sizeof(kShares[0]) == kNumTimeCategories);

// The least and the most of each share on any rank.
struct ShareRange {
  std::string least_name, most_name;
  Metric least, most;
};

// Indexed by TimeCategory.
const std::vector<ShareRange>& ShareRanges() {
  static const auto* const ranges = [] {
    auto* const made = new std::vector<ShareRange>(kNumTimeCategories);
    for (int i = 0; i < kNumTimeCategories; ++i) {
      ShareRange& range = (*made)[i];
      const char* const name = Name(static_cast<TimeCategory>(i));
      range.least_name = absl::StrCat("share/least-", name);
      range.most_name = absl::StrCat("share/most-", name);
      range.least = {range.least_name.c_str(),
                     "",
                     "share of time",
                     kIterations,
                     kLogLine,
                     "",
                     "The same on the rank where it is least."};
      range.most = {range.most_name.c_str(),
                    "",
                    "share of time",
                    kIterations,
                    kLogLine,
                    "",
                    "The same on the rank where it is most."};
    }
    return made;
  }();
  return *ranges;
}

// Megatron's timers as metrics.
const std::vector<Metric>& TimerMetrics() {
  static const auto* const metrics = [] {
    auto* const timers = new std::vector<Metric>;
    for (const Timer& timer : Timers())
      timers->push_back({"", timer.tag, "s", kIterations, kLogLine, "", timer.help});
    return timers;
  }();
  return *metrics;
}

constexpr absl::string_view kLayer = "LAYER", kTasks = "tasks/", kSources = "lm loss train ";

constexpr Metric OfLayer(const char* name, const char* unit, const char* help) {
  return {name, name, unit, kIterations, kStep, "", help};
}

}  // namespace

namespace metric {

const Metric kIteration = {
    "iteration", "", "", kIterations, kStep, "", "Number of the step; the first one is 1."};
const Metric kConsumedSamples = {"consumed_samples",
                                 "",
                                 "samples",
                                 kIterations,
                                 kStep,
                                 "",
                                 "Number of training samples up to and with this step."};
const Metric kSourceLoss = {
    "lm loss train FILE",
    "lm loss train FILE",
    "nats per token",
    kIterations,
    kLogLine,
    "",
    "Mean cross-entropy since the last log line of the tokens of one training file that count, "
    "where a run reads several; FILE is its name."};
const Metric kLearningRate = {"learning-rate",
                              "learning-rate",
                              "",
                              kBoth,
                              kStep,
                              "learning rate",
                              "Learning rate after the step."};
const Metric kDecoupledLearningRate = {
    "decoupled-learning-rate",
    "decoupled-learning-rate",
    "",
    kBoth,
    kStep,
    "decoupled learning rate",
    "Learning rate of the word embedding and the output layer, with optimizer.decoupled_lr."};
const Metric kGradNorm = {
    "grad-norm",
    "grad-norm",
    "",
    kBoth,
    kStep,
    "gradient norm",
    "Norm of all gradients together, before clipping; there is none if the step was skipped."};
const Metric kParamsNorm = {"params-norm",
                            "params-norm",
                            "",
                            kBoth,
                            kStep,
                            "norm of the parameters",
                            "Norm of all parameters; needs `logging.log_params_norm`."};
const Metric kNumZeros = {
    "num-zeros",
    "num-zeros",
    "gradients",
    kBoth,
    kStep,
    "",
    "Number of gradients that are zero; needs `logging.log_num_zeros_in_grad`."};
const Metric kSentGradients = {
    "sent-gradients",
    "sent-gradients",
    "share",
    kIterations,
    kStep,
    "",
    "Part of the elements of gradients that ranks sent; there with `gradient_compression.type: "
    "threshold`, and with `parallel.sparse_gradients` of the word table alone."};
const Metric kLossScale = {"loss-scale",
                           "loss-scale",
                           "",
                           kBoth,
                           kStep,
                           "loss scale",
                           "Factor of the loss in the backward pass; 1 except with fp16."};
const Metric kBatchSize = {"batch-size",
                           "batch-size",
                           "samples",
                           kBoth,
                           kStep,
                           "batch size",
                           "Number of samples of the step, of all ranks together."};
const Metric kSeqLength = {"curriculum-seqlen",
                           "curriculum-seqlen",
                           "tokens",
                           kBoth,
                           kStep,
                           "batch size",
                           "Tokens of each sample of the step; with data.curriculum_learning."};
const Metric kConsumedTokens = {
    "consumed_tokens",
    "consumed-tokens",
    "tokens",
    kIterations,
    kStep,
    "",
    "Number of training tokens up to and with this step; with data.curriculum_learning."};
const Metric kKeptTokens = {
    "random-ltd-length",
    "random-ltd-length",
    "tokens",
    kBoth,
    kStep,
    "batch size",
    "Tokens of each sample that all layers but the first and the last see; with data.random_ltd."};
const Metric kSkipped = {"skipped",
                         "",
                         "",
                         kIterations,
                         kStep,
                         "",
                         "Whether the update was skipped because gradients were not finite."};
const Metric kElapsed = {"elapsed_ms",
                         "",
                         "ms",
                         kIterations,
                         kStep,
                         "",
                         "Time of the step, without evaluations and saves."};
const Metric kIterationTime = {"",
                               "iteration-time",
                               "s",
                               kIterations,
                               kStep,
                               "time of an iteration",
                               "Time of the step, without evaluations and saves."};
const Metric kTokensPerSecond = {
    "tokens_per_second", "tokens_per_second",           "tokens/s", kIterations, kStep,
    "tokens per second", "Speed of all ranks together."};
const Metric kTflops = {
    "tflops",
    "",
    "TFLOP/s",
    kIterations,
    kStep,
    "",
    "Model FLOPs per second of all ranks together; attention counts where it is causal."};
const Metric kThroughput = {"",
                            "throughput",
                            "TFLOP/s per rank",
                            kIterations,
                            kStep,
                            "throughput",
                            "Model FLOPs per second of one rank."};
const Metric kMfu = {"mfu",
                     "mfu",
                     "share",
                     kIterations,
                     kStep,
                     "model FLOPs utilization",
                     "Share of the peak of all devices, if that is known."};

const Metric kWorldSize = {"", "world-size", "ranks", kBoth, kLogLine, "", "Number of ranks."};
const Metric kSkippedIterations = {
    "",
    "skipped-iterations",
    "iterations",
    kIterations,
    kLogLine,
    "skipped iterations",
    "Number of iterations since the last log line whose update was skipped."};
const Metric kNanIterations = {
    "",
    "nan-iterations",
    "iterations",
    kIterations,
    kLogLine,
    "skipped iterations",
    "Number of skipped iterations since the last log line whose loss was not finite."};
const Metric kMemory = {
    "",
    "mem-allocated-bytes",
    "bytes",
    kIterations,
    kLogLine,
    "memory",
    "Memory that the last rank holds for weights, gradients, optimizer and activations."};
const Metric kPeakMemory = {"",
                            "mem-max-allocated-bytes",
                            "bytes",
                            kIterations,
                            kLogLine,
                            "memory",
                            "The most memory that the last rank has held for these."};

const Metric kCommunicationShare =
    Share("share/all-communication", "All of the communication for which computing waits.");
const Metric kHiddenShare =
    Share("share/hidden-communication",
          "Communication while a rank computes, as a share beside all others.");
const Metric kSlowestRank = {
    "slowest-rank",
    "slowest-rank",
    "",
    kIterations,
    kLogLine,
    "",
    "Number of the rank whose own work takes longest beside that of the ranks of its stage."};
const Metric kSlowestExcess = {"slowest-rank-excess",
                               "slowest-rank-excess",
                               "share",
                               kIterations,
                               kLogLine,
                               "slowest rank",
                               "Share by which its work takes longer than their median."};

const Metric kLossScore = {
    "loss-z-score",
    "loss-z-score",
    "standard deviations",
    kIterations,
    kStep,
    "",
    "Distance of the loss from its mean over the last `logging.spike_window` steps; needs "
    "`logging.spike_threshold`."};
const Metric kGradNormScore = {"grad-norm-z-score",
                               "grad-norm-z-score",
                               "standard deviations",
                               kIterations,
                               kStep,
                               "spikes",
                               "The same of the norm of all gradients."};
const Metric kPredictionExcess = {"prediction-excess",
                                  "prediction-excess",
                                  "share",
                                  kIterations,
                                  kStep,
                                  "",
                                  "Share by which the last 20 steps took longer than predicted, "
                                  "once in a run; needs `system.hardware_file` or "
                                  "`train.auto_layout`."};
const Metric kEpsilon = {"epsilon",
                         "epsilon",
                         "",
                         kIterations,
                         kStep,
                         "privacy",
                         "Epsilon of all rounds so far at `federated.delta`; needs "
                         "`federated.noise_multiplier`."};
const Metric kMaxAttentionLogit = {"max_attention_logit",
                                   "max_attention_logit",
                                   "",
                                   kIterations,
                                   kStep,
                                   "",
                                   "Largest attention score of the step, as the softmax takes it; "
                                   "exact to 0.02, or to rounding with "
                                   "`optimizer.qk_clip`, which measures each step."};
const Metric kNoiseScale = {
    "gradient-noise-scale",
    "gradient-noise-scale",
    "samples",
    kIterations,
    kStep,
    "",
    "Batch size at which the noise of gradients is as large as the gradient, averaged over the "
    "last 20 or so steps that were measured; there is none while noise hides the gradient."};
const Metric kLayerGradNorm =
    OfLayer("grad-norm/LAYER", "", "Norm of the layer's gradients, before clipping.");
const Metric kLayerParamsNorm =
    OfLayer("params-norm/LAYER", "", "Norm of the layer's parameters, after the update.");
const Metric kLayerUpdateNorm =
    OfLayer("update-norm/LAYER", "", "Norm of what the update has changed in the parameters.");
const Metric kLayerUpdateRatio = OfLayer(
    "update-ratio/LAYER", "", "Norm of the update over that of the parameters; 0.001 is usual.");
const Metric kLayerOutputRms =
    OfLayer("output-rms/LAYER", "", "Root mean square of the layer's output.");
const Metric kLayerOutputMax =
    OfLayer("output-max/LAYER", "", "Largest magnitude in the layer's output.");
const Metric kLayerAttentionLogit =
    OfLayer("max_attention_logit/LAYER", "",
            "Largest score of the layer's self-attention; 0 if all are negative.");
const Metric kLayerMostLoaded = OfLayer("expert-load-max/LAYER", "times the mean",
                                        "Choices of the expert that is chosen most often.");
const Metric kLayerLeastLoaded = OfLayer("expert-load-min/LAYER", "times the mean",
                                         "Choices of the expert that is chosen least often.");
const Metric kLayerDropped = OfLayer("expert-dropped/LAYER", "share",
                                     "Share of the choices that were beyond experts' capacity.");
const Metric kLayerExpertEntropy =
    OfLayer("expert-entropy/LAYER", "",
            "Entropy of the experts' shares of the choices, over that of equal shares: 1 if all "
            "experts are chosen alike, 0 if one is chosen always.");
const Metric kLayerExpertLoad = {
    "expert-load/LAYER",
    "",
    "choices",
    kIterations,
    kStep,
    "",
    "Number of choices of each expert in the step, before any is dropped: an array."};

const Metric kPerplexity = {"lm loss validation ppl",
                            "lm loss validation ppl",
                            "",
                            kBoth,
                            MetricRate::kEachEvaluation,
                            "perplexity",
                            "Perplexity: e to the power of the validation loss, at most e^20."};

const Metric kTask = {"tasks/TASK/METRIC",
                      "tasks/TASK/METRIC",
                      "",
                      kIterations,
                      MetricRate::kEachEvaluation,
                      "",
                      "Each metric of each task of `train.eval_tasks`: \"tasks/hellaswag/acc\". So "
                      "it is with the accuracies on several validation sets."};

}  // namespace metric

namespace {

absl::Span<const Metric* const> LayerMetrics() {
  static constexpr const Metric* kMetrics[] = {
      &metric::kLayerGradNorm,       &metric::kLayerParamsNorm,    &metric::kLayerUpdateNorm,
      &metric::kLayerUpdateRatio,    &metric::kLayerOutputRms,     &metric::kLayerOutputMax,
      &metric::kLayerAttentionLogit, &metric::kLayerMostLoaded,    &metric::kLayerLeastLoaded,
      &metric::kLayerDropped,        &metric::kLayerExpertEntropy, &metric::kLayerExpertLoad};
  return kMetrics;
}

}  // namespace

absl::Span<const Metric* const> AllMetrics() {
  static const auto* const all = [] {
    auto* const metrics =
        new std::vector<const Metric*>{&metric::kIteration, &metric::kConsumedSamples};
    for (const Metric& measure : kMeasures) metrics->push_back(&measure);
    metrics->push_back(&metric::kSourceLoss);
    for (const Metric* metric : {&metric::kLearningRate,    &metric::kDecoupledLearningRate,
                                 &metric::kGradNorm,        &metric::kParamsNorm,
                                 &metric::kNumZeros,        &metric::kSentGradients,
                                 &metric::kLossScale,       &metric::kBatchSize,
                                 &metric::kSeqLength,       &metric::kConsumedTokens,
                                 &metric::kKeptTokens,      &metric::kSkipped,
                                 &metric::kElapsed,         &metric::kIterationTime,
                                 &metric::kTokensPerSecond, &metric::kTflops,
                                 &metric::kThroughput,      &metric::kMfu,
                                 &metric::kWorldSize,       &metric::kSkippedIterations,
                                 &metric::kNanIterations,   &metric::kMemory,
                                 &metric::kPeakMemory})
      metrics->push_back(metric);
    for (const Metric& share : kShares) metrics->push_back(&share);
    for (const ShareRange& range : ShareRanges()) {
      metrics->push_back(&range.least);
      metrics->push_back(&range.most);
    }
    for (const Metric* metric : {&metric::kCommunicationShare, &metric::kHiddenShare,
                                 &metric::kSlowestRank, &metric::kSlowestExcess})
      metrics->push_back(metric);
    for (const Metric& timer : TimerMetrics()) metrics->push_back(&timer);
    for (const Metric* metric :
         {&metric::kLossScore, &metric::kGradNormScore, &metric::kPredictionExcess,
          &metric::kEpsilon, &metric::kMaxAttentionLogit, &metric::kNoiseScale})
      metrics->push_back(metric);
    for (const Metric* metric : LayerMetrics()) metrics->push_back(metric);
    metrics->push_back(&metric::kPerplexity);
    metrics->push_back(&metric::kTask);
    return metrics;
  }();
  return *all;
}

absl::Span<const Metric> ModelMeasures() { return kMeasures; }

const Metric* FindMeasure(absl::string_view name) {
  for (const Metric& measure : kMeasures) {
    if (measure.key == name) return &measure;
  }
  return nullptr;
}

std::string LayerMetricName(const Metric& metric, absl::string_view layer) {
  absl::string_view kind = metric.key;
  CHECK(absl::ConsumeSuffix(&kind, kLayer)) << metric.key;
  return absl::StrCat(kind, layer);
}

const Metric* FindLayerMetric(absl::string_view name) {
  const absl::string_view kind = name.substr(0, name.find('/') + 1);
  for (const Metric* metric : LayerMetrics()) {
    const absl::string_view key = metric->key;
    if (key.size() == kind.size() + kLayer.size() && absl::StartsWith(key, kind)) return metric;
  }
  return nullptr;
}

absl::string_view LayerOf(absl::string_view name) { return name.substr(name.find('/') + 1); }

const Metric& ShareMetric(TimeCategory category) { return kShares[static_cast<int>(category)]; }

const Metric& LeastShareMetric(TimeCategory category) {
  return ShareRanges()[static_cast<int>(category)].least;
}

const Metric& MostShareMetric(TimeCategory category) {
  return ShareRanges()[static_cast<int>(category)].most;
}

const Metric* FindTimer(absl::string_view tag) {
  for (const Metric& timer : TimerMetrics()) {
    if (timer.tag == tag) return &timer;
  }
  return nullptr;
}

std::string EvaluationName(absl::string_view measure, bool on_test_set) {
  return absl::StrCat(measure, on_test_set ? " test" : " validation");
}

std::string ValidationSetName(absl::string_view set) {
  return absl::StrCat(EvaluationName(kMeasures[0].key, /*on_test_set=*/false), " ", set);
}

absl::string_view ValidationSetOf(absl::string_view name) {
  if (name == metric::kPerplexity.key || !absl::ConsumePrefix(&name, ValidationSetName(""))) {
    return absl::string_view();
  }
  return name;
}

std::string SourceLossName(absl::string_view source) { return absl::StrCat(kSources, source); }

absl::string_view SourceOf(absl::string_view name) {
  return absl::ConsumePrefix(&name, kSources) ? name : absl::string_view();
}

std::string TaskMetricName(absl::string_view metric) { return absl::StrCat(kTasks, metric); }

absl::string_view TaskMetricOf(absl::string_view name) {
  return absl::ConsumePrefix(&name, kTasks) ? name : absl::string_view();
}

std::string PerplexityName(absl::string_view name) { return absl::StrCat(name, " ppl"); }

std::string DescribeMetric(const Metric& metric) {
  const absl::string_view unit = metric.unit;
  return absl::StrCat(metric.help, unit.empty() ? "" : " Unit: ", unit, unit.empty() ? "" : ".");
}

std::string MetricReference() {
  const auto name = [](absl::string_view text) {
    return text.empty() ? std::string() : absl::StrCat("`", text, "`");
  };
  std::string text =
      "| metrics.jsonl | TensorBoard | unit | meaning |\n"
      "|---|---|---|---|\n";
  for (const Metric* metric : AllMetrics()) {
    absl::StrAppend(&text, "| ", name(metric->key), " | ", name(metric->tag),
                    metric->axis == kBoth ? " *" : "", metric->rate == kLogLine ? " †" : "", " | ",
                    metric->unit, " | ", metric->help, " |\n");
  }
  return text;
}

}  // namespace megatron
