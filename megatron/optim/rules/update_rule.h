// UpdateRule: how an optimizer turns gradients into new weights.
//
// A rule declares the states it keeps for each element of the parameters, and updates a range of
// elements at a time, or a parameter at a time if it needs the whole matrix (Muon's
// orthogonalization, LAMB's norms). It knows nothing of data-parallel ranks, sharding, clipping,
// loss scales and checkpoints: Optimizer, ParameterBuffers and training_checkpoint.h serve all
// rules alike. Of tensor-parallel ranks a rule for whole parameters gets the group.
#ifndef MEGATRON_OPTIM_RULES_UPDATE_RULE_H_
#define MEGATRON_OPTIM_RULES_UPDATE_RULE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "megatron/comm/process_group.h"
#include "megatron/ops/optimizer.h"
#include "megatron/optim/flat_layout.h"
#include "megatron/optim/norm.h"
#include "megatron/optim/optimizer_state.h"
#include "megatron/optim/rank_average.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/parameter.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// What data-parallel ranks do in a step.
enum class RankStep {
  kSum,    // Gradients are summed over ranks.
  kMean,   // Gradients are the ranks' own. The rule averages what it makes of them.
  kLocal,  // Gradients are the ranks' own, and so are weights and states after the step.
  kJoin,   // The same, but in the end the rule averages what ranks did since they were alike.
};

// Consecutive elements of the flat buffers: all tensors are flat and of the same length.
struct UpdateRange {
  // One segment for each parameter, counted from the range's first element. Elements outside of
  // every segment are padding, which stays as it is.
  absl::Span<const ops::OptimizerSegment> segments;
  // The parameters of the segments.
  absl::Span<const FlatParameter* const> parameters;
  Tensor gradients, masters;  // fp32; masters are bf16 where a state is their remainder
  // Sorted as UpdateRule::states(); empty where the parameter has no such state.
  absl::InlinedVector<Tensor, 2> states;
  Tensor weights;        // the model's copy of the masters; empty if the masters are the weights
  float grad_scale = 1;  // factor on the gradients: unscaling and clipping
  int64_t step = 1;      // number of this update, counted from 1
  // What ranks do in this step. It is kSum for rules without averages_over_ranks(); others get the
  // tensors of all of `bucket`, and whole parameters.
  RankStep rank_step = RankStep::kSum;
  // If it is not kSum, gradients are this rank's own, times the number of ranks. The rule may use
  // their memory.
  const RankAverage* average = nullptr;
  const Bucket* bucket = nullptr;
  // With kLocal and kJoin: the sum of the learning rates of the steps since ranks were alike, with
  // this one's.
  double local_rates = 0;
  // UpdateRule::numbers() of each segment's parameter, one parameter behind the other.
  absl::Span<float> numbers;
  // The rest is for rules that update a parameter at a time, or average over ranks.
  // With units of whole parameters, the parameter whose elements these are; else null. They are all
  // of its block where no shard may cut it (IsWhole).
  const Parameter* parameter = nullptr;
  // The ranks that hold the blocks of a parameter that is cut over tensor-parallel ranks, each of
  // which updates the same parameters in the same order.
  ProcessGroup tensor_group;
  Arena* scratch = nullptr;  // for temporaries on the device of the stream
  const Norm* norm = nullptr;
};

// A number that a rule keeps for each parameter.
struct ParameterNumber {
  std::string name;
  float initial = 0;
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;

  // The value of optimizer.optimizer that chooses this rule. Checkpoints record it.
  virtual std::string name() const = 0;
  virtual std::vector<OptimizerState> states() const = 0;
  // Returns what Update gets at a time: a range of elements, or all that this rank optimizes of one
  // parameter.
  virtual ShardUnit unit() const { return ShardUnit::kElement; }
  // Returns whether the rule averages what it makes of gradients over ranks, in some steps. Then
  // Update gets the elements of one bucket at a time.
  virtual bool averages_over_ranks() const { return false; }
  // Returns what ranks do in the step after so many that were applied; kSum for rules that never
  // average.
  virtual RankStep StepAfter(int64_t steps) const { return RankStep::kSum; }
  // Returns whether what averages lack is forgotten before that step.
  virtual bool ForgetsErrorsAfter(int64_t steps) const { return false; }
  // Returns the numbers that the rule keeps for each parameter, the same on all ranks. Checkpoints
  // keep those of a parameter P together, as "optimizer.state.numbers.P".
  virtual std::vector<ParameterNumber> numbers() const { return {}; }
  // Updates masters and states, and rounds the masters to the weights. Where the unit is an
  // element, the result for it does not depend on how elements are cut into ranges.
  virtual void Update(const UpdateRange& range, const Stream& stream) const = 0;
  // weights = those that this rank computes with, of masters and states, for rules with steps of
  // RankStep::kLocal.
  virtual void MakeWeights(const UpdateRange& range, const Stream& stream) const {}
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_RULES_UPDATE_RULE_H_
