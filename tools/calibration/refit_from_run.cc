#include "tools/calibration/refit_from_run.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "megatron/base/status_macros.h"
#include "megatron/plan/shared_cores.h"
#include "megatron/tensor/trace/time_category.h"
#include "megatron/train/config/text_proto.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/metrics/step_comparer.h"
#include "megatron/train/planning/planning_facts.h"
#include "megatron/train/planning/predict_run.h"
#include "megatron/train/trainer/run_options.h"
#include "tools/calibration/facts_text.h"

namespace megatron {
namespace {

constexpr int64_t kMostBytes = int64_t{64} << 20;
// The range that the planner accepts.
constexpr double kLeastEfficiency = 0.01;
constexpr double kMostEfficiency = 2;
constexpr double kMostStepSeconds = 1000;
constexpr double kMostRunSeconds = 1e9;  // what a part of a step can have taken
constexpr double kSame = 1e-6;
constexpr int kHalvings = 40;
constexpr char kOrigin[] = "# measured_efficiency and step_seconds are fitted to the run in ";

using Seconds = double (ComparedPart::*)() const;

absl::StatusOr<double> SecondsOf(const StepComparison& comparison, const std::string& name,
                                 Seconds seconds) {
  for (const ComparedPart& part : comparison.part()) {
    if (part.name() == name) return (part.*seconds)();
  }
  return absl::InvalidArgumentError(absl::StrCat("there is no part ", name));
}

bool SharesCores(const config::ParallelConfig& parallel, const Hardware& hardware) {
  return HasMoreRanksThanCores(
      hardware, parallel.tensor_model_parallel_size() * parallel.context_parallel_size() *
                    parallel.pipeline_model_parallel_size() * parallel.data_parallel_size());
}

// A run, and what it is predicted from.
class Refit {
 public:
  Refit(StepComparison measured, config::PretrainConfig config, PlanningFacts facts)
      : measured_(std::move(measured)), config_(std::move(config)), facts_(std::move(facts)) {}

  // Sets the two constants of facts().
  absl::Status Fit();
  const PlanningFacts& facts() const { return facts_; }

 private:
  absl::StatusOr<double> Fitted(const StepComparison& comparison, double whole,
                                Seconds seconds) const;
  absl::StatusOr<double> PredictWith(double efficiency);

  const StepComparison measured_;
  const config::PretrainConfig config_;
  PlanningFacts facts_;
};

// Returns the seconds to which the efficiency is fitted: those of computing. Of ranks that share
// cores no timer tells whether a rank computed or waited for its core, so that all is taken but the
// rest.
absl::StatusOr<double> Refit::Fitted(const StepComparison& comparison, double whole,
                                     Seconds seconds) const {
  if (!SharesCores(config_.parallel(), facts_.hardware))
    return SecondsOf(comparison, Name(TimeCategory::kCompute), seconds);
  MEGATRON_ASSIGN_OR_RETURN(const double rest, SecondsOf(comparison, kRestOfStep, seconds));
  return whole - rest;
}

absl::StatusOr<double> Refit::PredictWith(double efficiency) {
  facts_.program.set_measured_efficiency(efficiency);
  MEGATRON_ASSIGN_OR_RETURN(const StepComparison predicted,
                            PredictRun(config_, measured_.vocab_size(), facts_));
  return Fitted(predicted, predicted.predicted_seconds(), &ComparedPart::predicted_seconds);
}

// Steps take the less time the more efficient kernels are.
absl::Status Refit::Fit() {
  MEGATRON_ASSIGN_OR_RETURN(const double measured, Fitted(measured_, measured_.measured_seconds(),
                                                          &ComparedPart::measured_seconds));
  MEGATRON_ASSIGN_OR_RETURN(const double rest,
                            SecondsOf(measured_, kRestOfStep, &ComparedPart::measured_seconds));
  double low = kLeastEfficiency, high = kMostEfficiency;
  MEGATRON_ASSIGN_OR_RETURN(const double slowest, PredictWith(low));
  MEGATRON_ASSIGN_OR_RETURN(const double fastest, PredictWith(high));
  if (slowest < fastest * (1 + kSame)) {
    return absl::FailedPreconditionError(
        "no measured kernel is near the run's products, so that measured_efficiency changes "
        "nothing: give the kernels that tools:calibrate has measured");
  }
  if (measured < fastest || measured > slowest) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the run took %.4g ms where %.4g to %.4g ms are predicted with any measured_efficiency "
        "from "
        "%g to %g: the figures are of another machine; let tools:calibrate measure this one",
        1e3 * measured, 1e3 * fastest, 1e3 * slowest, kLeastEfficiency, kMostEfficiency));
  }
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2;
    MEGATRON_ASSIGN_OR_RETURN(const double seconds, PredictWith(middle));
    (seconds > measured ? low : high) = middle;
  }
  facts_.program.set_measured_efficiency((low + high) / 2);
  facts_.program.set_step_seconds(std::min(rest, kMostStepSeconds));
  return absl::OkStatus();
}

// Returns whether these can be seconds of a part of a step; false for NaN.
bool ArePlausible(double seconds) { return seconds >= 0 && seconds <= kMostRunSeconds; }

absl::StatusOr<StepComparison> ReadComparison(FileSystem& fs, const std::string& run) {
  const std::string path = JoinPath(run, kStepComparisonName);
  const auto text = ReadFileToString(fs, path, kMostBytes);
  if (!text.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(text.status().message(), ": a run with system.hardware_file writes it after ",
                     kWarmUpSteps + kComparedSteps, " steps, if checkpoint.save is set"));
  }
  StepComparison comparison;
  MEGATRON_RETURN_IF_ERROR(ParseTextProto(*text, &comparison), _ << path);
  if (comparison.vocab_size() < 1)
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": vocab_size must be at least 1; is the file whole?"));
  bool plausible = ArePlausible(comparison.measured_seconds());
  for (const ComparedPart& part : comparison.part())
    plausible = plausible && ArePlausible(part.measured_seconds());
  if (!plausible) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": measured_seconds must be from 0 to ", kMostRunSeconds));
  }
  return comparison;
}

// Changes the program's two constants in the file, and says in its first line where they are from.
absl::Status WriteProgram(FileSystem& fs, const RefitFiles& files, const Implementation& program) {
  MEGATRON_ASSIGN_OR_RETURN(std::string text, ReadFileToString(fs, files.hardware, kMostBytes));
  if (absl::StartsWith(text, kOrigin)) text.erase(0, text.find('\n') + 1);
  return WriteFileAtomically(
      fs, files.hardware,
      absl::StrCat(kOrigin, files.run, ".\n", WithFittedConstants(text, program)));
}

}  // namespace

absl::StatusOr<std::string> RefitFromRun(FileSystem& fs, const RefitFiles& files) {
  MEGATRON_ASSIGN_OR_RETURN(const StepComparison measured, ReadComparison(fs, files.run));
  MEGATRON_ASSIGN_OR_RETURN(LoadedConfig loaded, LoadSavedConfig(measured.config(), files.run));
  PlanningOptions options;
  options.hardware_file = files.hardware;
  options.kernels_file = files.kernels;
  MEGATRON_ASSIGN_OR_RETURN(PlanningFacts facts, ReadPlanningFacts(fs, options, /*is_gpu=*/false));
  const Implementation before = facts.program;
  Refit refit(measured, std::move(loaded.config), std::move(facts));
  MEGATRON_RETURN_IF_ERROR(refit.Fit());
  const Implementation& after = refit.facts().program;
  MEGATRON_RETURN_IF_ERROR(WriteProgram(fs, files, after));
  return absl::StrFormat(
      "%s: measured_efficiency %.3f (was %.3f), step_seconds %.4f (was %.4f), from %d steps of %s",
      files.hardware, after.measured_efficiency(), before.measured_efficiency(),
      after.step_seconds(), before.step_seconds(), measured.steps(), files.run);
}

}  // namespace megatron
