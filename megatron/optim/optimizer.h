// The optimizer of one rank: measures and clips the norm of gradients that are complete over ranks,
// and applies AdamW or SGD to what this rank holds of a ParameterBuffers.
//
//   parallel.FinalizeGradients();   // data_parallel.h
//   MEGATRON_ASSIGN_OR_RETURN(StepResult result, optimizer.Step(options, groups, stream));
//   if (result.applied) parallel.ShareWeights();
//   scaler.Update(!result.finite);
//   if (result.applied) scheduler.Advance(global_batch_size);
//
// What happens to a parameter follows from its Sharding alone. All ranks call all methods in the
// same order, and all get the same answers. Results depend on the number of threads not at all, and
// on the layout by rounding only.
#ifndef MEGATRON_OPTIM_OPTIMIZER_H_
#define MEGATRON_OPTIM_OPTIMIZER_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/comm/process_groups.h"
#include "megatron/ops/optimizer.h"
#include "megatron/optim/parameter_buffers.h"
#include "megatron/tensor/host_mirror.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/stream.h"

namespace megatron {

struct OptimizerOptions {
  enum Kind { kAdamW, kSgd };
  Kind kind = kAdamW;
  double adam_beta1 = 0.9, adam_beta2 = 0.999, adam_epsilon = 1e-8;
  double sgd_momentum = 0.9;
};

// What ParameterBuffersOptions::num_moments has to be.
int NumMoments(const OptimizerOptions& options);

// Of a parameter's elements (of the layout) those that this rank answers for: that it counts in
// sums over the world, and saves. Of the ranks that hold one block, along tensor and expert axes
// the first answers for it; along data each for its part.
FlatRange OwnedRange(const ParameterBuffers& buffers, const ParameterPlace& place,
                     const ProcessGroups& groups);

struct StepOptions {
  double lr = 0;
  double weight_decay = 0;  // of the parameters that decay
  double loss_scale = 1;    // the gradients are divided by it
  double clip_grad = 0;     // gradients of a greater norm are scaled down to this one; 0: never
  // Whether this rank wants to stop after the step. It travels with the norm, so that all ranks
  // learn of it in the same step.
  bool stop_requested = false;
};

struct StepResult {
  // False: a gradient of some rank, or the norm, is infinite or NaN. Under a dynamic loss scale
  // that is expected now and then; otherwise it is the caller's to count and to stop the run.
  bool finite = true;
  bool applied = true;          // as finite: garbage is never applied
  double grad_norm = 0;         // L2, of the unscaled gradients before clipping
  bool stop_requested = false;  // some rank's wish
};

class Optimizer {
 public:
  // The buffers must outlive the optimizer and have NumMoments(options) moments.
  Optimizer(const OptimizerOptions& options, ParameterBuffers* buffers, MemoryLedger* ledger);

  // Unscales, clips, updates masters and moments and rounds the masters to the weights held here.
  // Gradients stay as they are. Fails, having changed nothing, if a collective failed since the
  // world was made.
  absl::StatusOr<StepResult> Step(const StepOptions& options, const ProcessGroups& groups,
                                  const Stream& stream);

  // Elements of the whole model whose gradient is exactly zero; of complete
  // ones.
  int64_t CountZeroGradients(const ProcessGroups& groups, const Stream& stream) const;
  // The L2 norm of the whole model's master weights.
  double ParametersNorm(const ProcessGroups& groups, const Stream& stream) const;

  // Updates applied so far, which AdamW's bias correction counts. Part of a checkpoint.
  int64_t applied_steps() const { return applied_steps_; }
  void set_applied_steps(int64_t steps) { applied_steps_ = steps; }

 private:
  // What is held here of buckets that stand one behind the other, updated at once; of every
  // parameter a segment, counted from the range's begin.
  struct HeldRange {
    const Bucket* bucket;  // of the begin
    FlatRange range;
    std::vector<ops::OptimizerSegment> segments;
    std::vector<const Parameter*> parameters;
  };
  void Update(const StepOptions& options, double grad_scale, const Stream& stream);
  void UpdateRange(const HeldRange& held, float grad_scale, const Stream& stream);

  OptimizerOptions options_;
  ParameterBuffers* buffers_;
  int64_t applied_steps_ = 0;
  Buffer statistics_;
  HostMirror sums_, count_;  // of parts of statistics_
  std::vector<HeldRange> held_;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_OPTIMIZER_H_
