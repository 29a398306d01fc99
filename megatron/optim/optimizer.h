// The optimizer of one rank: measures and clips the norm of gradients that are complete over ranks,
// and applies an update rule to this rank's optimizer range of a ParameterBuffers.
//
//   parallel.FinalizeGradients();   // data_parallel.h
//   MEGATRON_ASSIGN_OR_RETURN(StepResult result, optimizer.Step(options, groups, stream));
//   if (result.weights_changed) parallel.ShareWeights();
//   scaler.Update(!result.finite);
//   if (result.applied) scheduler.Advance(global_batch_size);
//
// Where the buffers hold masters and states in host memory, the processor updates those
// (host_update.h), with the same bits. Those in a file are read, updated and written extent by
// extent.
//
// Where the buffers have a state for gradients of the last step (DelayedRule), updates come one
// step late: step t applies the gradients of step t - 1, as they were scaled and clipped, with the
// learning rate, the decay and the number of that step, and keeps its own for step t + 1. So the
// passes of a step have the weights of one update before. Whether a step is skipped is found in
// that step. Of a device all masters and states lie in host memory then, and the update may go on
// beside the passes (update_ahead.h), with the same bits.
//
// What happens to a parameter follows from its Sharding alone. All ranks call all methods in the
// same order, and all get the same answers. Results do not depend on the number of threads, and
// depend on the layout by rounding only.
#ifndef MEGATRON_OPTIM_OPTIMIZER_H_
#define MEGATRON_OPTIM_OPTIMIZER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "megatron/comm/process_groups.h"
#include "megatron/ops/optimizer.h"
#include "megatron/optim/host_update.h"
#include "megatron/optim/parameter_buffers.h"
#include "megatron/optim/pending_update.h"
#include "megatron/optim/rank_average.h"
#include "megatron/optim/rules/update_rule.h"
#include "megatron/optim/step_statistics.h"
#include "megatron/optim/update_ahead.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/stream.h"

namespace megatron {

// Sees the master weights around each part of an update, on the stream of the step.
class UpdateObserver {
 public:
  // The most elements of a part, but for rules whose unit is a parameter.
  static constexpr int64_t kMostElements = int64_t{1} << 20;

  virtual ~UpdateObserver() = default;
  // The part is elements `range` of the layout, of one parameter and of this rank's optimizer
  // range.
  virtual void BeforeUpdate(const FlatParameter& flat, const FlatRange& range,
                            const Stream& stream) = 0;
  virtual void AfterUpdate(const FlatParameter& flat, const FlatRange& range,
                           const Stream& stream) = 0;
};

struct StepOptions {
  double lr = 0;
  // The learning rate of the word embedding and the output layer; not set: `lr`.
  std::optional<double> decoupled_lr;
  // That of the other parameters with has_scaled_lr; not set: `lr`.
  std::optional<double> scaled_lr;
  double weight_decay = 0;  // decay of the parameters that decay at all
  double loss_scale = 1;    // the gradients are divided by it
  double clip_grad = 0;     // gradients of a greater norm are scaled down to this one; 0: never
  // True if this rank wants to stop after the step. It travels with the norm, so that all ranks
  // learn of it in the same step.
  bool stop_requested = false;
  // Whether this rank wants the step to be logged; it travels likewise.
  bool log_requested = false;
  // The ranks in this one's place in the other islands (comm/island_groups.h), where there are any;
  // `groups` are those of the island then. Each island clips by its own norm. All of them skip a
  // step if one has to, and learn of the requests of all.
  const ProcessGroup* islands = nullptr;
  // Set for rules with averages_over_ranks(), with which nothing is sharded. In steps that are not
  // RankStep::kSum, gradients are the ranks' own summands. The norm is then the root of the mean
  // over data-parallel ranks of the squares of those of a rank's gradients, times the number of
  // ranks.
  const RankAverage* average = nullptr;
  // If set, sees the update, whose bits do not depend on it; not with updates that come late.
  UpdateObserver* observer = nullptr;
  // The number of first updates that come in their own steps, where others come one step late.
  int64_t prompt_updates = 0;
};

struct StepResult {
  // False if a gradient of some rank, or the norm, is infinite or NaN. Under a dynamic loss scale
  // that is expected now and then; otherwise the caller counts it and may stop the run.
  bool finite = true;
  // Equal to `finite`: such gradients are never applied, and others are, in this step or the next.
  bool applied = true;
  // Whether this rank's groups have updated weights, with these gradients or earlier ones.
  bool weights_changed = true;
  // L2 norm of the unscaled gradients before clipping; with islands the root of the mean of the
  // squares of their norms.
  double grad_norm = 0;
  bool stop_requested = false;  // whether any rank requested it
  bool log_requested = false;   // whether any rank requested it
};

class Optimizer {
 public:
  // The buffers must outlive the optimizer and have the states and the unit of the rule.
  Optimizer(std::unique_ptr<const UpdateRule> rule, ParameterBuffers* buffers,
            MemoryLedger* ledger);

  // Takes what updates in host memory of elements on a device need, where the buffers have any;
  // must be called before the first step then. `stream` is that of the steps and `threads` the
  // number of threads.
  absl::Status PrepareHostUpdate(const Stream& stream, int threads, MemoryLedger* ledger);

  // Takes what updates of whole parameters, or of averages over ranks, need, where the rule does
  // them; must be called before the first step then. The groups are those of the steps.
  void PrepareWholeParameters(const ProcessGroups& groups, MemoryLedger* ledger);

  // Whether updates come one step late.
  bool delays() const { return delayed_state_.has_value(); }
  // Starts the update that is pending, if there is one, beside what is enqueued until the next
  // Step, which finds it done. Until then masters and states are the update's. On the CPU nothing
  // happens.
  void StartPendingUpdate();
  // The event behind which gradients may be written; null: at once.
  const CudaEvent* gradients_taken() const { return ahead_ == nullptr ? nullptr : ahead_->taken(); }
  // Waits until the host may read all states.
  void WaitForStates() const;
  // Part of a checkpoint, with the state that has its gradients.
  const PendingUpdate& pending() const { return pending_; }
  void set_pending(const PendingUpdate& pending) { pending_ = pending; }

  const UpdateRule& rule() const { return *rule_; }

  // Unscales and clips the gradients, and updates masters, states and weights of the optimizer
  // range. Gradients stay as they are, unless they are the ranks' own. Fails, having changed
  // nothing, if a collective failed since the world was made. Fails if the buffers' file does;
  // masters, states and weights are undefined then.
  absl::StatusOr<StepResult> Step(const StepOptions& options, const ProcessGroups& groups,
                                  const Stream& stream);

  // The number of elements of the whole model whose gradient is exactly zero. The gradients must be
  // complete.
  int64_t CountZeroGradients(const ProcessGroups& groups, const Stream& stream) const {
    return statistics_.CountZeroGradients(groups, stream);
  }
  // The L2 norm of the whole model's master weights; undefined after an error of the buffers' file.
  double ParametersNorm(const ProcessGroups& groups, const Stream& stream) const {
    return statistics_.ParametersNorm(groups, stream);
  }

  // The number of updates applied so far; AdamW's bias correction depends on it. Part of a
  // checkpoint.
  int64_t applied_steps() const { return applied_steps_; }
  void set_applied_steps(int64_t steps) { applied_steps_ = steps; }

  // UpdateRule::numbers() of parameter `index` of the buffers.
  absl::Span<float> NumbersOf(size_t index);

  // The sum of the learning rates of the steps since data-parallel ranks were alike: 0 if they are.
  // Else each rank has weights of its own, and states (OptimizerState::differs). Part of a
  // checkpoint.
  double local_rates() const { return local_rates_; }
  void set_local_rates(double rates) { local_rates_ = rates; }
  // Makes this rank's own weights of masters and states.
  void MakeLocalWeights(const Stream& stream);

 private:
  // The elements that are updated at once: the optimizer ranges of buckets that stand one behind
  // the other, or one parameter.
  struct OptimizerRange {
    const Bucket* bucket;  // the first bucket
    FlatRange range;
    // One segment for each parameter, counted from range.begin.
    std::vector<ops::OptimizerSegment> segments;
    std::vector<const FlatParameter*> parameters;
    bool on_host = false;  // whether masters and states lie in host memory or in the file
  };
  // Appends elements of a bucket, to the last range if they continue it.
  void AppendRange(const Bucket& bucket, const FlatRange& here, bool on_host);
  void PlanRanges();
  void PlanWholeParameters();
  absl::Status Update(const StepOptions& options, double grad_scale, const Stream& stream);
  // Sets the segments' learning rates and decays.
  void SetRates(const StepOptions& options);
  void SetRates(const PendingUpdate& pending);
  // Keeps the gradients, and what else their update needs.
  void Delay(const StepOptions& options, double grad_scale, const Stream& stream);
  // Makes the update that is pending.
  void FinishPendingUpdate(const Stream& stream);
  // Updates the ranges on the device, and those in host memory meanwhile.
  void UpdateRanges(double grad_scale, const Stream& stream);
  // Whether the rule gets whole parameters.
  bool UpdatesWholeParameters() const;
  void UpdateObserved(const OptimizerRange& whole, UpdateObserver* observer, double grad_scale,
                      const Stream& stream);
  // Updates elements that are whole in host memory or whole on the device. The parameters are those
  // of the segments.
  void UpdateElements(const Bucket& bucket, const FlatRange& range,
                      absl::Span<const ops::OptimizerSegment> segments,
                      absl::Span<const FlatParameter* const> parameters, double grad_scale,
                      const Stream& stream);
  // The same with these gradients and weights in place of PartOf's, on their stream.
  void Apply(const Bucket& bucket, const FlatRange& range,
             absl::Span<const ops::OptimizerSegment> segments,
             absl::Span<const FlatParameter* const> parameters, double grad_scale,
             const HostPart& part, const Stream& stream);
  // The same with gradients of fewer bits, which become fp32 piece by piece.
  void ApplyRounded(const Bucket& bucket, const FlatRange& range,
                    absl::Span<const ops::OptimizerSegment> segments,
                    absl::Span<const FlatParameter* const> parameters, double grad_scale,
                    const HostPart& part, const Stream& stream);
  // Returns these elements with all that is the same in each step.
  UpdateRange RangeOf(const Bucket& bucket, const FlatRange& range,
                      absl::Span<const ops::OptimizerSegment> segments,
                      absl::Span<const FlatParameter* const> parameters, const HostPart& part);
  // The gradients that are applied, and the weights.
  HostPart PartOf(const Bucket& bucket, const FlatRange& range) const;
  // Finds out on the meta device what the rule needs for these parameters.
  void PlanUpdate(absl::Span<const ops::OptimizerSegment> segments,
                  absl::Span<const FlatParameter* const> parameters, int64_t elements) const;
  // Sets what of the update is the same in each step.
  void SetParameters(absl::Span<const FlatParameter* const> parameters, UpdateRange* update) const;
  // Whether masters and states of the range lie in host memory while its gradients are on a device.
  bool IsStaged(const Bucket& bucket, const FlatRange& range) const;
  // Brings what is in files of a range into memory. Returns whether the range can be updated.
  bool Enter(const OptimizerRange& whole, const Stream& stream) const;

  const std::unique_ptr<const UpdateRule> rule_;
  ParameterBuffers* buffers_;
  const std::optional<size_t> delayed_state_;  // the one that is_delayed_gradient
  PendingUpdate pending_;
  int64_t applied_steps_ = 0;
  StepStatistics statistics_;
  Buffer host_elements_;  // for gradients that become fp32 in host memory
  ProcessGroup tensor_group_, expert_tensor_group_;  // those of whole parameters
  std::unique_ptr<Arena> scratch_;
  Buffer planned_scratch_;  // what scratch_ will take, on the meta device
  std::unique_ptr<Norm> norm_;
  std::vector<OptimizerRange> optimizer_ranges_;  // those in host memory come first
  std::vector<HostPart> host_parts_;              // those in host memory alone
  std::unique_ptr<HostUpdate> host_update_;       // null: there are none
  std::vector<float> numbers_;                    // those of all parameters, in their order
  double local_rates_ = 0;
  // The pending updates on a device; null: there are none. It uses the others on its thread.
  std::unique_ptr<UpdateAhead> ahead_;
  bool update_started_ = false;
  // Those of the step.
  RankStep rank_step_ = RankStep::kSum;
  const RankAverage* average_ = nullptr;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_OPTIMIZER_H_
