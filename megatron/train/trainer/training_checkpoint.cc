#include "megatron/train/trainer/training_checkpoint.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/manifest.h"
#include "megatron/checkpoint/names.h"
#include "megatron/layers/low_rank_adapter.h"
#include "megatron/optim/outer/outer_optimizer.h"
#include "megatron/train/trainer/checkpoint_checks.h"
#include "megatron/train/trainer/checkpoint_tensors.h"
#include "megatron/train/trainer/named_changes.h"
#include "megatron/train/trainer/run_identity.h"
#include "megatron/train/trainer/upcycling.h"

namespace megatron {
namespace {

// A run that begins with other states of the optimizer begins with no history either.
absl::Status RestoreHistory(const CheckpointReader& reader, Restore what, Trainer* trainer,
                            std::vector<std::string>* warnings) {
  const std::vector<ShardedTensor> blocks = HistoryBlocks(*trainer);
  if (blocks.empty()) return absl::OkStatus();
  const bool has = std::all_of(blocks.begin(), blocks.end(), [&](const ShardedTensor& block) {
    return FindTensor(reader.manifest(), block.name) != nullptr;
  });
  if (what != Restore::kEverything || !has) {
    warnings->push_back(
        absl::StrCat(reader.directory(), has ? ": its" : ": has no",
                     " largest magnitudes of earlier steps (precision.fp8_recipe = delayed)",
                     has ? " are not taken over" : "",
                     "; the scales of the first step are those of the moment"));
    return absl::OkStatus();
  }
  for (const ShardedTensor& block : blocks) MEGATRON_RETURN_IF_ERROR(reader.Load(block));
  trainer->stage().float8_history().Restored(trainer->stream());
  return absl::OkStatus();
}

// Returns why states of gradient compression that a checkpoint keeps are of no use here.
std::string WhyOfNoUse(const std::string& saved, const std::string& now) {
  if (now.empty()) return "this run does not compress gradients or momentum";
  const std::string changes = NameChanges(saved, now);
  return changes.empty() ? "another version of this program saved it" : changes;
}

// Loads this rank's states of gradient compression into host memory, if the run that saved them had
// the same layout.
absl::Status LoadCompression(const CheckpointReader& reader, Trainer* trainer,
                             std::vector<std::string>* warnings) {
  const std::string saved = reader.String(kCompression).value_or("");
  const std::string now = CompressionLayout(*trainer);
  if (saved.empty()) return absl::OkStatus();
  if (saved != now) {
    warnings->push_back(absl::StrCat(reader.directory(),
                                     ": what compressed gradients or momentum lack is lost, since ",
                                     WhyOfNoUse(saved, now)));
    return absl::OkStatus();
  }
  for (const ShardedTensor& block : CompressionBlocks(*trainer))
    MEGATRON_RETURN_IF_ERROR(reader.Load(block));
  const std::string changes =
      NameChanges(reader.String(kCompressionShare).value_or(""), CompressionShare(*trainer));
  if (!changes.empty()) {
    warnings->push_back(absl::StrCat(reader.directory(), ": gradient_compression goes on with ",
                                     "what it had not sent, though ", changes));
  }
  return absl::OkStatus();
}

// Loads this rank's own states, if ranks differed and the run that saved them had the same layout.
// Else ranks begin with what they have in common.
absl::Status RestoreLocalStates(const CheckpointReader& reader, Trainer* trainer,
                                std::vector<std::string>* warnings) {
  const absl::StatusOr<double> rates = reader.Float(kLocalRates);
  if (!rates.ok()) return absl::OkStatus();
  const std::string saved = reader.String(kCompression).value_or("");
  const std::string now = CompressionLayout(*trainer);
  if (saved != now) {
    warnings->push_back(absl::StrCat(reader.directory(), ": what ranks did since they last ",
                                     "synchronized is lost, since ", WhyOfNoUse(saved, now)));
    return absl::OkStatus();
  }
  trainer->optimizer().set_local_rates(*rates);
  for (const ShardedTensor& block : LocalBlocks(*trainer))
    MEGATRON_RETURN_IF_ERROR(reader.Load(block));
  trainer->host_parameters().Send(trainer->stream());
  trainer->optimizer().MakeLocalWeights(trainer->stream());
  return trainer->ShareWeights();
}

// Loads the numbers that the rule keeps for the parameters whose states this rank has.
absl::Status LoadNumbers(const CheckpointReader& reader, Trainer* trainer) {
  const ParameterBuffers& buffers = trainer->buffers();
  for (size_t i = 0; i < buffers.parameters().size(); ++i) {
    const FlatParameter& flat = buffers.parameters()[i];
    const FlatRange range = Common(flat.range, buffers.optimizer_range(buffers.bucket_of(flat)));
    if (range.size() == 0 || trainer->optimizer().NumbersOf(i).empty()) continue;
    MEGATRON_RETURN_IF_ERROR(reader.Load(NumbersBlock(*trainer, i)));
  }
  return absl::OkStatus();
}

// Loads what the pending update has besides its gradients.
absl::Status RestorePendingUpdate(const CheckpointReader& reader, Trainer* trainer) {
  if (!HasPendingUpdate(reader)) return absl::OkStatus();
  PendingUpdate pending;
  pending.exists = true;
  MEGATRON_ASSIGN_OR_RETURN(pending.grad_scale, reader.Float(kPendingScale));
  MEGATRON_ASSIGN_OR_RETURN(pending.lr, reader.Float(kPendingLr));
  // Older checkpoints always have it: that of a run without one is the learning rate.
  if (const auto decoupled_lr = reader.Float(kPendingDecoupledLr); decoupled_lr.ok())
    pending.decoupled_lr = *decoupled_lr;
  MEGATRON_ASSIGN_OR_RETURN(pending.scaled_lr, reader.Float(kPendingScaledLr));
  MEGATRON_ASSIGN_OR_RETURN(pending.weight_decay, reader.Float(kPendingWeightDecay));
  trainer->optimizer().set_pending(pending);
  return absl::OkStatus();
}

bool HasAdapters(const CheckpointReader& reader) {
  const auto& tensors = reader.manifest().tensors;
  return std::any_of(tensors.begin(), tensors.end(), [](const TensorEntry& tensor) {
    return absl::StrContains(tensor.name, kAdapterName);
  });
}

// Names parameters that the checkpoint lacks.
std::string NamesOf(const std::vector<std::string>& missing, const CheckpointReader& reader) {
  constexpr size_t kMost = 4;
  if (!HasAdapters(reader) && absl::StrContains(missing[0], kAdapterName))
    return "adapters (model.lora)";
  std::string text =
      absl::StrJoin(absl::MakeConstSpan(missing).subspan(0, std::min(kMost, missing.size())), ", ");
  if (missing.size() > kMost) absl::StrAppend(&text, " and ", missing.size() - kMost, " others");
  return text;
}

// Tells which parameters begin anew although the checkpoint's are loaded, and why.
void WarnOfMissing(const std::vector<std::string>& missing, const CheckpointReader& reader,
                   std::vector<std::string>* warnings) {
  std::vector<std::string> absent, of_other_classes;
  for (const std::string& name : missing) {
    const bool is_absent = FindTensor(reader.manifest(), name) == nullptr;
    (is_absent ? absent : of_other_classes).push_back(name);
  }
  if (!absent.empty()) {
    warnings->push_back(absl::StrCat(reader.directory(), ": has no ", NamesOf(absent, reader),
                                     ", so that these begin anew"));
  }
  if (!of_other_classes.empty()) {
    warnings->push_back(absl::StrCat(reader.directory(), ": has another number of classes in ",
                                     NamesOf(of_other_classes, reader),
                                     ", so that these begin anew"));
  }
}

// The weights of a checkpoint, or what those of a dense model become.
struct SavedWeights {
  const CheckpointReader& reader;
  std::optional<Upcycling> upcycling;
  std::set<std::string> anew;  // the names of parameters that CheckSameModel allows to be missing

  // Returns whether the checkpoint has the tensor. A router's weights then begin anew.
  bool Has(const std::string& name) const {
    if (!upcycling) return FindTensor(reader.manifest(), name) != nullptr;
    const std::string dense = Upcycling::DenseName(name);
    return dense.empty() || FindTensor(reader.manifest(), dense) != nullptr;
  }
  absl::Status Load(const Parameter& parameter, const ShardedTensor& block) const {
    return upcycling ? upcycling->Load(reader, parameter, block) : reader.Load(block);
  }
};

// Appends the blocks of masters to load; with islands these are the global copy. The model's
// weights are not loaded: they are the rounded masters. What begins anew stays as it began.
void AppendMasters(const ParameterState& state, const SavedWeights& saved,
                   std::vector<ShardedTensor>* blocks) {
  const std::string& name = state.parameter->name;
  if (state.master.empty() || saved.anew.count(name) > 0) return;
  // Where a remainder is loaded with the states, weights are loaded as they are.
  const bool has_master =
      state.master.dtype() == DType::kFloat32 && saved.Has(kMasterPrefix + name);
  if (!has_master && !saved.Has(name)) return;
  AppendBlocks(has_master ? kMasterPrefix : "", *state.parameter, state.range, state.master,
               blocks);
}

// Loads the weights of frozen parameters, which have no masters, into the host's copy of all
// weights.
absl::Status LoadFrozen(const SavedWeights& saved, Trainer* trainer) {
  const ParameterBuffers& buffers = trainer->buffers();
  for (const FlatParameter& flat : buffers.parameters()) {
    const Bucket& bucket = buffers.bucket_of(flat);
    ParameterState state;
    state.parameter = flat.parameter;
    const FlatRange stored = Common(flat.range, buffers.weight_range(bucket));
    if (!flat.parameter->frozen || stored.size() == 0) continue;
    state.range = Within(flat, stored);
    state.master = buffers.Weights(bucket, stored);
    std::vector<ShardedTensor> blocks;
    AppendMasters(state, saved, &blocks);
    for (ShardedTensor& block : blocks) {
      block.tensor = trainer->host_parameters().Of(block.tensor);
      MEGATRON_RETURN_IF_ERROR(saved.Load(*flat.parameter, block));
    }
  }
  return absl::OkStatus();
}

// Appends the blocks of optimizer states to load, and those of an island's masters.
void AppendStates(const ParameterState& state, const std::vector<OptimizerState>& kinds,
                  const CheckpointReader& reader, const std::string& island,
                  std::vector<ShardedTensor>* blocks) {
  for (size_t i = 0; i < state.states.size(); ++i) {
    if (!kinds[i].Has(*state.parameter) || kinds[i].restarts) continue;
    // A run whose updates were not late has kept none.
    if (kinds[i].is_delayed_gradient && !HasPendingUpdate(reader)) continue;
    AppendBlocks(SavedPrefix(reader, island, kinds[i], state.parameter->name), *state.parameter,
                 state.range, state.states[i], blocks);
  }
  if (island.empty()) return;
  AppendBlocks(StatePrefix(island + kMaster), *state.parameter, state.range, state.master, blocks);
}

// Loads the momentum of the global copy and what was in flight, and makes weights of the masters of
// this rank's island, which were loaded. A checkpoint without islands has none of these.
absl::Status RestoreIsland(const CheckpointReader& reader, Trainer* trainer) {
  OuterOptimizer* const outer = trainer->outer_optimizer();
  if (outer == nullptr || SavedIslands(reader) == 0) return absl::OkStatus();
  const int64_t in_flight = reader.Int(kFragmentInFlight).value_or(-1);
  if (in_flight >= 0) {
    MEGATRON_ASSIGN_OR_RETURN(const int64_t iteration, reader.Int(kFragmentIteration));
    outer->Resume({static_cast<int>(in_flight), iteration});
  }
  const ParameterBuffers& buffers = trainer->buffers();
  std::vector<ShardedTensor> blocks;
  for (const FlatParameter& flat : buffers.parameters()) {
    const Bucket& bucket = buffers.bucket_of(flat);
    const FlatRange range = Common(flat.range, buffers.optimizer_range(bucket));
    if (range.size() > 0 && IsInFlight(*outer, *flat.parameter)) {
      AppendBlocks(StatePrefix(kOuterGradient), *flat.parameter, Within(flat, range),
                   outer->Sums(bucket, range), &blocks);
    }
    const std::string prefix = StatePrefix(kOuterMomentum);
    // A run without momentum has saved none.
    if (range.size() == 0 || !outer->has_momentum() ||
        FindTensor(reader.manifest(), prefix + flat.parameter->name) == nullptr)
      continue;
    AppendBlocks(prefix, *flat.parameter, Within(flat, range),
                 trainer->host_parameters().Of(outer->Momentum(bucket, range)), &blocks);
  }
  for (const ShardedTensor& block : blocks) MEGATRON_RETURN_IF_ERROR(reader.Load(block));
  trainer->host_parameters().Send(trainer->stream());
  trainer->buffers().CopyMastersToWeights(trainer->stream());
  return trainer->ShareWeights();
}

// Loads the blocks that append(state, blocks) makes of the masters and states, in memory and in the
// file.
template <typename Append>
absl::Status LoadStates(const SavedWeights& saved, Trainer* trainer, const Append& append) {
  for (const ParameterState& state : trainer->buffers().States()) {
    std::vector<ShardedTensor> blocks;
    append(state, &blocks);
    for (ShardedTensor& block : blocks) {
      block.tensor = trainer->host_parameters().Of(block.tensor);
      MEGATRON_RETURN_IF_ERROR(saved.Load(*state.parameter, block));
    }
  }
  trainer->host_parameters().Send(trainer->stream());
  return trainer->buffers().ChangeStatesInFile([&](const ParameterState& state) -> absl::Status {
    std::vector<ShardedTensor> parts;
    append(state, &parts);
    for (const ShardedTensor& part : parts) {
      MEGATRON_RETURN_IF_ERROR(saved.Load(*state.parameter, part));
    }
    return absl::OkStatus();
  });
}

absl::Status RestoreProgress(const CheckpointReader& reader, bool has_curriculum,
                             TrainingProgress* progress) {
  MEGATRON_ASSIGN_OR_RETURN(progress->iteration, reader.Int("iteration"));
  MEGATRON_ASSIGN_OR_RETURN(progress->consumed_train_samples, reader.Int("consumed_train_samples"));
  MEGATRON_ASSIGN_OR_RETURN(progress->consumed_valid_samples, reader.Int("consumed_valid_samples"));
  MEGATRON_ASSIGN_OR_RETURN(progress->skipped_iterations, reader.Int("skipped_iterations"));
  MEGATRON_ASSIGN_OR_RETURN(progress->nan_iterations, reader.Int("nan_iterations"));
  if (has_curriculum) {
    MEGATRON_ASSIGN_OR_RETURN(progress->consumed_train_tokens, reader.Int("consumed_train_tokens"));
  }
  // Only a run with an outer server has these.
  progress->server_run = static_cast<uint64_t>(reader.Int(kServerRun).value_or(0));
  progress->server_round = reader.Int(kServerRound).value_or(-1);
  return absl::OkStatus();
}

absl::Status RestoreSchedules(const CheckpointReader& reader, Trainer* trainer) {
  OptimizerParamSchedulerState schedule;
  MEGATRON_ASSIGN_OR_RETURN(schedule.num_steps, reader.Int("opt_param_scheduler.num_steps"));
  trainer->scheduler().set_state(schedule);
  LossScalerState scaler;
  MEGATRON_ASSIGN_OR_RETURN(scaler.scale, reader.Float("loss_scaler.scale"));
  MEGATRON_ASSIGN_OR_RETURN(scaler.clean_steps, reader.Int("loss_scaler.clean_steps"));
  MEGATRON_ASSIGN_OR_RETURN(scaler.hysteresis_left, reader.Int("loss_scaler.hysteresis_left"));
  trainer->scaler().set_state(scaler);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<FoundCheckpoint> LocateCheckpoint(FileSystem& fs, const std::string& directory) {
  if (!fs.Stat(absl::StrCat(directory, "/", kManifestFileName)).ok()) {
    return FindLatestCheckpoint(fs, directory);
  }
  FoundCheckpoint found;
  found.directory = directory;
  MEGATRON_ASSIGN_OR_RETURN(const CheckpointReader reader, CheckpointReader::Open(fs, directory));
  found.iteration = reader.manifest().iteration;
  return found;
}

CheckpointState MakeCheckpointState(Trainer& trainer, const RunDescription& run) {
  CheckpointState state;
  const TrainingProgress& progress = trainer.progress();
  state.run_id = RunId(run.identity);
  state.iteration = progress.iteration;
  trainer.optimizer().WaitForStates();
  trainer.host_parameters().Fetch(trainer.stream());
  const OuterOptimizer* const outer = trainer.outer_optimizer();
  if (outer != nullptr) outer->WaitForSums();
  state.tensors = SavedBlocks(trainer);
  for (const ShardedTensor& block : RouterBlocks(trainer)) {
    if (block.replica == 0) state.tensors.push_back(block);
  }
  for (const ShardedTensor& block : HistoryBlocks(trainer)) {
    if (block.replica == 0) state.tensors.push_back(block);
  }
  for (const ShardedTensor& block : CompressionBlocks(trainer)) state.tensors.push_back(block);
  for (const ShardedTensor& block : LocalBlocks(trainer)) state.tensors.push_back(block);
  const LossScalerState& scaler = trainer.scaler().state();
  state.ints = {{"iteration", progress.iteration},
                {"consumed_train_samples", progress.consumed_train_samples},
                {"consumed_valid_samples", progress.consumed_valid_samples},
                {"skipped_iterations", progress.skipped_iterations},
                {"nan_iterations", progress.nan_iterations},
                {"optimizer.applied_steps", trainer.optimizer().applied_steps()},
                {"opt_param_scheduler.num_steps", trainer.scheduler().state().num_steps},
                {"loss_scaler.clean_steps", scaler.clean_steps},
                {"loss_scaler.hysteresis_left", scaler.hysteresis_left}};
  if (trainer.options().curriculum.enabled())
    state.ints["consumed_train_tokens"] = progress.consumed_train_tokens;
  state.floats = {{"loss_scaler.scale", scaler.scale}};
  if (trainer.optimizer().local_rates() > 0)
    state.floats[kLocalRates] = trainer.optimizer().local_rates();
  if (const PendingUpdate& pending = trainer.optimizer().pending(); pending.exists) {
    state.floats[kPendingScale] = pending.grad_scale;
    state.floats[kPendingLr] = pending.lr;
    if (pending.decoupled_lr) state.floats[kPendingDecoupledLr] = *pending.decoupled_lr;
    state.floats[kPendingScaledLr] = pending.scaled_lr;
    state.floats[kPendingWeightDecay] = pending.weight_decay;
  }
  state.strings = {{"identity", run.identity},
                   {"config", run.config_text},
                   {"optimizer", trainer.optimizer().rule().name()}};
  if (outer != nullptr) {
    state.ints[kIslands] = outer->islands();
    if (progress.server_run != 0) {
      state.ints[kServerRun] = static_cast<int64_t>(progress.server_run);
      state.ints[kServerRound] = progress.server_round;
    }
    if (outer->in_flight().fragment >= 0) {
      state.ints[kNumFragments] = outer->options().num_fragments;
      state.ints[kFragmentInFlight] = outer->in_flight().fragment;
      state.ints[kFragmentIteration] = outer->in_flight().iteration;
    }
  }
  if (!run.phase_transitions.empty()) state.strings[kPhaseData] = run.phase_data;
  const std::string compression = CompressionLayout(trainer);
  if (!compression.empty()) state.strings[kCompression] = compression;
  if (const std::string share = CompressionShare(trainer); !share.empty())
    state.strings[kCompressionShare] = share;
  if (!run.instruction_set.empty()) state.strings[kInstructionSet] = run.instruction_set;
  if (!run.kernels.empty()) state.strings["kernels"] = run.kernels;
  return state;
}

std::string OtherInstructionSet(const CheckpointReader& reader, const RunDescription& run) {
  // Checkpoints of earlier versions do not say.
  const std::string saved = reader.String(kInstructionSet).value_or("");
  if (saved.empty() || run.instruction_set.empty() || saved == run.instruction_set) return "";
  return absl::StrCat(reader.directory(), " was computed with ", saved,
                      ", and this run computes with ", run.instruction_set,
                      "; MEGATRON_CPU_ISA=", saved, " continues with the same bits");
}

namespace {

// Data change at transitions alone, and the samples before them are counted by iterations.
absl::Status CheckPhase(const CheckpointReader& reader, const RunDescription& run,
                        const Trainer& trainer) {
  if (run.phase_transitions.empty()) return absl::OkStatus();
  constexpr absl::string_view kField = "train.phase_transition_iterations";
  MEGATRON_ASSIGN_OR_RETURN(const int64_t iteration, reader.Int("iteration"));
  MEGATRON_ASSIGN_OR_RETURN(const int64_t taken, reader.Int("consumed_train_samples"));
  if (taken != iteration * trainer.options().batch_size.global_batch_size) {
    return absl::FailedPreconditionError(
        absl::StrCat(reader.directory(), ": has taken ", taken, " samples in ", iteration,
                     " iterations; with ", kField, " each takes the same train.global_batch_size"));
  }
  if (run.phase_transitions.contains(iteration)) return absl::OkStatus();
  MEGATRON_ASSIGN_OR_RETURN(const std::string data, reader.String(kPhaseData));
  if (data == run.phase_data) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(reader.directory(), ": is of iteration ",
                                                    iteration,
                                                    ", and was trained on other "
                                                    "data; data change after the iterations of ",
                                                    kField, " alone"));
}

}  // namespace

absl::Status RestoreCheckpoint(const CheckpointReader& reader, Restore what,
                               const RunDescription& run, Trainer* trainer,
                               std::vector<std::string>* warnings) {
  // Optimizers first: the run's identity differs with them, in fields that say less.
  if (what == Restore::kEverything) {
    MEGATRON_RETURN_IF_ERROR(CheckSameOptimizer(reader, *trainer));
  }
  MEGATRON_RETURN_IF_ERROR(CheckRemainders(reader, what == Restore::kEverything, *trainer));
  if (!BeginsRun(what)) {
    MEGATRON_RETURN_IF_ERROR(CheckSameRun(reader, run.identity));
    MEGATRON_RETURN_IF_ERROR(CheckPhase(reader, run, *trainer));
  }
  const bool is_dense = what == Restore::kDenseWeights;
  SavedWeights saved = {reader, std::nullopt, {}};
  if (is_dense) saved.upcycling.emplace(trainer->options().model.transformer, run.seed);
  MEGATRON_ASSIGN_OR_RETURN(
      const std::vector<std::string> missing,
      CheckSameModel(reader, /*only_weights=*/what == Restore::kWeights, is_dense, *trainer));
  if (!missing.empty()) {
    WarnOfMissing(missing, reader, warnings);
    saved.anew.insert(missing.begin(), missing.end());
    // What is loaded goes to the device with all that is beside it in the host's copy.
    trainer->host_parameters().Fetch(trainer->stream());
  }
  for (const ShardedTensor& block : RouterBlocks(*trainer)) {
    if (is_dense) break;  // it has none, and they begin anew
    MEGATRON_RETURN_IF_ERROR(reader.Load(block));
  }
  trainer->stage().router_state().SendTensors(trainer->stream());
  MEGATRON_RETURN_IF_ERROR(LoadFrozen(saved, trainer));
  MEGATRON_RETURN_IF_ERROR(LoadStates(
      saved, trainer, [&](const ParameterState& state, std::vector<ShardedTensor>* blocks) {
        AppendMasters(state, saved, blocks);
      }));
  trainer->buffers().CopyMastersToWeights(trainer->stream());
  MEGATRON_RETURN_IF_ERROR(trainer->buffers().status());
  MEGATRON_RETURN_IF_ERROR(RestoreHistory(reader, what, trainer, warnings));
  MEGATRON_RETURN_IF_ERROR(trainer->ShareWeights());
  if (trainer->outer_optimizer() != nullptr) trainer->outer_optimizer()->Start(trainer->stream());
  if (BeginsRun(what)) return absl::OkStatus();
  MEGATRON_RETURN_IF_ERROR(
      RestoreProgress(reader, trainer->options().curriculum.enabled(), &trainer->progress()));
  MEGATRON_RETURN_IF_ERROR(RestoreSchedules(reader, trainer));
  if (what == Restore::kWithoutOptimizer) return absl::OkStatus();
  // Send copies everything to the device, whose weights were rounded from the masters and are newer
  // than the host's.
  trainer->host_parameters().Fetch(trainer->stream());
  MEGATRON_RETURN_IF_ERROR(LoadCompression(reader, trainer, warnings));
  const std::vector<OptimizerState>& kinds = trainer->buffers().options().states;
  const std::string island = SavedIsland(reader, *trainer);
  MEGATRON_RETURN_IF_ERROR(LoadStates(
      saved, trainer, [&](const ParameterState& state, std::vector<ShardedTensor>* blocks) {
        AppendStates(state, kinds, reader, island, blocks);
      }));
  MEGATRON_RETURN_IF_ERROR(RestoreIsland(reader, trainer));
  MEGATRON_RETURN_IF_ERROR(LoadNumbers(reader, trainer));
  MEGATRON_RETURN_IF_ERROR(RestoreLocalStates(reader, trainer, warnings));
  MEGATRON_ASSIGN_OR_RETURN(const int64_t applied, reader.Int("optimizer.applied_steps"));
  trainer->optimizer().set_applied_steps(applied);
  return RestorePendingUpdate(reader, trainer);
}

}  // namespace megatron
