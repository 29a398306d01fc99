#include "megatron/train/metrics/prometheus_page.h"

#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "megatron/train/metrics/step_values.h"

namespace megatron {
namespace {

constexpr absl::string_view kPrefix = "megatron_";

struct Unit {
  const char* name;    // in the table
  const char* suffix;  // in Prometheus
  double factor;       // base units in one of the table's
};

// A unit that is not here is a count of things or none, and leaves no trace in the name.
constexpr Unit kUnits[] = {
    {"s", "_seconds", 1},
    {"bytes", "_bytes", 1},
    {"share", "_ratio", 1},
    {"share of time", "_ratio", 1},
    {"TFLOP/s per rank", "_flops_per_second", 1e12},
};

constexpr char kStepsTotal[] = "megatron_steps_total";
constexpr char kSkippedTotal[] = "megatron_skipped_iterations_total";
constexpr char kEventsTotal[] = "megatron_events_total";
constexpr char kTrainIters[] = "megatron_train_iterations";
constexpr char kTimeLeft[] = "megatron_time_left_seconds";
constexpr char kStartTime[] = "megatron_start_timestamp_seconds";
constexpr char kLastStepTime[] = "megatron_last_step_timestamp_seconds";
constexpr char kLastSaveTime[] = "megatron_last_checkpoint_timestamp_seconds";
constexpr char kLastSave[] = "megatron_last_checkpoint_iteration";
constexpr char kLossIsFinite[] = "megatron_loss_is_finite";
constexpr char kSourceLoss[] = "megatron_training_file_loss";
constexpr char kSetLoss[] = "megatron_validation_set_loss";
constexpr char kTaskMetric[] = "megatron_task";

// The metrics that the table does not have.
const std::vector<PrometheusMetric>& OwnMetrics() {
  static const auto* const metrics = new std::vector<PrometheusMetric>{
      {kStepsTotal, true, "Steps since the program started."},
      {kSkippedTotal, true,
       "Steps since the program started whose update was skipped because gradients were not "
       "finite."},
      {kEventsTotal, true, "Events since the program started, by kind."},
      {kTrainIters, false, "Number of the step after which training ends."},
      {kTimeLeft, false, "Time until training ends, at the speed of the last steps."},
      {kStartTime, false, "Time at which training began or went on."},
      {kLastStepTime, false,
       "Time at which the last step ended; before the first one, kept at the start."},
      {kLastSaveTime, false, "Time of this program's last checkpoint; 0 before it."},
      {kLastSave, false, "Step of this program's last checkpoint; 0 before it."},
      {kLossIsFinite, false, "1 if the loss of the last step is a number, 0 if not."},
      {kSourceLoss, false,
       "Loss on each of several training files up to the last log line that has it, by file."},
      {kSetLoss, false, "Loss on each of several validation sets, by set."},
      {kTaskMetric, false, "Metrics of the tasks of train.eval_tasks, by task and metric."},
  };
  return *metrics;
}

std::string NameOf(absl::string_view text, absl::string_view suffix) {
  std::string name(kPrefix);
  for (const char c : text) {
    const unsigned char byte = static_cast<unsigned char>(c);
    name += absl::ascii_isalnum(byte) ? static_cast<char>(absl::ascii_tolower(byte)) : '_';
  }
  if (!absl::EndsWith(name, suffix)) absl::StrAppend(&name, suffix);
  return name;
}

std::string MeasureName(absl::string_view measure, const Metric* metric) {
  if (metric != nullptr) {
    for (const Unit& unit : kUnits) {
      if (absl::string_view(metric->unit) == unit.name) return NameOf(measure, unit.suffix);
    }
  }
  return NameOf(measure, "");
}

PrometheusMetric EvaluatedMetric(const Metric& measure, bool on_test_set) {
  return {
      MeasureName(EvaluationName(measure.key, on_test_set), &measure), false,
      absl::StrCat(on_test_set ? "On the test set" : "On the validation set", ": ", measure.help)};
}

// As Go's ParseFloat reads it, with every digit that tells it from its neighbours.
std::string ValueText(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  std::string text = absl::StrFormat("%.15g", value);
  if (std::stod(text) != value) text = absl::StrFormat("%.17g", value);
  return text;
}

// The end of a run is the end of its page, too.
bool IsCounted(RunEventKind kind) {
  return kind != RunEventKind::kRankLost && kind != RunEventKind::kEnd;
}

std::string EscapeHelp(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\n", "\\n"}});
}

std::string EscapeLabel(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\n", "\\n"}, {"\"", "\\\""}});
}

std::optional<double> ToDouble(double value) { return value; }
std::optional<double> ToDouble(int64_t value) { return static_cast<double>(value); }
std::optional<double> ToDouble(bool value) { return value ? 1 : 0; }
template <typename T>
std::optional<double> ToDouble(const std::optional<T>& value) {
  return value ? ToDouble(*value) : std::nullopt;
}

}  // namespace

std::optional<ScaledMetric> ToPrometheus(const Metric& metric) {
  const bool is_position = &metric == &metric::kIteration || &metric == &metric::kConsumedSamples;
  const absl::string_view tag = is_position ? metric.key : metric.tag;
  // Values of single layers are not exported. Those of tasks and of training files have labels, and
  // the numbers since the last log line are counters of another name.
  if (tag.empty() || FindLayerMetric(metric.key) == &metric || &metric == &metric::kTask ||
      &metric == &metric::kSourceLoss || &metric == &metric::kSkippedIterations ||
      &metric == &metric::kNanIterations)
    return std::nullopt;
  ScaledMetric scaled;
  scaled.metric = {MeasureName(tag, &metric), false, metric.help};
  for (const Unit& unit : kUnits) {
    if (absl::string_view(metric.unit) == unit.name) scaled.factor = unit.factor;
  }
  return scaled;
}

const std::vector<PrometheusMetric>& AllPrometheusMetrics() {
  static const auto* const all = [] {
    auto* const metrics = new std::vector<PrometheusMetric>(OwnMetrics());
    for (const Metric* metric : AllMetrics()) {
      const std::optional<ScaledMetric> scaled = ToPrometheus(*metric);
      if (!scaled) continue;
      metrics->push_back(scaled->metric);
      if (FindMeasure(metric->key) != metric) continue;
      for (const bool on_test_set : {false, true})
        metrics->push_back(EvaluatedMetric(*metric, on_test_set));
    }
    const std::string test = PerplexityName(EvaluationName(kLmLossName, /*on_test_set=*/true));
    metrics->push_back({NameOf(test, ""), false, "Perplexity on the test set."});
    return metrics;
  }();
  return *all;
}

PrometheusPage::PrometheusPage(const std::string& run_id, absl::Time start)
    : label_(absl::StrCat("run=\"", EscapeLabel(run_id), "\"")) {
  const double now = absl::ToDoubleSeconds(start - absl::UnixEpoch());
  for (const char* counter : {kStepsTotal, kSkippedTotal, kLastSaveTime, kLastSave})
    Set(counter, 0);
  Set(kStartTime, now);
  Set(kLastStepTime, now);
}

void PrometheusPage::Set(const Metric& metric, double value) {
  const std::optional<ScaledMetric> scaled = ToPrometheus(metric);
  if (scaled) Set(scaled->metric.name, value * scaled->factor);
}

void PrometheusPage::SetMeasure(absl::string_view measure, std::optional<bool> on_test_set,
                                double value) {
  const Metric* const metric = FindMeasure(measure);
  if (metric == nullptr) return;  // a name of no table has no help, and Grafana does not know it
  Set(on_test_set ? EvaluatedMetric(*metric, *on_test_set).name : MeasureName(measure, metric),
      value);
}

void PrometheusPage::SetStep(const StepMetrics& step) {
  Add(kStepsTotal, 1);
  Add(kSkippedTotal, step.skipped ? 1 : 0);
  Set(kTrainIters, static_cast<double>(step.train_iters));
  Set(kTimeLeft, absl::ToDoubleSeconds(step.speed.time_left));
  Set(kLastStepTime, absl::ToDoubleSeconds(step.time - absl::UnixEpoch()));
  Set(kLossIsFinite, std::isfinite(step.loss) ? 1 : 0);
  SetMeasure(kLmLossName, std::nullopt, step.loss);
  for (const NamedValue& other : step.others) SetMeasure(other.name, std::nullopt, other.value);
  for (const NamedValue& source : step.sources)
    values_[kSourceLoss][absl::StrCat(",file=\"", EscapeLabel(source.name), "\"")] = source.value;
  const auto set = [this](const Metric& metric, const auto& field) {
    const std::optional<double> value = ToDouble(field);
    if (value) Set(metric, *value);
  };
  VisitPosition(step, set);
  VisitValues(step, set);
  Set(metric::kIterationTime, step.speed.elapsed_ms / 1e3);
  if (step.world_size > 0) {
    Set(metric::kThroughput, step.speed.model_tflops / static_cast<double>(step.world_size));
    Set(metric::kWorldSize, static_cast<double>(step.world_size));
  }
  for (const NamedValue& timer : step.timers) {
    const Metric* const metric = FindTimer(timer.name);
    if (metric != nullptr) Set(*metric, timer.value);
  }
  set(metric::kMemory, step.memory_bytes);
  set(metric::kPeakMemory, step.peak_memory_bytes);
}

void PrometheusPage::SetEvaluation(const EvaluationMetrics& evaluation) {
  SetMeasure(kLmLossName, evaluation.on_test_set, evaluation.loss);
  for (const NamedValue& other : evaluation.others)
    SetMeasure(other.name, evaluation.on_test_set, other.value);
  Set(NameOf(PerplexityName(EvaluationName(kLmLossName, evaluation.on_test_set)), ""),
      Perplexity(evaluation.loss));
  for (const NamedValue& set : evaluation.sets)
    values_[kSetLoss][absl::StrCat(",set=\"", EscapeLabel(set.name), "\"")] = set.value;
  for (const NamedValue& task : evaluation.tasks) {
    const size_t slash = task.name.rfind('/');  // a validation set's name may have more
    values_[kTaskMetric]
           [absl::StrCat(",task=\"", EscapeLabel(task.name.substr(0, slash)), "\",metric=\"",
                         EscapeLabel(task.name.substr(slash + 1)), "\"")] = task.value;
  }
}

void PrometheusPage::SetEvent(const RunEvent& event) {
  ++events_[static_cast<int>(event.kind)];
  if (event.kind != RunEventKind::kSaved) return;
  Set(kLastSaveTime, absl::ToDoubleSeconds(event.time - absl::UnixEpoch()));
  Set(kLastSave, static_cast<double>(event.iteration));
}

std::string PrometheusPage::Text() const {
  std::string text;
  for (const PrometheusMetric& metric : AllPrometheusMetrics()) {
    const bool by_kind = metric.name == kEventsTotal;
    const auto values = values_.find(metric.name);
    if (!by_kind && values == values_.end()) continue;
    absl::StrAppend(&text, "# HELP ", metric.name, " ", EscapeHelp(metric.help), "\n# TYPE ",
                    metric.name, metric.is_counter ? " counter\n" : " gauge\n");
    for (int i = 0; by_kind && i < kNumRunEventKinds; ++i) {
      if (!IsCounted(static_cast<RunEventKind>(i))) continue;
      absl::StrAppend(&text, metric.name, "{", label_, ",kind=\"",
                      Name(static_cast<RunEventKind>(i)), "\"} ", events_[i], "\n");
    }
    if (by_kind) continue;
    for (const auto& [labels, value] : values->second)
      absl::StrAppend(&text, metric.name, "{", label_, labels, "} ", ValueText(value), "\n");
  }
  return text;
}

}  // namespace megatron
