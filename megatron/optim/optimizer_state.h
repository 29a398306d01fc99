// OptimizerState: the description of one state tensor of an optimizer.
#ifndef MEGATRON_OPTIM_OPTIMIZER_STATE_H_
#define MEGATRON_OPTIM_OPTIMIZER_STATE_H_

#include <optional>
#include <string>

#include "megatron/tensor/dtype.h"
#include "megatron/tensor/parameter.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// The name of the state that is_remainder.
inline constexpr char kMasterRemainder[] = "master_remainder";
// The name of the state that is_delayed_gradient.
inline constexpr char kDelayedGradient[] = "delayed_gradient";

// The parameters that have a state: all, the weights that are matrices of hidden layers
// (Parameter::matrix), or the others.
enum class StateOwners { kAll, kMatrices, kOthers };

// A state has one element for each element of its parameters and starts as zeros.
struct OptimizerState {
  // PyTorch's name for it, such as "exp_avg". Checkpoints keep the state of a parameter P as
  // "optimizer.state.NAME.P".
  std::string name;
  DType dtype = DType::kFloat32;
  // The device of its memory; if unset, the device of the parameters.
  std::optional<Device> device = std::nullopt;
  // The name in checkpoints that were saved before it was renamed; empty if it never was.
  std::string former_name = {};
  StateOwners owners = StateOwners::kAll;
  // Whether data-parallel ranks have values of their own between steps of RankStep::kJoin. Masters
  // then are what ranks have in common, and are kept apart from weights in fp32 too.
  bool differs = false;
  // Whether it is zero after steps of RankStep::kJoin.
  bool restarts = false;
  // Whether it holds what masters of fp32 have besides weights in bf16 (ops::WeightOfMaster): there
  // are no other masters then. Masters begin as the weights.
  bool is_remainder = false;
  // Whether it holds the gradients of the last step, whose update comes behind the passes of the
  // next one. In host memory it is page-locked.
  bool is_delayed_gradient = false;

  bool Has(const Parameter& parameter) const {
    return owners == StateOwners::kAll ||
           parameter.matrix.has_value() == (owners == StateOwners::kMatrices);
  }
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_OPTIMIZER_STATE_H_
