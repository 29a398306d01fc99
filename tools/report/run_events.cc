#include "tools/report/run_events.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "megatron/base/status_macros.h"
#include "megatron/tensorboard/event.pb.h"
#include "megatron/tensorboard/event_records.h"
#include "megatron/train/metrics/metric_table.h"
#include "megatron/train/metrics/metrics_writer.h"
#include "megatron/train/metrics/step_metrics.h"

namespace megatron::report {
namespace {

using tensorboard::Event;
using tensorboard::Summary;

constexpr double kLastStep = static_cast<double>(int64_t{1} << 50);

// Calls `visit(event)` for each event of a file, until it returns false.
template <typename Visitor>
void ForEachEvent(absl::string_view bytes, Visitor visit) {
  while (const std::optional<absl::string_view> record = tensorboard::TakeRecord(&bytes)) {
    Event event;
    if (!event.ParseFromArray(record->data(), static_cast<int>(record->size()))) return;
    if (!visit(event)) return;
  }
}

std::string WriterOf(absl::string_view bytes) {
  std::string writer;
  ForEachEvent(bytes, [&](const Event& event) {
    writer = event.source_metadata().writer();
    return false;
  });
  return writer;
}

// Returns the tags of metrics that metrics.jsonl lacks, and that do not follow from those it has.
absl::flat_hash_set<std::string> TagsOfTensorboardAlone() {
  absl::flat_hash_set<std::string> tags;
  for (const Metric* metric : AllMetrics()) {
    if (*metric->key == '\0' && metric->rate == MetricRate::kEachLogLine) tags.insert(metric->tag);
  }
  return tags;
}

class Reader {
 public:
  void ReadFile(absl::string_view bytes) {
    start_ = ProgramStart();
    bool is_first = true;
    ForEachEvent(bytes, [&](const Event& event) {
      if (!std::isfinite(event.wall_time())) return false;
      if (is_first) start_.begin = start_.end = event.wall_time();
      is_first = false;
      const double step = static_cast<double>(event.step());
      if (step < 0 || step > kLastStep) return true;
      for (const Summary::Value& value : event.summary().value())
        ReadValue(step, event.wall_time(), value);
      return true;
    });
    if (start_.last_iteration > 0) events_.starts.push_back(start_);
  }

  RunEvents Finish() && { return std::move(events_); }

 private:
  void ReadValue(double step, double time, const Summary::Value& value) {
    if (value.tag() == "configuration" && value.tensor().string_val_size() == 1) {
      absl::string_view text = value.tensor().string_val(0);
      absl::ConsumePrefix(&text, "```\n");
      absl::ConsumeSuffix(&text, "```\n");
      events_.config_text = std::string(text);
    }
    if (value.tag() == kRestartReasonTag && value.tensor().string_val_size() == 1)
      start_.reason = value.tensor().string_val(0);
    if (!value.has_simple_value()) return;
    if (value.tag() == kLmLossName) ReadStep(step, time);
    if (tags_.contains(value.tag())) ReadPoint(step, value);
  }

  // A start repeats the last values of those before it, at steps that they have taken.
  void ReadStep(double step, double time) {
    if (step <= last_step_) return;
    last_step_ = step;
    if (start_.first_iteration == 0) start_.first_iteration = step;
    start_.last_iteration = step;
    start_.end = time;
  }

  void ReadPoint(double step, const Summary::Value& value) {
    auto column = std::find_if(events_.columns.begin(), events_.columns.end(),
                               [&](const MetricColumn& c) { return c.key == value.tag(); });
    if (column == events_.columns.end()) {
      events_.columns.emplace_back().key = value.tag();
      column = std::prev(events_.columns.end());
    }
    PlotPoints& points = column->points;
    while (!points.empty() && points.back().first >= step) points.pop_back();
    const double number = static_cast<double>(value.simple_value());
    if (std::isfinite(number)) points.emplace_back(step, number);
  }

  const absl::flat_hash_set<std::string> tags_ = TagsOfTensorboardAlone();
  RunEvents events_;
  ProgramStart start_;
  double last_step_ = 0;
};

}  // namespace

absl::StatusOr<RunEvents> ReadRunEvents(FileSystem& fs, const std::string& directory) {
  const absl::StatusOr<std::vector<std::string>> names = fs.List(directory);
  if (absl::IsNotFound(names.status())) return RunEvents();
  MEGATRON_RETURN_IF_ERROR(names.status());
  std::vector<std::string> paths;
  for (const std::string& name : *names) {
    if (absl::StrContains(name, "tfevents")) paths.push_back(JoinPath(directory, name));
  }
  Reader reader;
  if (paths.empty()) return std::move(reader).Finish();
  MEGATRON_ASSIGN_OR_RETURN(const std::string last, ReadFileToString(fs, paths.back()));
  const std::string writer = WriterOf(last);
  for (const std::string& path : paths) {
    MEGATRON_ASSIGN_OR_RETURN(const std::string bytes, ReadFileToString(fs, path));
    if (WriterOf(bytes) == writer) reader.ReadFile(bytes);
  }
  return std::move(reader).Finish();
}

}  // namespace megatron::report
