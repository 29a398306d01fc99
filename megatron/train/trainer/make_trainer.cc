// The construction of a trainer.
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/communicator.h"
#include "megatron/comm/island_groups.h"
#include "megatron/layers/moe/expert_groups.h"
#include "megatron/layers/moe/moe_options.h"
#include "megatron/layers/tensor_grid.h"
#include "megatron/models/first_trained_part.h"
#include "megatron/models/make_stage.h"
#include "megatron/optim/mup.h"
#include "megatron/tensor/name_patterns.h"
#include "megatron/train/diagnostics/diagnostics.h"
#include "megatron/train/trainer/grid_groups.h"
#include "megatron/train/trainer/lanes.h"
#include "megatron/train/trainer/trainer.h"

namespace megatron {
namespace {

// The ranks of a grid share the samples of a data-parallel rank, in one of two layouts.
PackerOptions PackingFor(const TrainerOptions& run, const ProcessGroups& groups, bool inner) {
  const ProcessGroup& context = groups.context;
  PackerOptions options = run.packing;
  if (const TensorGridGroups grid = GridOf(groups); grid.is_grid()) {
    const TensorGrid place = grid.Place();
    const int parts = place.sample_parts();
    SamplerLayout& layout = options.layout;
    CHECK_EQ(layout.micro_batch_size % parts, 0);
    layout.micro_batch_size /= parts;
    layout.data_parallel_size *= parts;
    layout.data_parallel_rank = layout.data_parallel_rank * parts +
                                (inner ? place.inner_sample_part() : place.sample_part());
  }
  options.context_parallel_size = context.size();
  options.context_parallel_rank = context.rank();
  options.context_team_size = run.model.transformer.TeamSize(context.size());
  options.stripes = run.model.transformer.recompute.attention_chunk_tokens > 0;
  options.has_sample_numbers = run.model.transformer.moe.num_experts > 0;
  return options;
}

// Gives `groups` the ranks that share a group of queries, where there are more ranks than groups.
absl::Status AddTensorReplicas(const ModelOptions& model, const Stream& stream,
                               ProcessGroups* groups) {
  if (groups->tensor_row.size() > 1) return absl::OkStatus();  // they are those of a grid
  const int size = groups->tensor.size();
  const int query_groups = static_cast<int>(model.transformer.num_query_groups);
  if (size <= query_groups) return absl::OkStatus();
  CHECK_EQ(size % query_groups, 0);
  const int sharing = size / query_groups;
  if (stream.is_meta()) {
    groups->tensor_replicas =
        ProcessGroup::ForPlanning(sharing, groups->tensor.rank() % sharing, "tp-replicas");
    return absl::OkStatus();
  }
  std::vector<std::vector<int>> partition(query_groups);
  for (int rank = 0; rank < size; ++rank) partition[rank / sharing].push_back(rank);
  MEGATRON_ASSIGN_OR_RETURN(std::shared_ptr<Communicator> communicator,
                            groups->tensor.communicator()->Split(partition, "tp-replicas"));
  groups->tensor_replicas = ProcessGroup(std::move(communicator));
  return absl::OkStatus();
}

// Returns whether the host neither reads how many rows experts get, nor counts the micro-batches
// whose choices a loss balances.
bool ExpertsCanBeCaptured(const MoeOptions& moe) {
  if (moe.num_experts == 0) return true;
  const std::vector<BalanceLoss> balances = moe.balances();
  return moe.pad_to_capacity &&
         std::none_of(balances.begin(), balances.end(),
                      [](const BalanceLoss& loss) { return loss.unit == BalanceUnit::kStep; });
}

// Returns whether the host makes no calls in a stage's passes but those that enqueue work.
bool CanBeCaptured(const TrainerOptions& options, const ProcessGroups& groups) {
  return ExpertsCanBeCaptured(options.model.transformer.moe) &&
         (groups.data_context.size() == 1 || options.sharding < DataSharding::kGradients) &&
         !options.weights_on_host && !options.gradients_on_host &&
         options.main_grads_dtype == DType::kFloat32 &&
         !options.data_parallel.overlap_grad_reduce && !options.data_parallel.overlap_param_gather;
}

// Messages that go through the host's memory can't be part of a graph.
absl::Status CheckMessagesCanBeCaptured(const ProcessGroups& groups) {
  for (const ProcessGroup* group : {&groups.tensor, &groups.context, &groups.expert_model}) {
    if (group->size() == 1 || group->communicator()->TakesTensorsOf(DeviceType::kCuda)) continue;
    return absl::InvalidArgumentError(
        "system.cuda_graph_impl = local: the host sends the messages of tensor-, context- and "
        "expert-parallel ranks, and only NCCL's are captured");
  }
  return absl::OkStatus();
}

// Returns whether no pass of a micro-batch's gradients is put off behind those of the next one.
bool GradientsComeInOrder(ScheduleKind schedule) {
  return schedule != ScheduleKind::kZeroBubbleH1 && schedule != ScheduleKind::kZeroBubbleV;
}

std::unique_ptr<SourceLosses> MakeSourceLosses(const TrainerOptions& options,
                                               const MicroBatchPacker& packer, Device device,
                                               MemoryLedger* ledger) {
  if (options.num_sources == 0 || !options.placement.last()) return nullptr;
  return std::make_unique<SourceLosses>(options.model, options.num_sources, packer.most_tokens(),
                                        device, ledger);
}

// The stage outlives what is returned.
Float8Weights Float8WeightsOf(const Float8Options& options, ModelStage* stage) {
  Float8Weights weights;
  weights.names = stage->float8_weights();
  const Float8History* const history = &stage->float8_history();
  weights.predicted = [history](const std::string& name) { return history->AmaxOfWeight(name); };
  if (options.recipe == Float8Recipe::kBlockwise) weights.scaling = Float8Scaling::kBlocks;
  weights.power_of_two = options.power_of_two_scales;
  return weights;
}

ExpertGroups ExpertGroupsOf(const ProcessGroups& groups) {
  return {groups.expert, groups.expert_tensor,     groups.expert_model,
          groups.data,   groups.expert_model_host, groups.expert_model_across_hosts};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(
    const TrainerOptions& options, const LossScaler& scaler, const ProcessGroups& groups,
    const StageMemorySizes& sizes, const Stream& stream, MemoryLedger* ledger) {
  MEGATRON_ASSIGN_OR_RETURN(OptimizerParamScheduler scheduler,
                            OptimizerParamScheduler::Create(options.schedule));
  MEGATRON_ASSIGN_OR_RETURN(BatchSizeSchedule batch_sizes,
                            BatchSizeSchedule::Create(options.batch_size));
  if (options.cuda_graphs.enabled && stream.device().type == DeviceType::kCuda) {
    MEGATRON_RETURN_IF_ERROR(CheckMessagesCanBeCaptured(groups));
  }
  MEGATRON_ASSIGN_OR_RETURN(const NamePatterns frozen, NamePatterns::Create(options.freeze));
  TrainerOptions placed = options;
  if (!options.freeze.empty())
    placed.placement.first_trained = FirstTrainedPart(options.model, options.placement, frozen);
  ProcessGroups all = groups;
  MEGATRON_RETURN_IF_ERROR(AddTensorReplicas(options.model, stream, &all));
  MEGATRON_RETURN_IF_ERROR(AddLanes(options.model.transformer, stream, &all));
  ProcessGroups island = all;
  if (options.outer.enabled()) {
    MEGATRON_ASSIGN_OR_RETURN(island, GroupsOfIsland(all, /*planning=*/stream.is_meta()));
  }
  std::unique_ptr<Trainer> trainer(new Trainer(placed, frozen, scaler, scheduler, batch_sizes, all,
                                               island, sizes, stream, ledger));
  MEGATRON_RETURN_IF_ERROR(trainer->buffers_->status());  // locked memory
  MEGATRON_ASSIGN_OR_RETURN(trainer->data_parallel_,
                            DataParallel::Create(options.data_parallel, island,
                                                 {sizes.whole_weights, sizes.whole_gradients},
                                                 trainer->buffers_.get(), stream, ledger));
  if (trainer->OffloadsActivations()) {
    MEGATRON_RETURN_IF_ERROR(trainer->memory_->MakeStore(sizes, stream, ledger));
  }
  if (trainer->OffloadsAttention()) {
    MEGATRON_RETURN_IF_ERROR(trainer->memory_->MakeHostArenas(sizes, stream, ledger));
  }
  if (options.device == DeviceType::kCuda) {
    MEGATRON_RETURN_IF_ERROR(
        trainer->optimizer_->PrepareHostUpdate(stream, options.host_threads, ledger));
  }
  MEGATRON_RETURN_IF_ERROR(trainer->OpenFiles());
  trainer->data_parallel_->SetFloat8Weights(
      Float8WeightsOf(options.model.transformer.float8, trainer->stage_.get()), ledger);
  if (trainer->diagnostics_ != nullptr)
    trainer->data_parallel_->set_parts(trainer->diagnostics_->parts());
  if (trainer->outer_ != nullptr) {
    MEGATRON_RETURN_IF_ERROR(trainer->outer_->PrepareLane(stream));
  }
  return trainer;
}

Trainer::Trainer(const TrainerOptions& options, const NamePatterns& frozen,
                 const LossScaler& scaler, OptimizerParamScheduler scheduler,
                 BatchSizeSchedule batch_sizes, const ProcessGroups& groups,
                 const ProcessGroups& island, const StageMemorySizes& sizes, const Stream& stream,
                 MemoryLedger* ledger)
    : options_(options),
      groups_(groups),
      island_(island),
      stream_(stream),
      scaler_(scaler),
      scheduler_(std::move(scheduler)),
      batch_sizes_(std::move(batch_sizes)),
      stage_(MakeStage(options.model, {stream.device(), ledger, options.placement, groups.tensor,
                                       groups.context, ExpertGroupsOf(island), GridOf(groups)})),
      packer_(PackingFor(options, groups, /*inner=*/false), stream.device(), ledger),
      source_losses_(MakeSourceLosses(options, packer_, stream.device(), ledger)),
      measures_(stage_.get(), options_.model.transformer, options_.placement, groups_,
                {options.num_sources, source_losses_ ? source_losses_->sums_S2() : Tensor()},
                stream, ledger),
      plans_(options.pipeline_schedule, options.microbatch_group, options.placement,
             options.action_costs) {
  CHECK(options.placement.order == OrderOf(options.pipeline_schedule));
  for (Parameter* parameter : stage_->parameters()) {
    parameter->frozen = frozen.Match(parameter->name);
    if (options.model.mup_width_mult != 1)
      ApplyMup(options.optimizer.kind, options.model.mup_width_mult, parameter);
    const bool is_embedding = absl::StartsWith(parameter->name, "embedding.");
    const bool uniform =
        is_embedding ? options.model.xavier_embeddings : options.model.xavier_uniform;
    if (uniform && parameter->initializer.kind == Initializer::kNormal)
      parameter->initializer = Initializer::Uniform(XavierBound(*parameter));
  }
  if (GridOf(groups).is_cube) {
    inner_packer_ = std::make_unique<MicroBatchPacker>(PackingFor(options, groups, /*inner=*/true),
                                                       stream.device(), ledger);
  }
  if (options.scores_tokens && options.placement.last()) {
    const Shape shape{options.packing.max_micro_batches, 2, packer_.most_tokens()};
    token_scores_ =
        Buffer(stream.device(), shape.numel() * SizeOf(DType::kFloat32), "token scores", ledger);
    token_scores_M2T_ = token_scores_.At(0, DType::kFloat32, shape);
    host_token_scores_ = HostMirror(token_scores_M2T_, "token scores");
  }
  ParameterBuffersOptions buffers;
  buffers.model_dtype = options.model.transformer.dtype;
  buffers.device = stream.device();
  std::unique_ptr<UpdateRule> rule = MakeUpdateRule(options.optimizer);
  buffers.states = rule->states();
  buffers.unit = rule->unit();
  buffers.data = DataRankOf(island.data_context_shards, island.data_context_replicas);
  buffers.expert_data = DataRankOf(island.expert_data_shards, island.expert_data_replicas);
  if (island.data_context.size() > 1) {
    buffers.sharding = options.sharding;
    buffers.shards_states_by_parts = options.shards_states_over_instances;
  }
  buffers.bucket_size = options.bucket_size;
  buffers.host_fraction = options.host_fraction;
  buffers.host_part_in_file = !options.state_directory.empty();
  buffers.extent_elements = options.state_extent_elements;
  buffers.main_grads_dtype = options.main_grads_dtype;
  buffers.gradients_on_host = options.gradients_on_host;
  buffers.weights_on_host = options.weights_on_host;
  buffers.weights_in_file = options.weights_on_host && !options.weight_directory.empty();
  buffers_ = std::make_unique<ParameterBuffers>(stage_->parameters(), buffers, ledger);
  optimizer_ = std::make_unique<Optimizer>(std::move(rule), buffers_.get(), ledger);
  if (options.qk_clip.enabled) {
    const TransformerOptions& transformer = options.model.transformer;
    qk_clip_ = std::make_unique<QkClip>(options.qk_clip, transformer.num_layers,
                                        transformer.num_attention_heads, buffers_.get(), ledger);
  }
  if (options.shard_copies > 0 && buffers.sharding != DataSharding::kNone &&
      island.data_context_shards.size() > 1) {
    shard_copies_ = std::make_unique<ShardCopies>(stage_->parameters(), buffers_.get(),
                                                  island.data_context_shards, options.host,
                                                  options.shard_copies, stream, ledger);
  }
  if (options.replica_check_interval > 0)
    replica_check_ = std::make_unique<ReplicaCheck>(*buffers_, island, ledger);
  if (options.rerun.enabled()) {
    const bool computes_for_others = CanComputeForOthers();
    validator_ = std::make_unique<StepValidator>(
        options.rerun, groups.world, computes_for_others ? island.data : ProcessGroup());
    if (computes_for_others) {
      PackerOptions next = PackingFor(options, groups, /*inner=*/false);
      next.num_workers = 0;
      next.layout.data_parallel_rank =
          (next.layout.data_parallel_rank + 1) % next.layout.data_parallel_size;
      next_packer_ = std::make_unique<MicroBatchPacker>(next, stream.device(), ledger);
    }
  }
  if (options.outer.enabled())
    outer_ = std::make_unique<OuterOptimizer>(options.outer, groups, buffers_.get(), ledger);
  optimizer_->PrepareWholeParameters(groups, ledger);
  if (options.diagnostics_interval > 0) {
    diagnostics_ = std::make_unique<Diagnostics>(
        options.model,
        DiagnosticsOptions{options.packing.max_micro_batches,
                           GradientsComeInOrder(options.pipeline_schedule)},
        groups, *buffers_, stage_.get(), stream, ledger);
  }
  StageMemorySizes memory = sizes;
  if (stream.is_meta()) memory.slots.resize(options.placement.chunks);
  memory_ = std::make_unique<StageMemory>(stream.device(), memory, ledger);
  if (options.cuda_graphs.enabled && stream.device().type == DeviceType::kCuda) {
    CHECK(CanBeCaptured(options, groups));
    CudaGraphOptions graphs = options.cuda_graphs;
    graphs.reads_sample_weight = options.model.transformer.moe.num_experts > 0;
    graphed_stage_ = std::make_unique<GraphedStage>(stage_.get(), graphs, sizes.slots, packer_,
                                                    stream.device(), ledger);
  }
}

Trainer::~Trainer() = default;

bool Trainer::OffloadsActivations() const {
  return options_.model.num_offloaded_layers > 0 && stream_.device().type != DeviceType::kCpu;
}

bool Trainer::OffloadsAttention() const {
  return options_.model.attention_on_host && stream_.device().type != DeviceType::kCpu;
}

absl::Status Trainer::OpenFiles() {
  if (stream_.is_meta()) return absl::OkStatus();
  // The process's number keeps runs apart that share the folder, while their files have names.
  const std::string end = absl::StrCat("_of_rank_", groups_.world.rank(), ".", getpid());
  MEGATRON_RETURN_IF_ERROR(
      buffers_->OpenStateFile(absl::StrCat(options_.state_directory, "/optimizer_states", end)));
  return buffers_->OpenWeightFile(absl::StrCat(options_.weight_directory, "/weights", end));
}

}  // namespace megatron
