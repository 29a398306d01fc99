#include "megatron/train/trainer/checkpoint_checks.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/manifest.h"
#include "megatron/layers/low_rank_adapter.h"
#include "megatron/models/bert/sequence_classifier.h"
#include "megatron/models/make_stage.h"
#include "megatron/optim/outer/outer_optimizer.h"
#include "megatron/tensor/parameter.h"
#include "megatron/tensor/tensor.h"
#include "megatron/train/config/config_difference.h"
#include "megatron/train/trainer/checkpoint_tensors.h"
#include "megatron/train/trainer/run_identity.h"
#include "megatron/train/trainer/upcycling.h"

namespace megatron {
namespace {

constexpr absl::string_view kFresh =
    "; checkpoint.no_load_optim starts with fresh optimizer state, in a run whose checkpoint.load "
    "is this directory and whose checkpoint.save is another";

// Returns the shapes of the whole model's weights by their names. This rank may have only some of
// them.
std::map<std::string, Shape> WeightShapes(const ModelOptions& model) {
  const auto whole = MakeStage(model, {{DeviceType::kMeta}});
  std::map<std::string, Shape> shapes;
  for (const Parameter* parameter : whole->parameters())
    shapes[parameter->name] = parameter->sharding.global_shape;
  for (const RouterState::Named& state : whole->router_state().Tensors())
    shapes[state.name] = state.tensor.shape();
  return shapes;
}

// Returns an error where the checkpoint has a fragment in flight that this run can't receive.
absl::Status CheckFragmentInFlight(const CheckpointReader& reader, const OuterOptimizer& outer) {
  const int64_t saved = reader.Int(kFragmentInFlight).value_or(-1);
  if (saved < 0) return absl::OkStatus();
  MEGATRON_ASSIGN_OR_RETURN(const int64_t fragments, reader.Int(kNumFragments));
  if (fragments == outer.options().num_fragments && saved < fragments &&
      outer.options().sync_delay > 0)
    return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      reader.directory(), ": was saved while islands sent each other fragment ", saved, " of ",
      fragments, ", and this run has diloco.num_fragments = ", outer.options().num_fragments,
      " and diloco.fragment_sync_delay = ", outer.options().sync_delay,
      "; continue with as many fragments and a delay, or from a step at which none is sent"));
}

// Returns the type of a state as the configuration names it.
absl::string_view StateTypeName(DType dtype) {
  return dtype == DType::kUInt8 ? "fp8" : Name(dtype);
}

// Returns whether a run that takes only weights may lack the parameter in what it takes.
bool MayBeginAnew(const std::string& name, const ModelOptions& model) {
  if (absl::StrContains(name, kAdapterName)) return true;
  return model.num_classes > 0 && SequenceClassifier::IsOwn(name);
}

// Returns whether the checkpoint of another program says what this field of a run is.
bool IsOfModel(absl::string_view field) {
  return absl::StartsWith(field, "model.") || absl::StartsWith(field, "precision.");
}

// Returns the differences, a line each, of all fields or of those that say what the model is.
std::string Difference(absl::string_view saved, absl::string_view now, bool of_model) {
  std::string text;
  for (const ConfigDifference& field : DifferencesOf(saved, now)) {
    if (of_model && !IsOfModel(field.field)) continue;
    absl::StrAppend(&text, "\n  ", field.field, ": saved ", field.first, ", now ", field.other);
  }
  return text;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> CheckSameModel(const CheckpointReader& reader,
                                                        bool only_weights, bool is_dense,
                                                        Trainer& trainer) {
  const ModelOptions& model = trainer.options().model;
  std::map<std::string, Shape> ours = WeightShapes(model);
  if (is_dense) {
    std::map<std::string, Shape> dense;
    for (const auto& [name, shape] : ours) dense[Upcycling::DenseName(name)] = shape;
    dense.erase("");
    ours = std::move(dense);
  }
  std::string differences;
  for (const TensorEntry& tensor : reader.manifest().tensors) {
    if (absl::StartsWith(tensor.name, "optimizer.state.")) continue;
    const auto found = ours.find(tensor.name);
    if (found != ours.end()) {
      const bool is_of_other_classes = only_weights &&
                                       SequenceClassifier::HasClasses(tensor.name) &&
                                       tensor.shape != found->second;
      if (!is_of_other_classes) ours.erase(found);
      continue;
    }
    if (only_weights && model.num_classes > 0 && SequenceClassifier::IsOfOtherHead(tensor.name))
      continue;
    absl::StrAppend(&differences, "\n  only saved: ", tensor.name);
  }
  std::vector<std::string> missing;
  for (const auto& [name, shape] : ours) {
    if (only_weights && MayBeginAnew(name, model)) {
      missing.push_back(name);
    } else {
      absl::StrAppend(&differences, "\n  only here: ", name);
    }
  }
  if (differences.empty()) return missing;
  return absl::FailedPreconditionError(
      absl::StrCat(reader.directory(), ": holds the weights of another model:", differences));
}

absl::Status CheckRemainders(const CheckpointReader& reader, bool with_states, Trainer& trainer) {
  constexpr char kField[] = "optimizer.store_param_remainders";
  const ParameterBuffers& buffers = trainer.buffers();
  const auto& states = buffers.options().states;
  const bool keeps = std::any_of(states.begin(), states.end(),
                                 [](const OptimizerState& state) { return state.is_remainder; });
  for (const FlatParameter& flat : buffers.parameters()) {
    const std::string& name = flat.parameter->name;
    const bool has = FindTensor(reader.manifest(), StatePrefix(kMasterRemainder) + name) != nullptr;
    if (has && buffers.has_masters()) {
      return absl::FailedPreconditionError(absl::StrCat(
          reader.directory(), ": has bf16 weights and the remainders of main weights (", kField,
          "), and this run keeps main weights in fp32; ", kField, "=true loads it"));
    }
    if (!has && keeps && with_states) {
      return absl::FailedPreconditionError(
          absl::StrCat(reader.directory(), ": has main weights in fp32, and this run keeps their ",
                       "remainders (", kField, ")", kFresh));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSameOptimizer(const CheckpointReader& reader, Trainer& trainer) {
  const std::string ours = trainer.optimizer().rule().name();
  MEGATRON_ASSIGN_OR_RETURN(const std::string saved, reader.String("optimizer"));
  if (saved != ours) {
    return absl::FailedPreconditionError(
        absl::StrCat(reader.directory(), ": was saved by optimizer.optimizer = ", saved,
                     " and this run has ", ours, kFresh));
  }
  if (HasPendingUpdate(reader) && !trainer.optimizer().delays()) {
    return absl::FailedPreconditionError(absl::StrCat(
        reader.directory(), ": was saved with an update to come (optimizer.delayed_update), which ",
        "this run would lose; optimizer.delayed_update=true continues, and makes it at once where ",
        "optimizer.delayed_update_warmup_steps is greater than the number of steps", kFresh));
  }
  const int64_t saved_islands = SavedIslands(reader);
  const OuterOptimizer* const outer = trainer.outer_optimizer();
  const int64_t islands = outer == nullptr ? 0 : outer->islands();
  if (saved_islands != 0 && saved_islands != islands) {
    return absl::FailedPreconditionError(
        absl::StrCat(reader.directory(), ": has the optimizer states of ", saved_islands,
                     " islands, each of its own, and this run has ",
                     islands == 0 ? "none" : absl::StrCat(islands),
                     " (diloco.sync_every, parallel.num_distributed_optimizer_instances)", kFresh,
                     "; it begins with the global weights"));
  }
  if (outer != nullptr && saved_islands != 0) {
    MEGATRON_RETURN_IF_ERROR(CheckFragmentInFlight(reader, *outer));
  }
  const std::string island = SavedIsland(reader, trainer);
  for (const FlatParameter& flat : trainer.buffers().parameters()) {
    for (const OptimizerState& state : trainer.buffers().options().states) {
      const std::string& parameter = flat.parameter->name;
      const std::string name = SavedPrefix(reader, island, state, parameter) + parameter;
      const TensorEntry* const entry = FindTensor(reader.manifest(), name);
      if (entry == nullptr || entry->dtype == state.dtype) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          reader.directory(), ": has ", name, " in ", StateTypeName(entry->dtype),
          ", and this run keeps it in ", StateTypeName(state.dtype),
          state.is_delayed_gradient ? " (optimizer.main_grads_dtype)"
                                    : " (optimizer.exp_avg_dtype, optimizer.exp_avg_sq_dtype)",
          kFresh));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSameRun(const CheckpointReader& reader, const std::string& identity) {
  MEGATRON_ASSIGN_OR_RETURN(const std::string saved, reader.String("identity"));
  if (saved == identity) return absl::OkStatus();
  const absl::StatusOr<std::string> program = reader.String(kSavedBy);
  const std::string differences = Difference(saved, identity, /*of_model=*/program.ok());
  if (program.ok()) {
    if (differences.empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        reader.directory(), ": is of a run of ", *program, " whose model is another one; the ",
        "configuration beside it has its model. What differs:", differences));
  }
  return absl::FailedPreconditionError(
      absl::StrCat(reader.directory(),
                   ": is a checkpoint of another run; to start a new run from its weights set ",
                   "checkpoint.finetune, to start afresh give another checkpoint.load and "
                   "checkpoint.save. What differs:",
                   differences));
}

}  // namespace megatron
