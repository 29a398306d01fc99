// Computes the metrics of each step from the trainer's report and the time that it took.
#ifndef MEGATRON_TRAIN_METRICS_STEP_METER_H_
#define MEGATRON_TRAIN_METRICS_STEP_METER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "megatron/train/metrics/step_metrics.h"
#include "megatron/train/trainer/run_options.h"
#include "megatron/train/trainer/trainer.h"

namespace megatron {

// The quantities from which speeds are computed.
struct SpeedBasis {
  // FLOPs of a token of a sample of the whole length.
  double flops_per_token = 0;       // counts attention only where the causal mask allows it
  double full_flops_per_token = 0;  // counts attention in full
  // The peak of all ranks' devices together, in FLOP/s; unset if it is unknown.
  std::optional<double> peak_flops;
  // What either of the first two grows by if samples are a token longer; read with a curriculum or
  // random-LTD.
  double flops_per_token_and_length = 0, full_flops_per_token_and_length = 0;
  // The parts of the first two, and the share of this growth, that are those of the layers which
  // drop tokens; read with random-LTD.
  double dropping_flops_per_token = 0, dropping_full_flops_per_token = 0;
  double dropping_share = 0;
};

// A meter that one thread uses; its steps follow each other.
class StepMeter {
 public:
  // `last_iteration` was the last one before this program began. `options` must outlive this.
  StepMeter(const RunOptions& options, const SpeedBasis& basis, int64_t last_iteration)
      : options_(options), basis_(basis), last_iteration_(last_iteration) {}

  // Returns the metrics of a step that took `elapsed` and ended at `time`. `progress` includes the
  // step.
  StepMetrics Measure(const StepReport& report, const TrainingProgress& progress,
                      absl::Duration elapsed, absl::Time time);

 private:
  struct Work {
    double tokens = 0, flops = 0, full_flops = 0;
  };
  // The iterations since the last log line. A skipped iteration (a gradient overflowed, and nothing
  // was updated) has no part in the means, as in Megatron.
  struct Interval {
    std::vector<NamedValue> sums;
    std::map<std::string, SourceLoss> sources;  // by the files' names
    Work work;
    int64_t advanced = 0, skipped = 0, nans = 0;
    absl::Duration elapsed = absl::ZeroDuration();
  };

  bool IsLogged(int64_t iteration, bool requested) const;
  Work WorkOf(const StepReport& report) const;
  Speed SpeedOf(double seconds, const Work& work, int64_t iteration) const;
  void AddToInterval(const StepMetrics& step, const Work& work, absl::Duration elapsed);
  void AddSources(const StepReport& report);
  IntervalMetrics FinishInterval(int64_t iteration);

  const RunOptions& options_;
  const SpeedBasis basis_;
  const int64_t last_iteration_;
  Interval interval_;
};

// Returns the metrics of an evaluation that was made at `progress`.
EvaluationMetrics ToEvaluationMetrics(const Measured& measured, const TrainingProgress& progress,
                                      bool on_test_set);

// Returns the evaluations of several validation sets as one, each with the name of its set: the
// means of their values, and the loss of each; the other measures of each but losses are among
// `tasks`, "news/accuracy". That of one set without name stays as it is.
EvaluationMetrics JoinEvaluations(absl::Span<const std::pair<std::string, EvaluationMetrics>> sets);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_METRICS_STEP_METER_H_
