#include "megatron/train/trainer/training_checkpoint.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/manifest.h"
#include "megatron/checkpoint/names.h"
#include "megatron/checkpoint/rectangle.h"
#include "megatron/models/make_stage.h"
#include "megatron/train/config/config_difference.h"
#include "megatron/train/trainer/run_identity.h"
#include "megatron/train/trainer/run_options.h"

namespace megatron {
namespace {

// Appends elements `range` of a parameter's block, which `flat` holds, under the parameter's name
// behind `prefix`.
void AppendBlocks(const std::string& prefix, const Parameter& parameter, const FlatRange& range,
                  const Tensor& flat, std::vector<ShardedTensor>* blocks) {
  const Sharding& sharding = parameter.sharding;
  int64_t at = 0;
  for (const Rectangle& part :
       ConsecutiveRectangles(range.begin, range.end, sharding.local_shape)) {
    ShardedTensor block;
    block.name = prefix + parameter.name;
    block.tensor = flat.Slice(0, at, at + part.extent.numel()).View(part.extent);
    block.global_shape = block.offset = sharding.global_shape;
    for (int d = 0; d < part.start.rank(); ++d)
      block.offset[d] = sharding.offset[d] + part.start[d];
    at += part.extent.numel();
    blocks->push_back(std::move(block));
  }
}

constexpr char kMasterPrefix[] = "optimizer.state.fp32_param.";
constexpr char kExpAvgPrefix[] = "optimizer.state.exp_avg.";
constexpr char kExpAvgSqPrefix[] = "optimizer.state.exp_avg_sq.";

// What this rank saves: of everything that several ranks hold its own part.
std::vector<ShardedTensor> OwnedBlocks(Trainer& trainer) {
  std::vector<ShardedTensor> blocks;
  const ParameterBuffers& buffers = trainer.buffers();
  for (const ParameterPlace& place : buffers.places()) {
    const FlatRange owned = OwnedRange(buffers, place, trainer.groups());
    if (owned.size() == 0) continue;
    const FlatRange range = {owned.begin - place.begin, owned.end - place.begin};
    const Bucket& bucket = buffers.bucket_of(place);
    auto append = [&](const char* prefix, const Tensor& flat) {
      if (!flat.empty()) AppendBlocks(prefix, *place.parameter, range, flat, &blocks);
    };
    append("", buffers.Weights(bucket, owned));
    if (buffers.has_masters()) append(kMasterPrefix, buffers.Masters(bucket, owned));
    append(kExpAvgPrefix, buffers.ExpAvg(bucket, owned));
    append(kExpAvgSqPrefix, buffers.ExpAvgSq(bucket, owned));
  }
  for (ShardedTensor& block : blocks) block.tensor = trainer.host_parameters().Of(block.tensor);
  return blocks;
}

// The tensors that no optimizer updates.
std::vector<ShardedTensor> RouterBlocks(Trainer& trainer) {
  std::vector<ShardedTensor> blocks;
  for (const RouterState::Named& state : trainer.stage().router_state().Tensors()) {
    ShardedTensor block;
    block.name = state.name;
    block.tensor = state.tensor;
    block.global_shape = state.tensor.shape();
    block.offset = {0};
    block.replica = trainer.groups().tensor.rank() +
                    trainer.groups().tensor.size() * trainer.groups().data_context.rank();
    blocks.push_back(block);
  }
  return blocks;
}

// What is loaded: the weights the model computes with are their rounded masters.
std::vector<ShardedTensor> MasterBlocks(Trainer& trainer, const CheckpointReader& reader) {
  std::vector<ShardedTensor> blocks;
  for (const ParameterState& state : trainer.buffers().States()) {
    const bool has_master =
        FindTensor(reader.manifest(), kMasterPrefix + state.parameter->name) != nullptr;
    AppendBlocks(has_master ? kMasterPrefix : "", *state.parameter, state.held, state.master,
                 &blocks);
  }
  return blocks;
}

std::vector<ShardedTensor> MomentBlocks(Trainer& trainer) {
  std::vector<ShardedTensor> blocks;
  for (const ParameterState& state : trainer.buffers().States()) {
    if (!state.exp_avg.empty())
      AppendBlocks(kExpAvgPrefix, *state.parameter, state.held, state.exp_avg, &blocks);
    if (!state.exp_avg_sq.empty())
      AppendBlocks(kExpAvgSqPrefix, *state.parameter, state.held, state.exp_avg_sq, &blocks);
  }
  return blocks;
}

// The names of the whole model's weights, of which a rank may hold some only.
std::set<std::string> WeightNames(const ModelOptions& model) {
  const auto whole = MakeStage(model, {{DeviceType::kMeta}});
  std::set<std::string> names;
  for (const Parameter* parameter : whole->parameters()) names.insert(parameter->name);
  for (const RouterState::Named& state : whole->router_state().Tensors()) names.insert(state.name);
  return names;
}

// Whether the checkpoint has the weights of this model and no others.
absl::Status CheckSameModel(const CheckpointReader& reader, Trainer& trainer) {
  std::set<std::string> ours = WeightNames(trainer.options().model);
  std::string differences;
  for (const TensorEntry& tensor : reader.manifest().tensors) {
    if (absl::StartsWith(tensor.name, "optimizer.state.")) continue;
    if (ours.erase(tensor.name) == 0)
      absl::StrAppend(&differences, "\n  only saved: ", tensor.name);
  }
  for (const std::string& name : ours) absl::StrAppend(&differences, "\n  only here: ", name);
  if (differences.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(reader.directory(), ": holds the weights of another model:", differences));
}

const char* OptimizerName(const Trainer& trainer) {
  return trainer.options().optimizer.kind == OptimizerOptions::kSgd ? "sgd" : "adam";
}

absl::Status CheckSameOptimizer(const CheckpointReader& reader, const Trainer& trainer) {
  MEGATRON_ASSIGN_OR_RETURN(const std::string saved, reader.String("optimizer"));
  if (saved == OptimizerName(trainer)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      reader.directory(), ": was saved by optimizer.optimizer = ", saved, " and this run has ",
      OptimizerName(trainer), "; checkpoint.no_load_optim starts with fresh optimizer state"));
}

std::string Difference(absl::string_view saved, absl::string_view now) {
  std::string text;
  for (const ConfigDifference& field : DifferencesOf(saved, now))
    absl::StrAppend(&text, "\n  ", field.field, ": saved ", field.first, ", now ", field.other);
  return text;
}

absl::Status CheckSameRun(const CheckpointReader& reader, const RunDescription& run) {
  MEGATRON_ASSIGN_OR_RETURN(const std::string saved, reader.String("identity"));
  if (saved == run.identity) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(reader.directory(),
                   ": is a checkpoint of another run; to start a new run from its weights set ",
                   "checkpoint.finetune, to start afresh give another checkpoint.load and "
                   "checkpoint.save. What differs:",
                   Difference(saved, run.identity)));
}

absl::Status LoadBlocks(const CheckpointReader& reader, std::vector<ShardedTensor> blocks,
                        Trainer* trainer) {
  for (ShardedTensor& block : blocks) {
    block.tensor = trainer->host_parameters().Of(block.tensor);
    MEGATRON_RETURN_IF_ERROR(reader.Load(block));
  }
  trainer->host_parameters().Send(trainer->stream());
  return absl::OkStatus();
}

absl::Status RestoreProgress(const CheckpointReader& reader, TrainingProgress* progress) {
  MEGATRON_ASSIGN_OR_RETURN(progress->iteration, reader.Int("iteration"));
  MEGATRON_ASSIGN_OR_RETURN(progress->consumed_train_samples, reader.Int("consumed_train_samples"));
  MEGATRON_ASSIGN_OR_RETURN(progress->consumed_valid_samples, reader.Int("consumed_valid_samples"));
  MEGATRON_ASSIGN_OR_RETURN(progress->skipped_iterations, reader.Int("skipped_iterations"));
  MEGATRON_ASSIGN_OR_RETURN(progress->nan_iterations, reader.Int("nan_iterations"));
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
  trainer.host_parameters().Fetch(trainer.stream());
  state.tensors = OwnedBlocks(trainer);
  for (const ShardedTensor& block : RouterBlocks(trainer)) {
    if (block.replica == 0) state.tensors.push_back(block);
  }
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
  state.floats = {{"loss_scaler.scale", scaler.scale}};
  state.strings = {{"identity", run.identity},
                   {"config", run.config_text},
                   {"optimizer", OptimizerName(trainer)}};
  return state;
}

absl::Status RestoreCheckpoint(const CheckpointReader& reader, Restore what,
                               const RunDescription& run, Trainer* trainer) {
  if (what != Restore::kWeights) {
    MEGATRON_RETURN_IF_ERROR(CheckSameRun(reader, run));
  }
  MEGATRON_RETURN_IF_ERROR(CheckSameModel(reader, *trainer));
  if (what == Restore::kEverything) {
    MEGATRON_RETURN_IF_ERROR(CheckSameOptimizer(reader, *trainer));
  }
  for (const ShardedTensor& block : RouterBlocks(*trainer)) {
    MEGATRON_RETURN_IF_ERROR(reader.Load(block));
  }
  trainer->stage().router_state().SendTensors(trainer->stream());
  MEGATRON_RETURN_IF_ERROR(LoadBlocks(reader, MasterBlocks(*trainer, reader), trainer));
  trainer->buffers().CopyMastersToWeights(trainer->stream());
  MEGATRON_RETURN_IF_ERROR(trainer->ShareWeights());
  if (what == Restore::kWeights) return absl::OkStatus();
  MEGATRON_RETURN_IF_ERROR(RestoreProgress(reader, &trainer->progress()));
  MEGATRON_RETURN_IF_ERROR(RestoreSchedules(reader, trainer));
  if (what == Restore::kWithoutOptimizer) return absl::OkStatus();
  // The host's weights are not those of the device any more, which were rounded from the masters.
  trainer->host_parameters().Fetch(trainer->stream());
  MEGATRON_RETURN_IF_ERROR(LoadBlocks(reader, MomentBlocks(*trainer), trainer));
  MEGATRON_ASSIGN_OR_RETURN(const int64_t applied, reader.Int("optimizer.applied_steps"));
  trainer->optimizer().set_applied_steps(applied);
  return absl::OkStatus();
}

}  // namespace megatron
