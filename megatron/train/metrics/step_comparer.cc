#include "megatron/train/metrics/step_comparer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/text_format.h"
#include "megatron/tensor/trace/time_category.h"

namespace megatron {
namespace {

constexpr double kLeastShare = 1e-3;  // the share of a step from which a part is printed

// Returns the seconds of the category with this name, as a mean over the ranks of a stage.
double MeanSeconds(const std::vector<RankTimes>& ranks, int64_t stage, const std::string& name) {
  double nanoseconds = 0;
  int64_t counted = 0;
  for (const RankTimes& rank : ranks) {
    if (rank.stage != stage) continue;
    ++counted;
    for (int i = 0; i < kNumTimeCategories; ++i) {
      if (name == Name(static_cast<TimeCategory>(i))) nanoseconds += double(rank.by_category[i]);
    }
  }
  return 1e-9 * nanoseconds / double(std::max<int64_t>(counted, 1));
}

}  // namespace

StepComparer::StepComparer(StepComparison predicted, Trace* trace,
                           const RankTimesMeter::Place& place)
    : comparison_(std::move(predicted)), trace_(trace), place_(place) {}

bool StepComparer::EndStep(double seconds) {
  ++steps_;
  if (steps_ == kWarmUpSteps) meter_.emplace(trace_, place_);
  if (steps_ <= kWarmUpSteps || steps_ > kWarmUpSteps + kComparedSteps) return false;
  seconds_ += seconds;
  return steps_ == kWarmUpSteps + kComparedSteps;
}

RankTimes StepComparer::Take() { return meter_->Take(); }

StepComparison StepComparer::Compare(const std::vector<RankTimes>& ranks) const {
  StepComparison comparison = comparison_;
  comparison.set_steps(kComparedSteps);
  comparison.set_measured_seconds(seconds_ / double(kComparedSteps));
  double rest = comparison.measured_seconds();
  for (ComparedPart& part : *comparison.mutable_part()) {
    if (part.name() == kRestOfStep) continue;
    part.set_measured_seconds(MeanSeconds(ranks, comparison.stage(), part.name()) /
                              double(kComparedSteps));
    rest -= part.measured_seconds();
  }
  for (ComparedPart& part : *comparison.mutable_part()) {
    if (part.name() == kRestOfStep) part.set_measured_seconds(std::max(rest, 0.0));
  }
  return comparison;
}

std::string FormatComparison(const StepComparison& comparison) {
  const double measured = comparison.measured_seconds();
  std::vector<std::string> parts;
  for (const ComparedPart& part : comparison.part()) {
    if (std::max(part.measured_seconds(), part.predicted_seconds()) < kLeastShare * measured)
      continue;
    parts.push_back(absl::StrFormat("%s %.4g (%.4g)", part.name(), 1e3 * part.measured_seconds(),
                                    1e3 * part.predicted_seconds()));
  }
  return absl::StrFormat(
      "prediction: a step takes %.4g ms, %+.1f %% beside the predicted %.4g; measured (predicted) "
      "ms: %s",
      1e3 * measured, 100 * (measured / comparison.predicted_seconds() - 1),
      1e3 * comparison.predicted_seconds(), absl::StrJoin(parts, " | "));
}

std::string ComparisonText(const StepComparison& comparison) {
  std::string text;
  google::protobuf::TextFormat::PrintToString(comparison, &text);
  return absl::StrCat("# Steps of this run beside their prediction, for tools:calibrate --refit.\n",
                      text);
}

}  // namespace megatron
