// Two tensors that ranks train with an optimizer that averages by signs, for tests beside plain
// programs in one process.
#ifndef MEGATRON_OPTIM_RULES_ONE_BIT_HARNESS_H_
#define MEGATRON_OPTIM_RULES_ONE_BIT_HARNESS_H_

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/optim/rules/make_update_rule.h"

namespace megatron {

struct OneBitRun {
  static constexpr int kTensors = 2;
  static constexpr int64_t kSizes[kTensors] = {8 * 25, 60};
  static constexpr int64_t kNeverUsed = 17;  // an element of the first tensor without a gradient
  static constexpr double kDecay = 0.1;      // the first tensor's weight decay

  OptimizerOptions optimizer;
  int steps = 8;
  double clip_grad = 0;
  int broken_step = -1;       // rank 1 has a NaN in it
  std::string lost_error;     // GradientCompressor::states() of this name are zeroed at each step
  bool growing_rate = false;  // the learning rate grows from step to step

  double LrOf(int step) const { return growing_rate ? 2e-3 * (1 + step) : 1e-2; }
};

using OneBitTensors = std::vector<std::vector<float>>;

struct OneBitOutcome {
  OneBitTensors weights;  // those that the rank computes with
  OneBitTensors masters;
  OneBitTensors numbers;  // Optimizer::NumbersOf
  std::vector<double> norms;
  std::vector<bool> applied;
};

// Returns what each rank has in the end.
std::vector<OneBitOutcome> TrainOneBit(int ranks, const OneBitRun& run);

// Returns the first weights, which are the same on all ranks.
OneBitTensors FirstOneBitWeights(const OneBitRun& run);

// The gradients of a step.
struct OneBitGradients {
  std::vector<OneBitTensors> own;  // [tensor][rank]: a rank's summand, times the number of ranks
  OneBitTensors whole;             // [tensor]: the sum of summands
  double own_norm = 0, whole_norm = 0;
};
OneBitGradients OneBitGradientsOf(int ranks, int step);

// Returns the greatest difference of elements, over 1 + their magnitude.
double WorstOffset(const OneBitTensors& got, const OneBitTensors& want);

}  // namespace megatron

#endif  // MEGATRON_OPTIM_RULES_ONE_BIT_HARNESS_H_
