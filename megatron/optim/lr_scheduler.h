// Learning rate and weight decay as functions of the samples trained on.
//
// A *step* of a schedule is one sample, not one update: Megatron counts so in order that a schedule
// keeps its meaning while the batch size ramps up. A run that is given in iterations multiplies
// them by its final global batch size. An update uses the values at the count of samples before it,
// so the first one trains with LearningRate(0), and the count grows only by updates that were
// applied.
//
//   MEGATRON_ASSIGN_OR_RETURN(auto scheduler, OptimizerParamScheduler::Create(schedule));
//   for (...) {
//     StepResult result = optimizer.Step({scheduler.learning_rate(), scheduler.weight_decay(),
//     ...}); if (result.applied) scheduler.Advance(global_batch_size);
//   }
//
// WSD (warm-up, stable, decay): S. Hu et al., "MiniCPM", arXiv 2404.06395.
#ifndef MEGATRON_OPTIM_LR_SCHEDULER_H_
#define MEGATRON_OPTIM_LR_SCHEDULER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace megatron {

enum class LrDecayStyle { kConstant, kLinear, kCosine, kInverseSquareRoot, kWsd };
enum class WsdDecayStyle { kExponential, kLinear, kCosine, kMinusSqrt };
enum class WeightDecayStyle { kConstant, kLinear, kCosine };

// All steps are samples.
struct OptimizerParamSchedule {
  double max_lr = 0;
  double min_lr = 0;   // after lr_decay_steps, and the floor of every decay
  double init_lr = 0;  // at step 0 of a warm-up
  int64_t lr_warmup_steps = 0;
  int64_t lr_decay_steps = 0;  // from step 0, the warm-up included
  LrDecayStyle lr_decay_style = LrDecayStyle::kLinear;
  WsdDecayStyle wsd_decay_style = WsdDecayStyle::kExponential;
  int64_t wsd_decay_steps = 0;  // the last of the lr_decay_steps; kWsd only

  double start_weight_decay = 0;
  double end_weight_decay = 0;  // equal to the start's if the style is kConstant
  int64_t weight_decay_steps = 0;
  WeightDecayStyle weight_decay_style = WeightDecayStyle::kConstant;
};

// Warm-up is linear from init_lr at 0 to max_lr at lr_warmup_steps; then, with r the share of the
// way from there to lr_decay_steps, lr = min_lr + coefficient * (max_lr - min_lr) where the
// coefficient is 1 - r (linear) or (1 + cos(pi r)) / 2 (cosine). kWsd stays at max_lr but for the
// last wsd_decay_steps; with s the share of those, the coefficient is 2 * 0.5^s - 1 (exponential),
// 1 - s, (1 + cos(pi s)) / 2 or 1 - sqrt(s). kInverseSquareRoot is max_lr * sqrt(warm-up / step),
// at least min_lr. kConstant has no end.
double LearningRate(const OptimizerParamSchedule& schedule, int64_t step);

// Rises from the start's to the end's over weight_decay_steps, linearly or as half a cosine wave.
double WeightDecay(const OptimizerParamSchedule& schedule, int64_t step);

// InvalidArgument that names every rule the schedule breaks.
absl::Status Validate(const OptimizerParamSchedule& schedule);

// What a checkpoint keeps. The schedule itself comes from the configuration, so a run continues
// under the schedule it is given.
struct OptimizerParamSchedulerState {
  int64_t num_steps = 0;
};

class OptimizerParamScheduler {
 public:
  static absl::StatusOr<OptimizerParamScheduler> Create(const OptimizerParamSchedule& schedule);

  double learning_rate() const { return LearningRate(schedule_, state_.num_steps); }
  double weight_decay() const { return WeightDecay(schedule_, state_.num_steps); }
  void Advance(int64_t samples) { state_.num_steps += samples; }

  const OptimizerParamSchedulerState& state() const { return state_; }
  void set_state(const OptimizerParamSchedulerState& state) { state_ = state; }

 private:
  explicit OptimizerParamScheduler(const OptimizerParamSchedule& schedule) : schedule_(schedule) {}

  OptimizerParamSchedule schedule_;
  OptimizerParamSchedulerState state_;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_LR_SCHEDULER_H_
