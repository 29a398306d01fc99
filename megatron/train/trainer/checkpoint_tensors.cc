#include "megatron/train/trainer/checkpoint_tensors.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "megatron/checkpoint/manifest.h"
#include "megatron/checkpoint/rectangle.h"
#include "megatron/models/model_stage.h"
#include "megatron/ops/elementwise.h"
#include "megatron/optim/compression/gradient_compressor.h"
#include "megatron/optim/main_replica.h"
#include "megatron/train/trainer/named_changes.h"

namespace megatron {
namespace {

constexpr char kHistoryPrefix[] = "optimizer.state.fp8_amax_history.";

// Reads elements of a file: ShardedTensor::elements.
using ReadElements = std::function<absl::Status(int64_t begin, const Tensor& out)>;

// Appends the same blocks as AppendBlocks(), of elements that `read` reads.
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

// Returns the name of a tensor that is this rank's own.
std::string OwnName(absl::string_view state, Trainer& trainer) {
  const ProcessGroups& groups = trainer.groups();
  return absl::StrCat("optimizer.state.", state, ".tp", groups.tensor.rank(), "_pp",
                      groups.pipeline.rank(), "_dp", groups.data_context.rank());
}

// Returns what stands before the names of an island's states.
std::string OfIsland(int island) { return absl::StrCat("island", island, "."); }

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

// Appends elements `replica` of a parameter's weights, which are in the file.
void AppendWeightsInFile(const ParameterBuffers& buffers, const FlatParameter& flat,
                         const FlatRange& replica, std::vector<ShardedTensor>* blocks) {
  const Bucket* const bucket = &buffers.bucket_of(flat);
  const int64_t first = replica.begin;
  AppendBlocksOfFile(
      "", *flat.parameter, Within(flat, replica), buffers.options().model_dtype,
      [&buffers, bucket, first](int64_t begin, const Tensor& out) {
        return buffers.ReadWeights(*bucket, first + begin, out);
      },
      blocks);
}

// Returns the elements of a frozen parameter that this rank saves.
FlatRange SavedOfFrozen(Trainer& trainer, const FlatParameter& flat) {
  const bool is_copy = flat.parameter->tied && !flat.parameter->owner;
  if (is_copy || !IsMainReplica(*flat.parameter, trainer.groups()))
    return {flat.range.begin, flat.range.begin};
  return Common(flat.range, trainer.buffers().bucket_of(flat).part);
}

}  // namespace

std::string StatePrefix(absl::string_view state) {
  return absl::StrCat("optimizer.state.", state, ".");
}

bool HasPendingUpdate(const CheckpointReader& reader) { return reader.Float(kPendingScale).ok(); }

int64_t SavedIslands(const CheckpointReader& reader) { return reader.Int(kIslands).value_or(0); }

std::string SavedIsland(const CheckpointReader& reader, Trainer& trainer) {
  const OuterOptimizer* const outer = trainer.outer_optimizer();
  return outer == nullptr || SavedIslands(reader) == 0 ? "" : OfIsland(outer->island());
}

std::string SavedPrefix(const CheckpointReader& reader, const std::string& island,
                        const OptimizerState& state, const std::string& parameter) {
  const auto has = [&](const std::string& name) {
    return FindTensor(reader.manifest(), StatePrefix(island + name) + parameter) != nullptr;
  };
  const bool renamed = !has(state.name) && !state.former_name.empty() && has(state.former_name);
  return StatePrefix(island + (renamed ? state.former_name : state.name));
}

FlatRange Within(const FlatParameter& flat, const FlatRange& range) {
  return {range.begin - flat.range.begin, range.end - flat.range.begin};
}

bool IsInFlight(const OuterOptimizer& outer, const Parameter& parameter) {
  return outer.in_flight().fragment == FragmentOf(parameter.name, outer.options().num_fragments);
}

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

ShardedTensor NumbersBlock(Trainer& trainer, size_t index) {
  const absl::Span<float> numbers = trainer.optimizer().NumbersOf(index);
  ShardedTensor block;
  block.name = StatePrefix(kNumbers) + trainer.buffers().parameters()[index].parameter->name;
  block.tensor = Tensor(numbers.data(), DType::kFloat32, {static_cast<int64_t>(numbers.size())});
  block.global_shape = block.tensor.shape();
  block.offset = {0};
  return block;
}

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
    } else if (buffers.weight_file() != nullptr) {
      AppendWeightsInFile(buffers, flat, replica, &others);
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
      const bool is_of_nothing =
          states[i].is_delayed_gradient && !trainer.optimizer().pending().exists;
      if (states[i].Has(*flat.parameter) && !states[i].restarts && !is_of_nothing)
        append(StatePrefix(states[i].name), buffers.State(i, bucket, replica));
    }
  }
  for (ShardedTensor& block : blocks) block.tensor = trainer.host_parameters().Of(block.tensor);
  std::move(others.begin(), others.end(), std::back_inserter(blocks));
  return blocks;
}

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

namespace {

std::string FormOf(const GradientCompressionOptions& options) {
  switch (options.type) {
    case CompressionType::kNone:
      return "none";
    case CompressionType::kInt8:
      return "int8";
    case CompressionType::kTopK:
      return "topk";
    case CompressionType::kThreshold:
      return "threshold";
    case CompressionType::kPowerSgd:
      return absl::StrCat("powersgd of rank ", options.rank, " where it saves a factor of ",
                          options.min_compression_rate);
    case CompressionType::kOneBit:
      return "signs";
  }
  return "";
}

const char* NameOf(DataSharding sharding) {
  switch (sharding) {
    case DataSharding::kNone:
      return "none";
    case DataSharding::kStates:
      return "optim";
    case DataSharding::kGradients:
      return "optim_grads";
    case DataSharding::kWeights:
      return "optim_grads_params";
  }
  return "";
}

}  // namespace

std::string CompressionLayout(Trainer& trainer) {
  const TrainerOptions& options = trainer.options();
  const GradientCompressionOptions& compression = options.data_parallel.compression;
  if (!compression.enabled()) return "";
  const ProcessGroups& groups = trainer.groups();
  const StagePlacement& placement = options.placement;
  const auto text = [](auto number) { return absl::StrCat(number); };
  return JoinNamed(
      {{"the form", FormOf(compression)},
       {"error_feedback", compression.error_feedback ? "true" : "false"},
       {"tensor_model_parallel_size", text(groups.tensor.size())},
       {"context_parallel_size", text(groups.context.size())},
       {"pipeline_model_parallel_size", text(groups.pipeline.size())},
       {"the number of a stage's parts", text(placement.chunks)},
       {"the order of parts",
        placement.order == PartOrder::kRoundRobin ? "around" : "back and forth"},
       {"the layers of parts",
        absl::StrCat(placement.layers.empty() ? "even" : absl::StrJoin(placement.layers, " "),
                     placement.mtp_before_last ? ", multi-token prediction before the last" : "")},
       {"data_parallel_size", text(groups.data.size())},
       {"num_distributed_optimizer_instances", text(groups.data_context_replicas.size())},
       {"expert_model_parallel_size", text(groups.expert.size())},
       {"expert_tensor_parallel_size", text(groups.expert_tensor.size())},
       {"data_parallel_sharding_strategy", NameOf(options.sharding)},
       {"ddp_bucket_size", text(options.bucket_size)}});
}

std::string CompressionShare(Trainer& trainer) {
  const GradientCompressionOptions& options = trainer.options().data_parallel.compression;
  if (options.type == CompressionType::kTopK)
    return JoinNamed({{"density", absl::StrCat(options.density)}});
  if (options.type != CompressionType::kThreshold) return "";
  return JoinNamed({{"threshold", absl::StrCat(options.threshold)},
                    {"max_density", absl::StrCat(options.max_density)}});
}

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

}  // namespace megatron
