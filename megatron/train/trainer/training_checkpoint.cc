#include "megatron/train/trainer/training_checkpoint.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/manifest.h"
#include "megatron/checkpoint/names.h"
#include "megatron/checkpoint/rectangle.h"
#include "megatron/models/make_stage.h"
#include "megatron/ops/elementwise.h"
#include "megatron/optim/main_replica.h"
#include "megatron/optim/outer_optimizer.h"
#include "megatron/train/config/config_difference.h"
#include "megatron/train/trainer/run_identity.h"
#include "megatron/train/trainer/run_options.h"

namespace megatron {
namespace {

// Reads elements of a file: ShardedTensor::elements.
using ReadElements = std::function<absl::Status(int64_t begin, const Tensor& out)>;

// Appends elements `range` of a parameter's block, whose values are `elements`, as blocks named
// `prefix` + the parameter's name.
void AppendBlocks(const std::string& prefix, const Parameter& parameter, const FlatRange& range,
                  const Tensor& elements, std::vector<ShardedTensor>* blocks) {
  const Sharding& sharding = parameter.sharding;
  int64_t at = 0;
  for (const Rectangle& part :
       ConsecutiveRectangles(range.begin, range.end, sharding.local_shape)) {
    ShardedTensor block;
    block.name = prefix + parameter.name;
    block.tensor = elements.Slice(0, at, at + part.extent.numel()).View(part.extent);
    block.global_shape = block.offset = sharding.global_shape;
    for (int d = 0; d < part.start.rank(); ++d)
      block.offset[d] = sharding.offset[d] + part.start[d];
    at += part.extent.numel();
    blocks->push_back(std::move(block));
  }
}

// The same for elements that `read` reads.
void AppendBlocksOfFile(const std::string& prefix, const Parameter& parameter,
                        const FlatRange& range, DType dtype, const ReadElements& read,
                        std::vector<ShardedTensor>* blocks) {
  const Tensor none(nullptr, dtype, {range.size()}, {DeviceType::kMeta});
  const size_t first = blocks->size();
  AppendBlocks(prefix, parameter, range, none, blocks);
  int64_t at = 0;
  for (size_t i = first; i < blocks->size(); ++i) {
    ShardedTensor& block = (*blocks)[i];
    block.elements = [read, at](int64_t begin, const Tensor& out) { return read(at + begin, out); };
    at += block.tensor.numel();
  }
}

constexpr char kMasterPrefix[] = "optimizer.state.fp32_param.";
constexpr char kInstructionSet[] = "instruction_set";
constexpr char kIslands[] = "diloco.islands";
constexpr char kCompression[] = "gradient_compression";
// Optimizer::local_rates, where ranks differ.
constexpr char kLocalRates[] = "optimizer.local_rates";
// The fragment that islands send each other, after which step they began, and of how many it is.
constexpr char kFragmentInFlight[] = "diloco.fragment_in_flight";
constexpr char kFragmentIteration[] = "diloco.fragment_iteration";
constexpr char kNumFragments[] = "diloco.num_fragments";
// The outer server's run and round that the global copy is of.
constexpr char kServerRun[] = "diloco.server_run";
constexpr char kServerRound[] = "diloco.server_round";

// Names of states besides those of the update rule.
constexpr char kMaster[] = "fp32_param";
constexpr char kOuterMomentum[] = "outer_momentum";
constexpr char kOuterGradient[] = "outer_gradient";
constexpr char kNumbers[] = "numbers";

std::string StatePrefix(absl::string_view state) {
  return absl::StrCat("optimizer.state.", state, ".");
}

// Returns the name of a tensor that is this rank's own.
std::string OwnName(absl::string_view state, Trainer& trainer) {
  const ProcessGroups& groups = trainer.groups();
  return absl::StrCat("optimizer.state.", state, ".tp", groups.tensor.rank(), "_pp",
                      groups.pipeline.rank(), "_dp", groups.data_context.rank());
}

// Returns what stands before the names of an island's states.
std::string OfIsland(int island) { return absl::StrCat("island", island, "."); }

// Returns the number of islands of the run that saved the checkpoint; 0: it had none.
int64_t SavedIslands(const CheckpointReader& reader) { return reader.Int(kIslands).value_or(0); }

// Returns what stands in the checkpoint before the names of this rank's states.
std::string SavedIsland(const CheckpointReader& reader, Trainer& trainer) {
  const OuterOptimizer* const outer = trainer.outer_optimizer();
  return outer == nullptr || SavedIslands(reader) == 0 ? "" : OfIsland(outer->island());
}

FlatRange Within(const FlatParameter& flat, const FlatRange& range) {
  return {range.begin - flat.range.begin, range.end - flat.range.begin};
}

// Returns whether islands send each other the parameter's outer gradient.
bool IsInFlight(const OuterOptimizer& outer, const Parameter& parameter) {
  return outer.in_flight().fragment == FragmentOf(parameter.name, outer.options().num_fragments);
}

// Appends weights that are the rounded `masters`, and are nowhere until they are saved. Masters are
// elements `replica` of a parameter.
void AppendRounded(Trainer& trainer, const FlatParameter& flat, const FlatRange& replica,
                   const Tensor& masters, std::vector<ShardedTensor>* blocks) {
  const Tensor whole = trainer.host_parameters().Of(masters);
  AppendBlocksOfFile(
      "", *flat.parameter, Within(flat, replica), trainer.buffers().options().model_dtype,
      [whole](int64_t begin, const Tensor& out) {
        ops::Copy(Stream::Inline(), whole.Slice(0, begin, begin + out.numel()), out);
        return absl::OkStatus();
      },
      blocks);
}

// Returns the numbers that the rule keeps for parameter `index` of the buffers.
ShardedTensor NumbersBlock(Trainer& trainer, size_t index) {
  const absl::Span<float> numbers = trainer.optimizer().NumbersOf(index);
  ShardedTensor block;
  block.name = StatePrefix(kNumbers) + trainer.buffers().parameters()[index].parameter->name;
  block.tensor = Tensor(numbers.data(), DType::kFloat32, {static_cast<int64_t>(numbers.size())});
  block.global_shape = block.tensor.shape();
  block.offset = {0};
  return block;
}

// Returns whether the block has the first element of the parameter.
bool IsFirstBlock(const Sharding& sharding) {
  const Shape& offset = sharding.offset;
  return std::all_of(offset.begin(), offset.end(), [](int64_t first) { return first == 0; });
}

// Appends the masters and states of this rank's island of elements `replica` of a parameter, and
// the global copy of every so many parameters: all islands have the same, and each saves a part.
void AppendBlocksOfIsland(Trainer& trainer, size_t index, const FlatRange& replica,
                          std::vector<ShardedTensor>* blocks) {
  const OuterOptimizer& outer = *trainer.outer_optimizer();
  const ParameterBuffers& buffers = trainer.buffers();
  const FlatParameter& flat = buffers.parameters()[index];
  const Bucket& bucket = buffers.bucket_of(flat);
  const auto append = [&](const std::string& prefix, const Tensor& elements) {
    AppendBlocks(prefix, *flat.parameter, Within(flat, replica),
                 trainer.host_parameters().Of(elements), blocks);
  };
  const std::string island = OfIsland(outer.island());
  append(StatePrefix(island + kMaster), buffers.Masters(bucket, replica));
  for (size_t i = 0; i < buffers.num_states(); ++i) {
    const OptimizerState& state = buffers.options().states[i];
    if (state.Has(*flat.parameter))
      append(StatePrefix(island + state.name), buffers.State(i, bucket, replica));
  }
  if (static_cast<int>(index) % outer.islands() != outer.island()) return;
  if (outer.has_momentum()) append(StatePrefix(kOuterMomentum), outer.Momentum(bucket, replica));
  if (IsInFlight(outer, *flat.parameter)) {
    AppendBlocks(StatePrefix(kOuterGradient), *flat.parameter, Within(flat, replica),
                 outer.Sums(bucket, replica), blocks);
  }
  const Tensor global = outer.Global(bucket, replica);
  if (!buffers.has_masters()) return append("", global);
  append(kMasterPrefix, global);
  AppendRounded(trainer, flat, replica, global, blocks);
}

// Appends the masters and states of elements `replica` of a parameter, which are in the file.
void AppendStatesInFile(const ParameterBuffers& buffers, const FlatParameter& flat,
                        const FlatRange& replica, std::vector<ShardedTensor>* blocks) {
  const Bucket* const bucket = &buffers.bucket_of(flat);
  const FlatRange range = {replica.begin - flat.range.begin, replica.end - flat.range.begin};
  const int64_t first = replica.begin;
  if (buffers.has_masters()) {
    AppendBlocksOfFile(
        kMasterPrefix, *flat.parameter, range, DType::kFloat32,
        [&buffers, bucket, first](int64_t begin, const Tensor& out) {
          return buffers.ReadMasters(*bucket, first + begin, out);
        },
        blocks);
  }
  for (size_t i = 0; i < buffers.num_states(); ++i) {
    const OptimizerState& state = buffers.options().states[i];
    AppendBlocksOfFile(
        StatePrefix(state.name), *flat.parameter, range, state.dtype,
        [&buffers, bucket, first, i](int64_t begin, const Tensor& out) {
          return buffers.ReadState(i, *bucket, first + begin, out);
        },
        blocks);
  }
}

// Returns the elements of a frozen parameter that this rank saves.
FlatRange SavedOfFrozen(Trainer& trainer, const FlatParameter& flat) {
  const bool is_copy = flat.parameter->tied && !flat.parameter->owner;
  if (is_copy || !IsMainReplica(*flat.parameter, trainer.groups()))
    return {flat.range.begin, flat.range.begin};
  return Common(flat.range, trainer.buffers().bucket_of(flat).part);
}

// Returns the blocks of weights, masters and optimizer states that this rank saves: those of which
// it is the main replica.
std::vector<ShardedTensor> SavedBlocks(Trainer& trainer) {
  std::vector<ShardedTensor> blocks, others;
  const ParameterBuffers& buffers = trainer.buffers();
  const std::vector<OptimizerState>& states = buffers.options().states;
  for (const FlatParameter& flat : buffers.parameters()) {
    const bool frozen = flat.parameter->frozen;
    const FlatRange replica =
        frozen ? SavedOfFrozen(trainer, flat) : MainReplicaRange(buffers, flat, trainer.groups());
    if (replica.size() == 0) continue;
    if (trainer.outer_optimizer() != nullptr) {
      const size_t index = static_cast<size_t>(&flat - buffers.parameters().data());
      AppendBlocksOfIsland(trainer, index, replica, &others);
      continue;
    }
    const FlatRange range = Within(flat, replica);
    const Bucket& bucket = buffers.bucket_of(flat);
    const auto append = [&](const std::string& prefix, const Tensor& elements) {
      AppendBlocks(prefix, *flat.parameter, range, elements, &blocks);
    };
    if (frozen) {
      append("", buffers.Weights(bucket, replica));
      continue;
    }
    if (trainer.optimizer().local_rates() > 0) {
      AppendRounded(trainer, flat, replica, buffers.Masters(bucket, replica), &others);
    } else {
      append("", buffers.Weights(bucket, replica));
    }
    const auto index = static_cast<size_t>(&flat - buffers.parameters().data());
    if (!trainer.optimizer().NumbersOf(index).empty() && replica.begin == flat.range.begin &&
        IsFirstBlock(flat.parameter->sharding)) {
      others.push_back(NumbersBlock(trainer, index));
    }
    if (buffers.state_file() != nullptr && buffers.HostRange(bucket, replica).size() > 0) {
      AppendStatesInFile(buffers, flat, replica, &others);
      continue;
    }
    if (buffers.has_masters()) append(kMasterPrefix, buffers.Masters(bucket, replica));
    for (size_t i = 0; i < states.size(); ++i) {
      if (states[i].Has(*flat.parameter) && !states[i].restarts)
        append(StatePrefix(states[i].name), buffers.State(i, bucket, replica));
    }
  }
  for (ShardedTensor& block : blocks) block.tensor = trainer.host_parameters().Of(block.tensor);
  std::move(others.begin(), others.end(), std::back_inserter(blocks));
  return blocks;
}

// Returns the router's state tensors, which no optimizer updates.
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

constexpr char kHistoryPrefix[] = "optimizer.state.fp8_amax_history.";

// Returns the history of the operands of FP8 products, which is the same on all ranks of a stage.
std::vector<ShardedTensor> HistoryBlocks(Trainer& trainer) {
  std::vector<ShardedTensor> blocks;
  for (const Float8History::Named& history : trainer.stage().float8_history().Tensors()) {
    ShardedTensor block;
    block.name = kHistoryPrefix + history.name;
    block.tensor = history.tensor;
    block.global_shape = history.tensor.shape();
    block.offset = Shape(std::vector<int64_t>(static_cast<size_t>(history.tensor.rank()), 0));
    block.replica = trainer.groups().tensor.rank() +
                    trainer.groups().tensor.size() * trainer.groups().data_context.rank();
    blocks.push_back(block);
  }
  return blocks;
}

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

// Names what the states of gradient compression depend on: a rank's errors are of use to the same
// rank in the same layout.
std::string CompressionLayout(Trainer& trainer) {
  const TrainerOptions& options = trainer.options();
  const GradientCompressionOptions& compression = options.data_parallel.compression;
  if (!compression.enabled()) return "";
  constexpr const char* kTypes[] = {"none", "int8", "topk", "threshold", "powersgd", "onebit"};
  const ProcessGroups& groups = trainer.groups();
  std::string text = kTypes[static_cast<int>(compression.type)];
  if (compression.type == CompressionType::kPowerSgd) {
    absl::StrAppend(&text, " of rank ", compression.rank, " where it saves a factor of ",
                    compression.min_compression_rate);
  }
  absl::StrAppend(&text, compression.error_feedback ? "" : " without feedback", ", tensor ",
                  groups.tensor.size(), ", context ", groups.context.size(), ", pipeline ",
                  groups.pipeline.size(), " x ", options.placement.chunks, " in order ",
                  static_cast<int>(options.placement.order), " of layers [",
                  absl::StrJoin(options.placement.layers, " "), "], data ", groups.data.size(),
                  " in ", groups.data_context_replicas.size(), " instances, expert ",
                  groups.expert.size(), " x ", groups.expert_tensor.size(), ", sharding ",
                  static_cast<int>(options.sharding), ", buckets of ", options.bucket_size);
  return text;
}

// Returns this rank's states of gradient compression, each one row of elements.
std::vector<ShardedTensor> CompressionBlocks(Trainer& trainer) {
  std::vector<ShardedTensor> blocks;
  const GradientCompressor* const compressor = trainer.data_parallel().compressor();
  if (compressor == nullptr) return blocks;
  for (const GradientCompressor::Named& state : compressor->states()) {
    ShardedTensor block;
    block.name = OwnName(state.name, trainer);
    block.tensor = trainer.host_parameters().Of(state.tensor);
    block.global_shape = state.tensor.shape();
    block.offset = {0};
    blocks.push_back(block);
  }
  return blocks;
}

// Loads this rank's states of gradient compression into host memory, if the run that saved them had
// the same layout.
absl::Status LoadCompression(const CheckpointReader& reader, Trainer* trainer,
                             std::vector<std::string>* warnings) {
  const std::string saved = reader.String(kCompression).value_or("");
  const std::string now = CompressionLayout(*trainer);
  if (saved == now) {
    for (const ShardedTensor& block : CompressionBlocks(*trainer))
      MEGATRON_RETURN_IF_ERROR(reader.Load(block));
    return absl::OkStatus();
  }
  if (saved.empty()) return absl::OkStatus();
  warnings->push_back(absl::StrCat(
      reader.directory(), ": what compressed gradients or momentum lack is lost",
      now.empty() ? ", since this run does not compress them"
                  : absl::StrCat(", since it belongs to other ranks or another form: saved \"",
                                 saved, "\", now \"", now, "\"")));
  return absl::OkStatus();
}

// Returns this rank's own states, each one row of elements, where ranks differ.
std::vector<ShardedTensor> LocalBlocks(Trainer& trainer) {
  std::vector<ShardedTensor> blocks;
  if (trainer.optimizer().local_rates() == 0) return blocks;
  const ParameterBuffers& buffers = trainer.buffers();
  for (size_t i = 0; i < buffers.num_states(); ++i) {
    const OptimizerState& state = buffers.options().states[i];
    if (!state.differs) continue;
    ShardedTensor block;
    block.name = OwnName(state.name, trainer);
    block.tensor = trainer.host_parameters().Of(buffers.state(i));
    block.global_shape = block.tensor.shape();
    block.offset = {0};
    blocks.push_back(block);
  }
  return blocks;
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
    warnings->push_back(absl::StrCat(
        reader.directory(), ": what ranks did since they last synchronized is lost, since it ",
        "belongs to other ranks: saved \"", saved, "\", now \"", now, "\""));
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

// Appends the blocks of masters to load; with islands these are the global copy. The model's
// weights are not loaded: they are the rounded masters.
void AppendMasters(const ParameterState& state, const CheckpointReader& reader,
                   std::vector<ShardedTensor>* blocks) {
  if (state.master.empty()) return;
  // Where a remainder is loaded with the states, weights are loaded as they are.
  const bool has_master =
      state.master.dtype() == DType::kFloat32 &&
      FindTensor(reader.manifest(), kMasterPrefix + state.parameter->name) != nullptr;
  AppendBlocks(has_master ? kMasterPrefix : "", *state.parameter, state.range, state.master,
               blocks);
}

// Loads the weights of frozen parameters, which have no masters, into the host's copy of all
// weights.
absl::Status LoadFrozen(const CheckpointReader& reader, Trainer* trainer) {
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
    AppendMasters(state, reader, &blocks);
    for (ShardedTensor& block : blocks) {
      block.tensor = trainer->host_parameters().Of(block.tensor);
      MEGATRON_RETURN_IF_ERROR(reader.Load(block));
    }
  }
  return absl::OkStatus();
}

// Returns the prefix that the checkpoint has for the state of the parameter. `island` is
// SavedIsland().
std::string SavedPrefix(const CheckpointReader& reader, const std::string& island,
                        const OptimizerState& state, const std::string& parameter) {
  const auto has = [&](const std::string& name) {
    return FindTensor(reader.manifest(), StatePrefix(island + name) + parameter) != nullptr;
  };
  const bool renamed = !has(state.name) && !state.former_name.empty() && has(state.former_name);
  return StatePrefix(island + (renamed ? state.former_name : state.name));
}

// Appends the blocks of optimizer states to load, and those of an island's masters.
void AppendStates(const ParameterState& state, const std::vector<OptimizerState>& kinds,
                  const CheckpointReader& reader, const std::string& island,
                  std::vector<ShardedTensor>* blocks) {
  for (size_t i = 0; i < state.states.size(); ++i) {
    if (!kinds[i].Has(*state.parameter) || kinds[i].restarts) continue;
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

// Returns the names of the whole model's weights. This rank may have only some of them.
std::set<std::string> WeightNames(const ModelOptions& model) {
  const auto whole = MakeStage(model, {{DeviceType::kMeta}});
  std::set<std::string> names;
  for (const Parameter* parameter : whole->parameters()) names.insert(parameter->name);
  for (const RouterState::Named& state : whole->router_state().Tensors()) names.insert(state.name);
  return names;
}

// Returns an error unless the checkpoint has the weights of this model and no others.
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

// Returns an error where the checkpoint has remainders of main weights and this run keeps them
// whole, or the other way round and this run loads them.
absl::Status CheckRemainders(const CheckpointReader& reader, Restore what, Trainer& trainer) {
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
    if (!has && keeps && what == Restore::kEverything) {
      return absl::FailedPreconditionError(absl::StrCat(
          reader.directory(), ": has main weights in fp32, and this run keeps their ",
          "remainders (", kField, "); checkpoint.no_load_optim starts with fresh optimizer state"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSameOptimizer(const CheckpointReader& reader, Trainer& trainer) {
  const std::string ours = trainer.optimizer().rule().name();
  MEGATRON_ASSIGN_OR_RETURN(const std::string saved, reader.String("optimizer"));
  constexpr absl::string_view kFresh =
      "; checkpoint.no_load_optim starts with fresh optimizer state";
  if (saved != ours) {
    return absl::FailedPreconditionError(
        absl::StrCat(reader.directory(), ": was saved by optimizer.optimizer = ", saved,
                     " and this run has ", ours, kFresh));
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
                     ", and from the global weights"));
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
      return absl::FailedPreconditionError(
          absl::StrCat(reader.directory(), ": has ", name, " in ", StateTypeName(entry->dtype),
                       ", and this run keeps it in ", StateTypeName(state.dtype),
                       " (optimizer.exp_avg_dtype, optimizer.exp_avg_sq_dtype)", kFresh));
    }
  }
  return absl::OkStatus();
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

// Loads the blocks that append(state, blocks) makes of the masters and states, in memory and in the
// file.
template <typename Append>
absl::Status LoadStates(const CheckpointReader& reader, Trainer* trainer, const Append& append) {
  std::vector<ShardedTensor> blocks;
  for (const ParameterState& state : trainer->buffers().States()) append(state, &blocks);
  for (ShardedTensor& block : blocks) {
    block.tensor = trainer->host_parameters().Of(block.tensor);
    MEGATRON_RETURN_IF_ERROR(reader.Load(block));
  }
  trainer->host_parameters().Send(trainer->stream());
  return trainer->buffers().ChangeStatesInFile([&](const ParameterState& state) -> absl::Status {
    std::vector<ShardedTensor> parts;
    append(state, &parts);
    for (const ShardedTensor& part : parts) MEGATRON_RETURN_IF_ERROR(reader.Load(part));
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
  const std::string compression = CompressionLayout(trainer);
  if (!compression.empty()) state.strings[kCompression] = compression;
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

absl::Status RestoreCheckpoint(const CheckpointReader& reader, Restore what,
                               const RunDescription& run, Trainer* trainer,
                               std::vector<std::string>* warnings) {
  // Optimizers first: the run's identity differs with them, in fields that say less.
  if (what == Restore::kEverything) {
    MEGATRON_RETURN_IF_ERROR(CheckSameOptimizer(reader, *trainer));
  }
  MEGATRON_RETURN_IF_ERROR(CheckRemainders(reader, what, *trainer));
  if (what != Restore::kWeights) {
    MEGATRON_RETURN_IF_ERROR(CheckSameRun(reader, run));
  }
  MEGATRON_RETURN_IF_ERROR(CheckSameModel(reader, *trainer));
  for (const ShardedTensor& block : RouterBlocks(*trainer)) {
    MEGATRON_RETURN_IF_ERROR(reader.Load(block));
  }
  trainer->stage().router_state().SendTensors(trainer->stream());
  MEGATRON_RETURN_IF_ERROR(LoadFrozen(reader, trainer));
  MEGATRON_RETURN_IF_ERROR(LoadStates(
      reader, trainer, [&](const ParameterState& state, std::vector<ShardedTensor>* blocks) {
        AppendMasters(state, reader, blocks);
      }));
  trainer->buffers().CopyMastersToWeights(trainer->stream());
  MEGATRON_RETURN_IF_ERROR(trainer->buffers().status());
  MEGATRON_RETURN_IF_ERROR(RestoreHistory(reader, what, trainer, warnings));
  MEGATRON_RETURN_IF_ERROR(trainer->ShareWeights());
  if (trainer->outer_optimizer() != nullptr) trainer->outer_optimizer()->Start(trainer->stream());
  if (what == Restore::kWeights) return absl::OkStatus();
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
      reader, trainer, [&](const ParameterState& state, std::vector<ShardedTensor>* blocks) {
        AppendStates(state, kinds, reader, island, blocks);
      }));
  MEGATRON_RETURN_IF_ERROR(RestoreIsland(reader, trainer));
  MEGATRON_RETURN_IF_ERROR(LoadNumbers(reader, trainer));
  MEGATRON_RETURN_IF_ERROR(RestoreLocalStates(reader, trainer, warnings));
  MEGATRON_ASSIGN_OR_RETURN(const int64_t applied, reader.Int("optimizer.applied_steps"));
  trainer->optimizer().set_applied_steps(applied);
  return absl::OkStatus();
}

}  // namespace megatron
