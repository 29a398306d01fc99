#include "megatron/train/metrics/tensorboard_writer.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "megatron/tensorboard/summaries.h"
#include "megatron/train/metrics/run_hparams.h"
#include "megatron/train/metrics/step_values.h"

namespace megatron {
namespace {

using tensorboard::Event;
using tensorboard::Summary;

constexpr absl::string_view kOverSamples = " vs samples";

double Seconds(absl::Time time) { return absl::ToDoubleSeconds(time - absl::UnixEpoch()); }

tensorboard::EventWriterOptions WriterOptions(const std::string& directory, const RunStart& start,
                                              const std::function<absl::Time()>& now) {
  tensorboard::EventWriterOptions options;
  options.directory = directory;
  options.writer = absl::StrCat("megatron run ", start.run_id);
  options.now = now;
  return options;
}

std::optional<double> ToDouble(double value) { return value; }
std::optional<double> ToDouble(int64_t value) { return static_cast<double>(value); }
std::optional<double> ToDouble(bool value) { return value ? 1 : 0; }
template <typename T>
std::optional<double> ToDouble(const std::optional<T>& value) {
  return value ? ToDouble(*value) : std::nullopt;
}

// Returns the pictures of a run whose first step has these tags. The first step may lack the norm
// of its gradients, and comes before the first evaluation.
std::vector<tensorboard::ChartOfTags> Charts(const absl::flat_hash_set<std::string>& tags) {
  std::vector<tensorboard::ChartOfTags> charts;
  const auto add = [&charts](const Metric& metric, std::string tag) {
    const auto chart =
        std::find_if(charts.begin(), charts.end(),
                     [&](const tensorboard::ChartOfTags& c) { return c.title == metric.chart; });
    if (chart == charts.end()) {
      charts.push_back({metric.chart, {std::move(tag)}});
    } else {
      chart->tags.push_back(std::move(tag));
    }
  };
  for (const Metric* metric : AllMetrics()) {
    const bool comes = tags.contains(metric->tag) || metric == &metric::kGradNorm ||
                       metric->rate == MetricRate::kEachEvaluation;
    if (absl::string_view(metric->chart).empty() || !comes) continue;
    add(*metric, metric->tag);
    if (FindMeasure(metric->tag) == nullptr) continue;
    for (const bool on_test_set : {false, true})
      add(*metric, EvaluationName(metric->tag, on_test_set));
  }
  return charts;
}

}  // namespace

TensorboardWriter::TensorboardWriter(FileSystem& fs, const std::string& directory, RunStart start,
                                     std::function<absl::Time()> now)
    : start_(std::move(start)),
      writer_(fs, WriterOptions(directory, start_, now)),
      now_(std::move(now)),
      events_(2) {}

bool TensorboardWriter::Keeps(const Event& event) {
  if (start_.last_iteration == 0 || event.summary().value().empty()) return false;
  const Summary::Value& first = event.summary().value(0);
  // The cards of the last start at this iteration are written anew.
  if (!first.has_simple_value()) return event.step() < start_.last_iteration;
  const bool over_samples = absl::EndsWith(first.tag(), kOverSamples);
  if (event.step() > (over_samples ? start_.consumed_samples : start_.last_iteration)) return false;
  // An event of points that are known is what an earlier start has repeated.
  bool is_new = false;
  for (const Summary::Value& value : event.summary().value()) {
    const auto [known, inserted] = last_.try_emplace(value.tag());
    is_new |= inserted || known->second.step != event.step();
    known->second = {event.step(), value.simple_value(), over_samples};
  }
  return is_new;
}

void TensorboardWriter::AppendRepeats(std::vector<Event>* events) const {
  std::map<std::pair<bool, int64_t>, Summary> repeats;
  for (const auto& [tag, point] : last_) {
    *repeats[{point.over_samples, point.step}].add_value() =
        tensorboard::ScalarValue(tag, point.value);
  }
  for (auto& [place, summary] : repeats) {
    Event event;
    event.set_step(place.second);
    *event.mutable_summary() = std::move(summary);
    events->push_back(std::move(event));
  }
}

Event TensorboardWriter::CardsEvent() const {
  Event event;
  event.set_step(start_.last_iteration);
  Summary& summary = *event.mutable_summary();
  if (!start_.config_text.empty()) {
    *summary.add_value() = tensorboard::TextValue(
        "configuration", absl::StrCat("```\n", start_.config_text, "\n```\n"));
    *summary.add_value() = tensorboard::HparamsValue(HparamsOf(start_.config_text), now_());
  }
  if (!start_.restart_reason.empty())
    *summary.add_value() = tensorboard::TextValue(kRestartReasonTag, start_.restart_reason);
  *summary.add_value() = tensorboard::LayoutValue("Training", Charts(described_));
  return event;
}

absl::Status TensorboardWriter::Start(double time) {
  const absl::Status cut =
      writer_.CutEarlierFiles([this](const Event& event) { return Keeps(event); });
  std::vector<Event> events;
  AppendRepeats(&events);
  events.push_back(CardsEvent());
  for (Event& event : events) event.set_wall_time(time);
  events_.insert(events_.begin(), std::make_move_iterator(events.begin()),
                 std::make_move_iterator(events.end()));
  last_.clear();
  return cut;
}

void TensorboardWriter::Begin(absl::Time time, int64_t iteration, int64_t consumed_samples) {
  events_.resize(2);
  for (Event& event : events_) {
    event.Clear();
    event.set_wall_time(Seconds(time));
  }
  events_[0].set_step(iteration);
  events_[1].set_step(consumed_samples);
}

void TensorboardWriter::AddPoint(absl::string_view tag, const Metric* metric, double value,
                                 Summary* summary) {
  Summary::Value* const point = summary->add_value();
  *point = tensorboard::ScalarValue(tag, value);
  if (!described_.contains(tag)) {
    described_.insert(std::string(tag));
    if (metric != nullptr) tensorboard::DescribeScalar(DescribeMetric(*metric), point);
  }
}

void TensorboardWriter::AddNamed(absl::string_view name, const Metric* metric, double value) {
  const std::string tag = tensorboard::ToTag(name);
  if (tag != name && !said_bad_name_) {
    said_bad_name_ = true;
    bad_name_ = absl::InvalidArgumentError(
        absl::StrCat("a metric's name of ", name.size(),
                     " bytes is too long or no text; TensorBoard has it as '", tag, "'"));
  }
  AddPoint(tag, metric, value, events_[0].mutable_summary());
  if (metric == nullptr || metric->axis == MetricAxis::kIterationsAndSamples)
    AddPoint(absl::StrCat(tag, kOverSamples), metric, value, events_[1].mutable_summary());
}

void TensorboardWriter::Add(const Metric& metric, double value) {
  AddNamed(metric.tag, &metric, value);
}

absl::Status TensorboardWriter::Write() {
  absl::Status status;
  if (!started_) {
    started_ = true;
    status = Start(events_[0].wall_time());
  }
  if (events_.back().summary().value().empty()) events_.pop_back();
  status.Update(writer_.Write(absl::MakeSpan(events_)));
  status.Update(std::exchange(bad_name_, absl::OkStatus()));
  return status;
}

absl::Status TensorboardWriter::WriteStep(const StepMetrics& step) {
  Begin(step.time, step.iteration, step.consumed_samples);
  AddNamed(kLmLossName, FindMeasure(kLmLossName), step.loss);
  for (const NamedValue& other : step.others)
    AddNamed(other.name, FindMeasure(other.name), other.value);
  for (const NamedValue& source : step.sources)
    AddNamed(SourceLossName(source.name), &metric::kSourceLoss, source.value);
  VisitValues(step, [this](const Metric& metric, const auto& field) {
    const std::optional<double> value = ToDouble(field);
    if (value && !absl::string_view(metric.tag).empty()) Add(metric, *value);
  });
  for (const LayerValue& value : step.diagnostics.layers)
    AddNamed(value.name, FindLayerMetric(value.name), value.value);
  Add(metric::kIterationTime, step.speed.elapsed_ms / 1e3);
  if (step.world_size > 0)
    Add(metric::kThroughput, step.speed.model_tflops / static_cast<double>(step.world_size));
  if (step.interval) {
    if (step.world_size > 0) Add(metric::kWorldSize, static_cast<double>(step.world_size));
    Add(metric::kSkippedIterations, static_cast<double>(step.interval->skipped_iterations));
    Add(metric::kNanIterations, static_cast<double>(step.interval->nan_iterations));
    for (const NamedValue& timer : step.timers)
      AddNamed(timer.name, FindTimer(timer.name), timer.value);
    if (step.memory_bytes) Add(metric::kMemory, static_cast<double>(*step.memory_bytes));
    if (step.peak_memory_bytes)
      Add(metric::kPeakMemory, static_cast<double>(*step.peak_memory_bytes));
  }
  return Write();
}

void TensorboardWriter::AddEvaluated(absl::string_view measure, bool on_test_set, double value) {
  AddNamed(EvaluationName(measure, on_test_set), FindMeasure(measure), value);
}

absl::Status TensorboardWriter::WriteEvaluation(const EvaluationMetrics& evaluation) {
  Begin(evaluation.time, evaluation.iteration, evaluation.consumed_samples);
  const bool on_test_set = evaluation.on_test_set;
  AddEvaluated(kLmLossName, on_test_set, evaluation.loss);
  AddNamed(PerplexityName(EvaluationName(kLmLossName, on_test_set)), &metric::kPerplexity,
           Perplexity(evaluation.loss));
  for (const NamedValue& other : evaluation.others)
    AddEvaluated(other.name, on_test_set, other.value);
  for (const NamedValue& set : evaluation.sets)
    AddNamed(ValidationSetName(set.name), FindMeasure(kLmLossName), set.value);
  for (const NamedValue& task : evaluation.tasks)
    AddNamed(TaskMetricName(task.name), &metric::kTask, task.value);
  return Write();
}

}  // namespace megatron
