// Compares the steps of a run with what was predicted of them, part by part, once.
//
//   StepComparer comparer(predicted, &trace, place);       // on every rank
//   ...                                                    // each step:
//   if (comparer.EndStep(seconds)) {
//     comparison = comparer.Compare(GatherRankTimes(comparer.Take(), world));
#ifndef MEGATRON_TRAIN_METRICS_STEP_COMPARER_H_
#define MEGATRON_TRAIN_METRICS_STEP_COMPARER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/tensor/trace/trace.h"
#include "megatron/train/metrics/rank_times.h"
#include "megatron/train/metrics/step_comparison.pb.h"

namespace megatron {

// Steps that are passed over, since they are slower, and steps that are compared.
inline constexpr int64_t kWarmUpSteps = 3;
inline constexpr int64_t kComparedSteps = 20;

// The part of a step that no other part has: data, calls of all ranks, and what isn't told apart.
inline constexpr char kRestOfStep[] = "rest";

// The file of a comparison in the directory of checkpoints.
inline constexpr char kStepComparisonName[] = "prediction.textproto";

class StepComparer {
 public:
  // `predicted` has names and predictions of parts: those of time categories, and kRestOfStep.
  // `trace` must outlive this.
  StepComparer(StepComparison predicted, Trace* trace, const RankTimesMeter::Place& place);

  // Tells that a step has ended that took so long. Returns whether it is the last of those that are
  // compared; then all ranks call Take(). All ranks get the same answers. A step costs an addition.
  bool EndStep(double seconds);
  // Returns this rank's times of the steps that are compared.
  RankTimes Take();
  // Returns the comparison with the times of all ranks. The length of a step is this rank's.
  StepComparison Compare(const std::vector<RankTimes>& ranks) const;

 private:
  StepComparison comparison_;
  Trace* const trace_;
  const RankTimesMeter::Place place_;
  std::optional<RankTimesMeter> meter_;  // there is one from the end of the warm-up on
  int64_t steps_ = 0;
  double seconds_ = 0;
};

// Returns "prediction: a step takes 165 ms, +67.3 % beside the predicted 98.6; measured (predicted)
// ms: compute 31.2 (20.1) | bubble 74.9 (41.0) | rest 4.2 (0.0)". Parts below a thousandth of the
// step are left out.
std::string FormatComparison(const StepComparison& comparison);

// Returns the contents of the file.
std::string ComparisonText(const StepComparison& comparison);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_METRICS_STEP_COMPARER_H_
