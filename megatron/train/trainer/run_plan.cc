#include "megatron/train/trainer/run_plan.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "glog/logging.h"
#include "megatron/base/quantity.h"
#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/checkpoint_state.h"
#include "megatron/checkpoint/local/save_local_checkpoint.h"
#include "megatron/checkpoint/save_checkpoint.h"
#include "megatron/checkpoint/shard_header.h"
#include "megatron/comm/hierarchical/hierarchical_communicator.h"
#include "megatron/comm/island_groups.h"
#include "megatron/comm/process_groups.h"
#include "megatron/models/make_stage.h"
#include "megatron/tensor/dtype.h"
#include "megatron/tensor/name_patterns.h"
#include "megatron/train/trainer/checkpoint_tensors.h"
#include "megatron/train/trainer/flops.h"
#include "megatron/train/trainer/lanes.h"
#include "megatron/train/trainer/training_checkpoint.h"

namespace megatron {
namespace {

// Counts, besides the groups, those that trainers make from them: the ranks that share a query
// group, those of an island and between islands, and separate groups for overlapping communication.
int CountCommunicators(const TrainerOptions& options, const ProcessGroups& groups) {
  ProcessGroups mine = groups;
  int count = CountGroups(groups) +
              static_cast<int>(GroupsWithLanes(options.model.transformer, &mine).size());
  if (groups.tensor_row.size() == 1 &&
      groups.tensor.size() > options.model.transformer.num_query_groups)
    ++count;
  if (options.outer.enabled()) count += CountIslandGroups(groups);
  if (options.outer.sync_delay > 0 && groups.data_context_replicas.size() > 1)
    count += options.model.transformer.moe.num_experts > 0 ? 2 : 1;
  if (options.data_parallel.overlap_grad_reduce || options.data_parallel.overlap_param_gather) {
    for (const ProcessGroup* group :
         {&groups.data_context_shards, &groups.data_context_replicas, &groups.expert_data_shards,
          &groups.expert_data_replicas, &groups.data_context_host, &groups.expert_data_host})
      count += group->size() > 1 ? 1 : 0;
    if (options.data_parallel.quantized_gradients) {
      count += groups.data_context_across_hosts.size() > 1 ? 1 : 0;
      count += groups.expert_data_across_hosts.size() > 1 ? 1 : 0;
    }
  }
  return count;
}

// Counts the threads that the trainer gives calls which run beside computing.
int CountLanes(const TrainerOptions& options, const ProcessGroups& groups) {
  ProcessGroups mine = groups;
  int count = static_cast<int>(GroupsWithLanes(options.model.transformer, &mine).size());
  // One is for gradients that leave for the host.
  const DataParallelOptions& data = options.data_parallel;
  if (data.overlap_grad_reduce || data.overlap_param_gather)
    count += options.gradients_on_host ? 2 : 1;
  if (options.outer.sync_delay > 0) ++count;
  return count;
}

// Adds what the groups with hierarchical collectives take: the communicators of both levels, their
// lanes, and scratch memory where gradients are reduced.
void AddHierarchical(const RunOptions& options, const RankGrid& dense, const RankGrid& expert,
                     int rank, RankPlan* plan) {
  using Groups = ProcessGroups;
  const DataParallelOptions& data = options.trainer.data_parallel;
  const bool overlaps = data.overlap_grad_reduce || data.overlap_param_gather;
  for (ProcessGroup ProcessGroups::*group : HierarchicalGroups(dense, expert, rank)) {
    // Instances reduce over their parts of these groups.
    const bool is_whole = group == &Groups::data_context || group == &Groups::expert_data;
    const bool reduces = !is_whole || dense.optimizer_instances() == 1;
    const bool has_weights =
        (group != &Groups::expert_data && group != &Groups::expert_data_shards &&
         group != &Groups::expert_data_replicas) ||
        options.trainer.model.transformer.moe.num_experts > 0;
    plan->communicators += reduces && overlaps ? 4 : 2;
    plan->lanes += reduces && overlaps ? 2 : 1;
    if (reduces && has_weights)
      plan->memory["hierarchical collectives"] += HierarchicalScratchBytes(dense.ranks_per_host());
  }
}

// The ledger's names of host memory begin with it.
constexpr absl::string_view kHostPrefix = "host/";

// Returns the most bytes that an element of the parameter has in a checkpoint.
int64_t SavedBytesOfElement(Trainer& trainer, const Parameter& parameter) {
  const ParameterBuffers& buffers = trainer.buffers();
  const int64_t master = SizeOf(DType::kFloat32);
  int64_t bytes = SizeOf(buffers.options().model_dtype);
  if (parameter.frozen) return bytes;
  if (buffers.has_masters()) bytes += master;
  int64_t states = 0;
  for (const OptimizerState& state : buffers.options().states) {
    if (state.Has(parameter) && !state.restarts) states += SizeOf(state.dtype);
  }
  const OuterOptimizer* const outer = trainer.outer_optimizer();
  if (outer == nullptr) return bytes + states;
  // Weights and masters are the global copy. Each island has masters and states of its own besides.
  if (outer->has_momentum()) bytes += master;
  return bytes + outer->islands() * (master + states);
}

// Returns the most bytes that a checkpoint has of what islands send each other, of a stage with
// these parameters.
int64_t SavedInFlight(const OuterOptimizer* outer, const std::vector<const Parameter*>& saved) {
  if (outer == nullptr || outer->options().sync_delay == 0) return 0;
  std::vector<int64_t> bytes(outer->options().num_fragments);
  for (const Parameter* parameter : saved) {
    bytes[FragmentOf(parameter->name, outer->options().num_fragments)] +=
        parameter->sharding.global_shape.numel() * SizeOf(DType::kFloat32);
  }
  return *std::max_element(bytes.begin(), bytes.end());
}

// Returns the most bytes that a checkpoint has of a stage of `ranks` ranks besides the values of
// its parameters, masters and states.
int64_t SavedBesideParameters(Trainer& trainer, int64_t saved_bytes, int64_t ranks) {
  const ParameterBuffers& buffers = trainer.buffers();
  int64_t tensors = 0, pieces = 0, bytes = 0;
  const auto add = [&](const std::vector<ShardedTensor>& blocks, int64_t writers) {
    tensors += writers * static_cast<int64_t>(blocks.size());
    pieces += writers * static_cast<int64_t>(blocks.size());
    for (const ShardedTensor& block : blocks) bytes += writers * block.tensor.bytes();
  };
  add(RouterBlocks(trainer), 1);
  add(HistoryBlocks(trainer), 1);
  add(CompressionBlocks(trainer), ranks);
  add(LocalBlocks(trainer), ranks);
  // Weights, masters, states, and the numbers that a rule may keep.
  int64_t kinds = 3 + static_cast<int64_t>(buffers.num_states());
  // Masters and states of each island, the momentum, and what is in flight.
  if (const OuterOptimizer* const outer = trainer.outer_optimizer())
    kinds += 2 + outer->islands() * (1 + static_cast<int64_t>(buffers.num_states()));
  for (const FlatParameter& flat : buffers.parameters()) {
    const Sharding& sharding = flat.parameter->sharding;
    const int64_t blocks =
        sharding.global_shape.numel() / std::max<int64_t>(1, sharding.local_shape.numel());
    tensors += kinds * blocks;
    pieces += kinds * blocks;
  }
  if (buffers.options().sharding != DataSharding::kNone) {
    // Where a shard ends within a matrix, there are up to three pieces on each side.
    constexpr int64_t kPiecesOfABorder = 6;
    const int64_t borders = ranks * static_cast<int64_t>(buffers.buckets().size());
    tensors += kinds * borders;
    pieces += kinds * kPiecesOfABorder * borders;
  }
  return bytes + ranks * kShardHeaderBytes +
         ManifestRoom(tensors, pieces, saved_bytes + bytes, SaveOptions().chunk_bytes);
}

// Gives the trainer what a checkpoint may have besides: weights of the rank's own, and an update to
// come.
void MakeCheckpointLargest(Trainer& trainer) {
  const auto differs = [](const OptimizerState& state) { return state.differs; };
  if (absl::c_any_of(trainer.buffers().options().states, differs))
    trainer.optimizer().set_local_rates(1);
  if (!trainer.optimizer().delays()) return;
  PendingUpdate pending;
  pending.exists = true;
  trainer.optimizer().set_pending(pending);
}

// Plans the rank's shard of a checkpoint, and what of a checkpoint is of its stage, which has
// `ranks` ranks. The trainer is of no other use then.
void AddCheckpoint(Trainer& trainer, int64_t ranks, RankPlan* plan) {
  MakeCheckpointLargest(trainer);
  plan->shard_bytes = kShardHeaderBytes;
  for (const ShardedTensor& block : MakeCheckpointState(trainer, RunDescription()).tensors) {
    if (block.replica == 0) plan->shard_bytes += block.tensor.bytes();
  }
  std::set<std::string> names;
  std::vector<const Parameter*> saved;
  for (const FlatParameter& flat : trainer.buffers().parameters()) {
    const Parameter& parameter = *flat.parameter;
    if (parameter.tied && !parameter.owner) continue;  // another stage saves it
    // The rank has two blocks of some tensors.
    if (names.insert(parameter.name).second) saved.push_back(&parameter);
  }
  for (const Parameter* parameter : saved) {
    plan->saved_bytes +=
        parameter->sharding.global_shape.numel() * SavedBytesOfElement(trainer, *parameter);
  }
  plan->saved_beside_bytes = SavedInFlight(trainer.outer_optimizer(), saved) +
                             SavedBesideParameters(trainer, plan->saved_bytes, ranks);
}

// Plans a rank, which is of this pipeline stage.
absl::StatusOr<RankPlan> PlanRank(const RunOptions& options, const RankGrid& dense,
                                  const RankGrid& expert, int rank, int stage) {
  const ProcessGroups groups = GroupsForPlanning(dense, expert, rank);
  MemoryLedger ledger;
  MEGATRON_ASSIGN_OR_RETURN(const LossScaler scaler, MakeLossScaler(options.precision));
  MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<Trainer> trainer,
                            Trainer::Create(options.TrainerOf(stage, /*data_rank=*/0), scaler,
                                            groups, {}, Stream::Meta(), &ledger));
  RankPlan plan;
  plan.communicators = CountCommunicators(options.trainer, groups);
  plan.lanes = CountLanes(options.trainer, groups);
  plan.sizes = trainer->Measure();
  plan.activations = trainer->MeasuredActivations();
  for (const auto& [name, held] : ledger.AtPeak()) {
    if (absl::StartsWith(name, kHostPrefix)) {
      plan.host_memory[std::string(absl::StripPrefix(name, kHostPrefix))] = held;
    } else {
      plan.memory[name] = held;
    }
  }
  plan.memory["activations/saved"] = plan.sizes.saved();
  plan.memory["activations/deferred"] = plan.sizes.put_off();
  plan.memory["activations/recomputed"] = plan.sizes.recompute;
  plan.memory["activations/temporary"] = plan.sizes.scratch;
  plan.memory["activations/edges"] = plan.sizes.edges;
  plan.memory["activations/windows"] = plan.sizes.offload.window_bytes();
  plan.memory["batches/graphs"] = plan.sizes.graph_inputs;
  plan.memory["generation"] = plan.sizes.generation;
  plan.memory["weights/gathered"] = plan.sizes.whole_weights;
  plan.memory["gradients/whole"] = plan.sizes.whole_gradients;
  if (plan.sizes.host() > 0) plan.host_memory["activations"] = plan.sizes.host();
  for (const FlatParameter& flat : trainer->buffers().parameters()) {
    plan.parameters += flat.range.size();
    if (flat.parameter->frozen) plan.frozen += flat.range.size();
  }
  if (const StateFile* const file = trainer->buffers().state_file())
    plan.file_bytes = file->bytes();
  if (const StateFile* const file = trainer->buffers().weight_file())
    plan.weight_file_bytes = file->bytes();
  const bool saves_locally = !options.checkpoint.local_save.empty();
  if (saves_locally || !options.checkpoint.save.empty())
    AddCheckpoint(*trainer, options.num_ranks() / options.parallel.pipeline, &plan);
  if (saves_locally) plan.local_bytes = plan.shard_bytes;
  AddHierarchical(options, dense, expert, rank, &plan);
  return plan;
}

void AppendTable(const std::map<std::string, int64_t>& bytes, int64_t total, std::string* text) {
  std::vector<std::pair<std::string, int64_t>> rows(bytes.begin(), bytes.end());
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  for (const auto& [name, held] : rows) {
    if (held == 0) continue;
    absl::StrAppendFormat(text, "    %-28s %12s %5.1f %%\n", name, FormatBytes(held),
                          100.0 * static_cast<double>(held) / static_cast<double>(total));
  }
}

// The bytes into which CPU kernels pack operands, on each thread: between 1 and 5 MiB, by the
// shapes.
constexpr int64_t kWorkspaceBytesPerThread = int64_t{2} << 20;

// Returns this process's resident bytes, 0 if the system does not tell.
int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total_pages = 0, resident_pages = 0;
  statm >> total_pages >> resident_pages;
  return resident_pages * sysconf(_SC_PAGESIZE);
}

}  // namespace

int64_t RankPlan::total_bytes() const {
  int64_t total = 0;
  for (const auto& [name, held] : memory) total += held;
  return total;
}

int64_t RankPlan::host_bytes() const {
  int64_t total = 0;
  for (const auto& [name, held] : host_memory) total += held;
  return total;
}

std::map<std::string, int64_t> RankPlan::all_memory() const {
  std::map<std::string, int64_t> all = memory;
  for (const auto& [name, held] : host_memory) all[absl::StrCat(kHostPrefix, name)] = held;
  return all;
}

int64_t RunPlan::host_bytes(int ranks) const {
  int64_t bytes = 0;
  for (const RankPlan& stage : stages) bytes += ranks_per_stage * stage.host_bytes();
  return bytes / (static_cast<int64_t>(stages.size()) * ranks_per_stage) * ranks;
}

int64_t RunPlan::OfRanks(int64_t RankPlan::*bytes_of, int ranks) const {
  int64_t bytes = 0;
  for (const RankPlan& stage : stages) bytes += ranks_per_stage * stage.*bytes_of;
  return bytes / (static_cast<int64_t>(stages.size()) * ranks_per_stage) * ranks;
}

int64_t RunPlan::checkpoint_bytes() const {
  int64_t bytes = 0;
  for (const RankPlan& stage : stages) bytes += stage.saved_bytes;
  return bytes;
}

int64_t RunPlan::checkpoint_room() const {
  int64_t bytes = checkpoint_bytes();
  for (const RankPlan& stage : stages) bytes += stage.saved_beside_bytes;
  return bytes;
}

int64_t RunPlan::local_bytes() const {
  int64_t bytes = 0;
  for (const RankPlan& stage : stages) bytes += ranks_per_stage * stage.local_bytes;
  return bytes;
}

int64_t RunPlan::rank_bytes() const {
  int64_t bytes = 0;
  for (const RankPlan& stage : stages) bytes += ranks_per_stage * stage.total_bytes();
  return bytes;
}

int64_t RunPlan::machine_bytes(int ranks, int processes) const {
  const int64_t all_ranks = static_cast<int64_t>(stages.size()) * ranks_per_stage;
  return rank_bytes() / all_ranks * ranks + host_bytes(ranks) +
         processes * (data_bytes + program_bytes);
}

namespace {

// Returns the number of parameters of the whole model that `freeze` chooses, each tied one once. An
// error names an expression that chooses none.
absl::StatusOr<int64_t> CountFrozen(const TrainerOptions& options) {
  if (options.freeze.empty()) return 0;
  MEGATRON_ASSIGN_OR_RETURN(const NamePatterns frozen, NamePatterns::Create(options.freeze));
  const auto whole = MakeStage(options.model, {{DeviceType::kMeta}});
  std::vector<std::string> names;
  int64_t count = 0, trained = 0;
  for (const Parameter* parameter : whole->parameters()) {
    names.push_back(parameter->name);
    (frozen.Match(parameter->name) ? count : trained) += parameter->sharding.global_shape.numel();
  }
  if (const std::vector<std::string> unused = frozen.Unused(names); !unused.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "optimizer.freeze: \"", unused[0], "\" is found in the name of no parameter; names are ",
        names.front(), " and so on up to ", names.back()));
  }
  if (trained == 0)
    return absl::InvalidArgumentError("optimizer.freeze: leaves no parameter to train");
  return count;
}

}  // namespace

absl::StatusOr<RunPlan> PlanRun(const RunOptions& options) {
  const int world = options.num_ranks();
  MEGATRON_ASSIGN_OR_RETURN(const RankGrid dense, RankGrid::Create(options.parallel, world));
  MEGATRON_ASSIGN_OR_RETURN(const RankGrid expert, RankGrid::CreateExpert(options.parallel, world));
  RunPlan plan;
  MEGATRON_ASSIGN_OR_RETURN(plan.frozen_parameters, CountFrozen(options.trainer));
  MEGATRON_ASSIGN_OR_RETURN(plan.trained_layers,
                            FindTrainedLayers(options.trainer.model, options.trainer.freeze));
  plan.ranks_per_stage = world / options.parallel.pipeline;
  plan.data_bytes = EstimateDataBytes(options.data);
  plan.program_bytes =
      ResidentBytes() + std::max(world, options.num_threads) * kWorkspaceBytesPerThread;
  const std::vector<int> stages = dense.PeersOf(0, {Axis::kPipeline});
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    MEGATRON_ASSIGN_OR_RETURN(RankPlan rank_plan, PlanRank(options, dense, expert, stages[stage],
                                                           static_cast<int>(stage)));
    rank_plan.ranks = dense.PeersOf(stages[stage], {Axis::kTensor, Axis::kContext, Axis::kData});
    absl::c_sort(rank_plan.ranks);
    plan.stages.push_back(std::move(rank_plan));
  }
  return plan;
}

absl::StatusOr<RankPlan> PlanStageOfRun(const RunOptions& options, int stage) {
  const int world = options.num_ranks();
  MEGATRON_ASSIGN_OR_RETURN(const RankGrid dense, RankGrid::Create(options.parallel, world));
  MEGATRON_ASSIGN_OR_RETURN(const RankGrid expert, RankGrid::CreateExpert(options.parallel, world));
  const std::vector<int> stages = dense.PeersOf(0, {Axis::kPipeline});
  CHECK_LT(static_cast<size_t>(stage), stages.size());
  return PlanRank(options, dense, expert, stages[stage], stage);
}

std::string FormatCount(int64_t count) {
  std::string digits = absl::StrCat(count);
  for (int64_t i = static_cast<int64_t>(digits.size()) - 3; i > 0; i -= 3) digits.insert(i, ",");
  return digits;
}

std::string DescribeRanks(const std::vector<int>& ascending) {
  constexpr size_t kMostRuns = 4;
  std::vector<std::string> runs;
  for (size_t begin = 0, end = 0; begin < ascending.size(); begin = end) {
    for (end = begin + 1; end < ascending.size() && ascending[end] == ascending[end - 1] + 1;)
      ++end;
    const int first = ascending[begin], last = ascending[end - 1];
    runs.push_back(first == last ? absl::StrCat(first) : absl::StrCat(first, "-", last));
  }
  if (runs.size() > kMostRuns) {
    runs[2] = absl::StrCat("... ", runs.back());
    runs.resize(3);
  }
  return absl::StrCat(ascending.size() == 1 ? "rank " : "ranks ", absl::StrJoin(runs, ", "));
}

namespace {

void AppendMemory(const RunOptions& options, const RunPlan& plan, std::string* text) {
  size_t worst = 0;
  for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
    const RankPlan& part = plan.stages[stage];
    if (part.total_bytes() > plan.stages[worst].total_bytes()) worst = stage;
    const std::string ranks =
        absl::StrCat(part.ranks.size() == 1 ? "" : "each of ", DescribeRanks(part.ranks));
    absl::StrAppendFormat(text, "memory of %s (pipeline stage %d): %s, %s parameters%s\n", ranks,
                          stage, FormatBytes(part.total_bytes()), FormatCount(part.parameters),
                          part.frozen == 0
                              ? std::string()
                              : absl::StrCat(", of which ", FormatCount(part.frozen), " frozen"));
    AppendTable(part.memory, part.total_bytes(), text);
    absl::StrAppendFormat(text, "  of which one micro-batch's activations, at their fullest:\n");
    AppendTable(part.activations, part.total_bytes(), text);
    if (part.host_bytes() > 0) {
      absl::StrAppendFormat(text, "  and in host memory: %s\n", FormatBytes(part.host_bytes()));
      AppendTable(part.host_memory, part.host_bytes(), text);
    }
    if (part.file_bytes > 0) {
      absl::StrAppendFormat(
          text,
          "  and in a file in %s: %s, which each step reads and writes: %s written "
          "a day with a step a second\n",
          options.trainer.state_directory, FormatBytes(part.file_bytes),
          FormatBytes(part.file_bytes * kSecondsOfADay));
    }
    if (part.weight_file_bytes > 0) {
      absl::StrAppendFormat(
          text,
          "  and in a file in %s: %s of weights, which each pass reads and each step writes: %s "
          "written a day with a step a second\n",
          options.trainer.weight_directory, FormatBytes(part.weight_file_bytes),
          FormatBytes(part.weight_file_bytes * kSecondsOfADay));
    }
    if (part.local_bytes > 0) {
      const int copies = options.checkpoint.peer_copies;
      absl::StrAppendFormat(
          text, "  and in %s: %s for each rank of the machine, %d checkpoints%s of %s\n",
          options.checkpoint.local_save,
          FormatBytes(kLocalCheckpoints * (1 + copies) * part.local_bytes), kLocalCheckpoints,
          copies == 0
              ? std::string()
              : absl::StrCat(", each with those of ", FormatQuantity(copies, "other rank"), ","),
          FormatBytes(part.local_bytes));
    }
  }
  if (plan.stages.size() > 1) {
    absl::StrAppendFormat(text, "the most memory: ranks of stage %d, %s each\n", worst,
                          FormatBytes(plan.stages[worst].total_bytes()));
  }
  const int ranks = options.num_ranks(), processes = options.ranks.processes ? ranks : 1;
  const std::string each = processes > 1 ? absl::StrCat(processes, " times ") : "";
  const int64_t host = plan.host_bytes(ranks);
  const std::string offloaded =
      host > 0 ? absl::StrCat(" + offloaded ", FormatBytes(host)) : std::string();
  absl::StrAppendFormat(text, "memory of the %s: %s = %s %s%s + %sdata %s + %sprogram %s\n",
                        processes > 1 ? "processes" : "process",
                        FormatBytes(plan.machine_bytes(ranks, processes)),
                        FormatQuantity(ranks, "rank"), FormatBytes(plan.rank_bytes()), offloaded,
                        each, FormatBytes(plan.data_bytes), each, FormatBytes(plan.program_bytes));
  if (plan.stages[0].sizes.graph_inputs > 0)
    absl::StrAppendFormat(text, "not counted: what CUDA takes for graphs themselves\n");
  if (options.device == DeviceType::kCuda && ranks > 1 &&
      options.ranks.backend != DistributedBackend::kHost) {
    absl::StrAppendFormat(
        text,
        "not counted: what NCCL, if ranks have a GPU each, takes there for the %d "
        "communicators of a rank\n",
        plan.stages[0].communicators);
  }
}

}  // namespace

std::string FormatRunPlan(const config::PretrainConfig& config, const RunOptions& options,
                          const RunPlan& plan) {
  const ModelOptions& model = options.trainer.model;
  const int64_t parameters = CountParameters(config.model(), model.padded_vocab_size);
  const int64_t tokens = options.trainer.batch_size.global_batch_size * config.model().seq_length();
  const double causal = FlopsPerToken(config.model(), model.padded_vocab_size,
                                      FlopsConvention::kCausalHalved, plan.trained_layers);
  const double classic = FlopsPerToken(config.model(), model.padded_vocab_size,
                                       FlopsConvention::kClassic, plan.trained_layers);
  std::string text;
  absl::StrAppendFormat(&text, "ranks: %d = %s\n", options.num_ranks(),
                        DescribeSizes(options.parallel));
  if (model.transformer.moe.num_experts > 0) {
    absl::StrAppendFormat(
        &text, "experts: %d on %s, each cut over %d\n", model.transformer.moe.num_experts,
        FormatQuantity(options.parallel.expert, "rank"), options.parallel.expert_tensor);
  }
  absl::StrAppendFormat(&text, "parameters: %s (vocabulary %d, padded to %d)\n",
                        FormatCount(parameters), model.vocab_size, model.padded_vocab_size);
  absl::StrAppendFormat(&text, "steps: %d of %s, %s%s tokens each, %s in all\n",
                        options.loop.train_iters,
                        FormatQuantity(options.trainer.batch_size.global_batch_size, "sample"),
                        options.trainer.curriculum.enabled() ? "at most " : "", FormatCount(tokens),
                        FormatCount(tokens * options.loop.train_iters));
  if (options.trainer.curriculum.enabled()) {
    const LengthSchedule& curriculum = options.trainer.curriculum;
    const int64_t steps = options.loop.train_iters;
    absl::StrAppendFormat(
        &text,
        "curriculum: samples of %d tokens in the first step, of %d in the last; %s tokens in all\n",
        curriculum.At(1), curriculum.At(steps),
        FormatCount(options.trainer.batch_size.global_batch_size * curriculum.SumOver(steps)));
  }
  absl::StrAppendFormat(&text,
                        "model FLOPs: %.4g a token and %.4g a step (causal attention counted once; "
                        "%.4g and %.4g if in full)\n",
                        causal, causal * static_cast<double>(tokens), classic,
                        classic * static_cast<double>(tokens));
  AppendMemory(options, plan, &text);
  return text;
}

}  // namespace megatron
