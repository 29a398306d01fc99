// Predicts the layouts of one model: its other fields stay.
//
//   LayoutPredictor predictor(planner, run, overlaps);
//   MEGATRON_ASSIGN_OR_RETURN(const StepPrediction step, predictor.Predict(axes, samples));
#ifndef MEGATRON_TRAIN_PLANNING_LAYOUT_PREDICTOR_H_
#define MEGATRON_TRAIN_PLANNING_LAYOUT_PREDICTOR_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "megatron/plan/measured_kernels.h"
#include "megatron/plan/plan_facts.pb.h"
#include "megatron/plan/step_prediction.h"
#include "megatron/train/planning/layout_axes.h"
#include "megatron/train/planning/planned_run.h"

namespace megatron {

// What predictions are made from.
struct Planner {
  const Hardware* hardware = nullptr;
  const Implementation* program = nullptr;
  const MeasuredKernels* kernels = nullptr;
  bool is_gpu = true;
};

class LayoutPredictor {
 public:
  // `run` is the model in any layout; its attention is that of layouts which don't say otherwise.
  // It `overlaps` gradients' communication where there is some. The planner and what it points to
  // must live as long as this.
  LayoutPredictor(const Planner& planner, PlannedRun run, bool overlaps);

  // Returns what a step of so many samples of all ranks takes. Errors are those of PredictStep().
  absl::StatusOr<StepPrediction> Predict(const LayoutAxes& axes, int64_t samples);

  // Returns whether another form of communication may save enough.
  static bool WaitsForForms(const StepPrediction& prediction);
  // Returns whether `form` may save enough of the step that `plain`, from which it differs in the
  // form of its data-parallel communication and in the way of tokens to their experts alone, is
  // predicted to take. Another way to the experts has to save enough by itself.
  bool MayPay(const LayoutAxes& plain, const StepPrediction& prediction, const LayoutAxes& form,
              int64_t samples);

 private:
  void Set(const LayoutAxes& axes, int64_t samples);

  const Planner& planner_;
  PlannedRun run_;
  const int64_t written_chunk_;  // tokens of a chunk of attention; 0: it is computed at once
  const bool written_chunks_on_host_;
  const bool overlaps_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PLANNING_LAYOUT_PREDICTOR_H_
