// The figures of all steps and evaluations that a program has made.
#ifndef MEGATRON_TRAIN_METRICS_RUN_TOTALS_H_
#define MEGATRON_TRAIN_METRICS_RUN_TOTALS_H_

#include <cstdint>
#include <optional>

#include "megatron/train/metrics/step_metrics.h"

namespace megatron {

class RunTotals {
 public:
  void Add(const StepMetrics& step);
  void Add(const EvaluationMetrics& evaluation);

  int64_t steps() const { return steps_; }
  // The losses of the last step that was not skipped, and of the last evaluations.
  std::optional<double> loss() const { return loss_; }
  // The number of steps that were skipped since then.
  int64_t skipped_at_end() const { return skipped_at_end_; }
  std::optional<double> validation_loss() const { return validation_loss_; }
  std::optional<double> test_loss() const { return test_loss_; }
  // Return means over the time of all steps but the first, which takes longer, unless it is the
  // only one.
  std::optional<double> tokens_per_second() const { return Mean(tokens_); }
  std::optional<double> mfu() const { return has_mfu_ ? Mean(mfu_) : std::nullopt; }

 private:
  std::optional<double> Mean(double sum) const {
    return seconds_ > 0 ? std::optional<double>(sum / seconds_) : std::nullopt;
  }

  int64_t steps_ = 0, skipped_at_end_ = 0;
  std::optional<double> loss_, validation_loss_, test_loss_;
  double seconds_ = 0, tokens_ = 0;
  double mfu_ = 0;  // each step's, times its seconds
  bool has_mfu_ = false;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_METRICS_RUN_TOTALS_H_
