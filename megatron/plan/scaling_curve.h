// How the speed of training grows with the number of GPUs: the best of a sweep of layouts at each
// size, beside data parallelism alone, and what saves communication besides.
#ifndef MEGATRON_PLAN_SCALING_CURVE_H_
#define MEGATRON_PLAN_SCALING_CURVE_H_

#include <cstdint>
#include <vector>

#include "absl/types/optional.h"
#include "megatron/plan/measured_kernels.h"
#include "megatron/plan/plan_facts.pb.h"
#include "megatron/plan/step_prediction.h"

namespace megatron {

struct ScalingOptions {
  std::vector<int64_t> gpus;
  int64_t batch = 0;           // samples of a step: of one GPU if weak, of all of them else
  bool is_weak = false;        // the batch grows with the GPUs
  double memory_share = 0.95;  // the share of a GPU's memory that a layout may take
};

struct ScalingPoint {
  PlanLayout layout;
  double seconds = 0;  // the time of a step
  double tokens_per_second = 0;
};

// For each size, the best layout, or nothing where none fits or can be.
struct ScalingCurve {
  std::vector<absl::optional<ScalingPoint>> hybrid;  // any layout of the sweep
  std::vector<absl::optional<ScalingPoint>> data;    // tensor and pipeline sizes of 1
  // Any layout of the sweep, also with groups that follow the machine's shape: pipelines whose
  // ranks are nearer to each other than copies are, or data-parallel calls in two levels, with
  // hosts of as many ranks as fast links join.
  std::vector<absl::optional<ScalingPoint>> shaped;
  // Those, also with gradients in codes of 8 bits, which change the loss. Empty where weights or
  // gradients are shared out, whose sums aren't coded.
  std::vector<absl::optional<ScalingPoint>> coded;
};

// The sweep has tensor sizes 1, 2, 4 and 8 with sequence parallelism, pipeline sizes that divide
// the layers in powers of two, 1, 2 or 4 chunks, micro-batches of 1, 2 and 4, and no or full
// recomputation; the rest of the GPUs is data-parallel. Sequence, precision and the sizes of expert
// and context parallelism are those of `layout`. Its order of ranks, its levels and its codes are
// passed over.
ScalingCurve MakeScalingCurve(const Hardware& gpu, const Implementation& program,
                              const MeasuredKernels& kernels, const PlanModel& model,
                              const PlanLayout& layout, const ScalingOptions& options);

}  // namespace megatron

#endif  // MEGATRON_PLAN_SCALING_CURVE_H_
