// Learning rate and weight decay as functions of the samples trained on.
//
//   MEGATRON_ASSIGN_OR_RETURN(auto scheduler, OptimizerParamScheduler::Create(schedule));
//   for (...) {
//     StepOptions options;
//     options.lr = scheduler.learning_rate();
//     options.weight_decay = scheduler.weight_decay();
//     MEGATRON_ASSIGN_OR_RETURN(StepResult result, optimizer.Step(options, groups, stream));
//     if (result.applied) scheduler.Advance(global_batch_size);
//   }
//
// A *step* of a schedule is one sample, not one update, as in Megatron: so a schedule keeps its
// meaning while the batch size ramps up. A run whose length is given in iterations multiplies them
// by its final global batch size. An update uses the values at the number of samples before it, so
// the first update trains with LearningRate(0). Only updates that were applied count.
//
// WSD (warm-up, stable, decay): S. Hu et al., "MiniCPM", arXiv 2404.06395.
#ifndef MEGATRON_OPTIM_LR_SCHEDULER_H_
#define MEGATRON_OPTIM_LR_SCHEDULER_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace megatron {

enum class LrDecayStyle { kConstant, kLinear, kCosine, kInverseSquareRoot, kWsd };
enum class WsdDecayStyle { kExponential, kLinear, kCosine, kMinusSqrt };
enum class WeightDecayStyle { kConstant, kLinear, kCosine };

// All steps are samples.
struct OptimizerParamSchedule {
  double max_lr = 0;
  double min_lr = 0;   // the rate after lr_decay_steps, and the least rate of every decay
  double init_lr = 0;  // the rate at step 0 of a warm-up
  int64_t lr_warmup_steps = 0;
  int64_t lr_decay_steps = 0;  // counted from step 0, the warm-up included
  LrDecayStyle lr_decay_style = LrDecayStyle::kLinear;
  WsdDecayStyle wsd_decay_style = WsdDecayStyle::kExponential;
  int64_t wsd_decay_steps = 0;  // length of kWsd's decay, at the end of the lr_decay_steps
  // If set, the rates of the word embedding and the output layer have these ends.
  std::optional<double> decoupled_max_lr;
  double decoupled_min_lr = 0;
  // The ends of the scaled rate (optim/mup.h) are max_lr and min_lr times this.
  double scaled_lr_factor = 1;

  double start_weight_decay = 0;
  double end_weight_decay = 0;  // equal to the start's if the style is kConstant
  int64_t weight_decay_steps = 0;
  WeightDecayStyle weight_decay_style = WeightDecayStyle::kConstant;
};

// The warm-up is linear from init_lr at step 0 to max_lr at lr_warmup_steps. After it
// lr = min_lr + coefficient * (max_lr - min_lr), with r rising from 0 at the end of the warm-up to
// 1 at lr_decay_steps, and s from 0 to 1 over the last wsd_decay_steps:
//
//   kLinear   1 - r
//   kCosine   (1 + cos(pi r)) / 2
//   kWsd      1, then 2 * 0.5^s - 1 (kExponential), 1 - s (kLinear), (1 + cos(pi s)) / 2 (kCosine)
//             or 1 - sqrt(s) (kMinusSqrt)
//
// kInverseSquareRoot is max_lr * sqrt(lr_warmup_steps / step), at least min_lr. These four are
// min_lr after lr_decay_steps; kConstant stays at max_lr.
double LearningRate(const OptimizerParamSchedule& schedule, int64_t step);
// The rate of the word embedding and the output layer; nothing if they have that of all others.
std::optional<double> DecoupledLearningRate(const OptimizerParamSchedule& schedule, int64_t step);

// The scaled rate.
double ScaledLearningRate(const OptimizerParamSchedule& schedule, int64_t step);

// Rises from start_weight_decay to end_weight_decay over weight_decay_steps, linearly or as half a
// cosine wave.
double WeightDecay(const OptimizerParamSchedule& schedule, int64_t step);

// Returns InvalidArgument that names every rule the schedule breaks.
absl::Status Validate(const OptimizerParamSchedule& schedule);

// The scheduler's state, which is part of a checkpoint. The schedule itself comes from the
// configuration, so a run continues under the schedule it is given.
struct OptimizerParamSchedulerState {
  int64_t num_steps = 0;
};

class OptimizerParamScheduler {
 public:
  static absl::StatusOr<OptimizerParamScheduler> Create(const OptimizerParamSchedule& schedule);

  double learning_rate() const { return LearningRate(schedule_, state_.num_steps); }
  std::optional<double> decoupled_learning_rate() const {
    return DecoupledLearningRate(schedule_, state_.num_steps);
  }
  double scaled_learning_rate() const { return ScaledLearningRate(schedule_, state_.num_steps); }
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
