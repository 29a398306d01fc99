#include "megatron/train/trainer/trainer.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/communicator.h"
#include "megatron/comm/island_groups.h"
#include "megatron/layers/moe/expert_groups.h"
#include "megatron/layers/tensor_grid.h"
#include "megatron/models/make_stage.h"
#include "megatron/ops/elementwise.h"
#include "megatron/pipeline/executor.h"
#include "megatron/tensor/name_patterns.h"
#include "megatron/tensor/trace/trace.h"
#include "megatron/train/diagnostics/diagnostics.h"
#include "megatron/train/failure/exit_status.h"
#include "megatron/train/failure/reporting_stage.h"
#include "megatron/train/profile/counted_stage.h"
#include "megatron/train/trainer/lanes.h"

namespace megatron {
namespace {

TensorGridGroups GridOf(const ProcessGroups& groups) {
  return {groups.tensor_row,      groups.tensor_column,
          groups.tensor_square,   groups.tensor_depth,
          groups.tensor_replicas, /*is_cube=*/groups.data_inner_rows.size() > 1};
}

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

// Each measure has two sums: that of weighted values and that of weights.
Shape ReportShape(const ModelStage& stage) {
  return {static_cast<int64_t>(stage.measures().size()), 2};
}

// The sums of the measures, and the router's losses behind them.
Shape WholeReport(const ModelStage& stage) { return {ReportShape(stage).numel() + 2}; }

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

// Returns whether the host makes no calls in a stage's passes but those that enqueue work.
bool CanBeCaptured(const TrainerOptions& options, const ProcessGroups& groups) {
  return options.model.transformer.moe.num_experts == 0 &&
         (groups.data_context.size() == 1 || options.sharding < DataSharding::kGradients) &&
         !options.weights_on_host && !options.data_parallel.overlap_grad_reduce &&
         !options.data_parallel.overlap_param_gather;
}

// Messages that go through the host's memory can't be part of a graph.
absl::Status CheckMessagesCanBeCaptured(const ProcessGroups& groups) {
  for (const ProcessGroup* group : {&groups.tensor, &groups.context}) {
    if (group->size() == 1 || group->communicator()->TakesTensorsOf(DeviceType::kCuda)) continue;
    return absl::InvalidArgumentError(
        "system.cuda_graph_impl = local: the host sends the messages of tensor- and "
        "context-parallel ranks, and only NCCL's are captured");
  }
  return absl::OkStatus();
}

// Returns the category of the time that gradients and weights take between data-parallel ranks:
// alone, a rank still scales and copies.
TimeCategory DataCategory(const ProcessGroups& groups) {
  const bool alone = groups.data_context.size() == 1 && groups.expert_data.size() == 1;
  return alone ? TimeCategory::kOptimizer : TimeCategory::kDataParallel;
}

// Returns whether no pass of a micro-batch's gradients is put off behind those of the next one.
bool GradientsComeInOrder(ScheduleKind schedule) {
  return schedule != ScheduleKind::kZeroBubbleH1 && schedule != ScheduleKind::kZeroBubbleV;
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
  ProcessGroups all = groups;
  MEGATRON_RETURN_IF_ERROR(AddTensorReplicas(options.model, stream, &all));
  MEGATRON_RETURN_IF_ERROR(AddLanes(options.model.transformer, stream, &all));
  ProcessGroups island = all;
  if (options.outer.enabled()) {
    MEGATRON_ASSIGN_OR_RETURN(island, GroupsOfIsland(all, /*planning=*/stream.is_meta()));
  }
  std::unique_ptr<Trainer> trainer(
      new Trainer(options, scaler, scheduler, batch_sizes, all, island, sizes, stream, ledger));
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
  MEGATRON_RETURN_IF_ERROR(trainer->OpenStateFile());
  const Float8History* const history = &trainer->stage_->float8_history();
  trainer->data_parallel_->SetFloat8Weights(
      {trainer->stage_->float8_weights(),
       [history](const std::string& name) { return history->AmaxOfWeight(name); }},
      ledger);
  if (trainer->diagnostics_ != nullptr)
    trainer->data_parallel_->set_parts(trainer->diagnostics_->parts());
  if (trainer->outer_ != nullptr) {
    MEGATRON_RETURN_IF_ERROR(trainer->outer_->PrepareLane(stream));
  }
  return trainer;
}

Trainer::Trainer(const TrainerOptions& options, const LossScaler& scaler,
                 OptimizerParamScheduler scheduler, BatchSizeSchedule batch_sizes,
                 const ProcessGroups& groups, const ProcessGroups& island,
                 const StageMemorySizes& sizes, const Stream& stream, MemoryLedger* ledger)
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
      report_(stream.device(), WholeReport(*stage_).numel() * SizeOf(DType::kFloat32), "loss",
              ledger),
      host_report_(report_.At(0, DType::kFloat32, WholeReport(*stage_)), "loss") {
  CHECK(options.placement.order == OrderOf(options.pipeline_schedule));
  const absl::StatusOr<NamePatterns> frozen = NamePatterns::Create(options.freeze);
  CHECK(frozen.ok()) << frozen.status();
  for (Parameter* parameter : stage_->parameters()) {
    parameter->frozen = frozen->Match(parameter->name);
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
  buffers.weights_on_host = options.weights_on_host;
  buffers_ = std::make_unique<ParameterBuffers>(stage_->parameters(), buffers, ledger);
  optimizer_ = std::make_unique<Optimizer>(std::move(rule), buffers_.get(), ledger);
  if (options.qk_clip.enabled) {
    const TransformerOptions& transformer = options.model.transformer;
    qk_clip_ = std::make_unique<QkClip>(options.qk_clip, transformer.num_layers,
                                        transformer.num_attention_heads, buffers_.get(), ledger);
  }
  if (options.replica_check_interval > 0)
    replica_check_ = std::make_unique<ReplicaCheck>(*buffers_, island, ledger);
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
    graphed_stage_ = std::make_unique<GraphedStage>(stage_.get(), options.cuda_graphs, sizes.slots,
                                                    packer_, stream.device(), ledger);
  }
}

Trainer::~Trainer() = default;

bool Trainer::OffloadsActivations() const {
  return options_.model.num_offloaded_layers > 0 && stream_.device().type != DeviceType::kCpu;
}

bool Trainer::OffloadsAttention() const {
  return options_.model.attention_on_host && stream_.device().type != DeviceType::kCpu;
}

absl::Status Trainer::OpenStateFile() {
  if (buffers_->state_file() == nullptr || stream_.is_meta()) return absl::OkStatus();
  // The process's number keeps runs apart that share the folder, while their files have names.
  return buffers_->OpenStateFile(absl::StrCat(
      options_.state_directory, "/optimizer_states_of_rank_", groups_.world.rank(), ".", getpid()));
}

void Trainer::InitializeWeights(uint64_t seed) {
  buffers_->InitializeWeights(seed, stream_);
  if (outer_ != nullptr) outer_->Start(stream_);
}

const ParameterMirror& Trainer::host_parameters() {
  if (host_parameters_ == nullptr) {
    std::vector<Tensor> others;
    if (outer_ != nullptr) others = outer_->tensors();
    if (data_parallel_->compressor() != nullptr) {
      for (const GradientCompressor::Named& state : data_parallel_->compressor()->states())
        others.push_back(state.tensor);
    }
    host_parameters_ = std::make_unique<ParameterMirror>(*buffers_, others);
  }
  return *host_parameters_;
}

ScheduleOptions Trainer::ScheduleFor(int64_t micro_batches) const {
  ScheduleOptions schedule;
  schedule.kind = options_.pipeline_schedule;
  schedule.stages = options_.placement.stages;
  schedule.microbatches = static_cast<int>(micro_batches);
  schedule.chunks = options_.placement.chunks;
  schedule.group = options_.microbatch_group;
  schedule.costs = options_.action_costs.Mean();
  return schedule;
}

StagePlan Trainer::MakePlan(int64_t micro_batches) const {
  return PlanStage(MakeSchedule(ScheduleFor(micro_batches)), options_.placement.stage,
                   options_.action_costs);
}

const StagePlan& Trainer::PlanFor(int64_t micro_batches) {
  if (plan_.microbatches != micro_batches || plan_.steps.empty()) plan_ = MakePlan(micro_batches);
  return plan_;
}

std::vector<StagePlan> Trainer::PlansOfAllStages() const {
  const Schedule schedule = MakeSchedule(ScheduleFor(plan_.microbatches));
  std::vector<StagePlan> plans;
  for (int stage = 0; stage < schedule.stages; ++stage)
    plans.push_back(PlanStage(schedule, stage, options_.action_costs));
  return plans;
}

StagePlan Trainer::PlanForward(int64_t micro_batches) const {
  return PlanStage(MakeForwards(ScheduleFor(micro_batches)), options_.placement.stage,
                   options_.action_costs);
}

// Returns the numbers of micro-batches of the steps that may need the most memory: that of the
// longest step, but all numbers for ZB-V, whose order differs for each.
std::vector<int64_t> Trainer::MicroBatchesToMeasure() const {
  std::vector<int64_t> counts = {options_.packing.max_micro_batches};
  if (options_.pipeline_schedule != ScheduleKind::kZeroBubbleV) return counts;
  for (const BatchSizeStep& step : options_.batch_size.steps)
    counts.push_back(options_.batch_size.MicroBatchesOf(step.size));
  return counts;
}

// Kept tokens take memory of their own. So a step that keeps nearly all of them takes more than one
// without dropping.
std::vector<int64_t> Trainer::KeptTokensToMeasure() const {
  const LengthSchedule& schedule = options_.random_ltd;
  if (!schedule.enabled()) return {0};
  if (schedule.max < options_.packing.seq_length) return {schedule.max};
  return {schedule.At(schedule.total_steps - 1), 0};
}

StageMemorySizes Trainer::Measure() {
  CHECK(stream_.is_meta());
  const int64_t micro_batches = options_.packing.max_micro_batches;
  packer_.PackShapes(micro_batches);
  if (inner_packer_ != nullptr) inner_packer_->PackShapes(micro_batches);
  std::vector<StagePlan> plans;
  for (int64_t count : MicroBatchesToMeasure()) plans.push_back(MakePlan(count));
  plans.push_back(PlanForward(micro_batches));
  StageMemorySizes slots;
  slots.slots.assign(options_.placement.chunks, {0, 0});
  slots.deferred = slots.slots;
  for (const StagePlan& plan : plans) {
    for (int chunk = 0; chunk < plan.chunks(); ++chunk) {
      slots.slots[chunk].count = std::max(slots.slots[chunk].count, plan.slots[chunk]);
      slots.deferred[chunk].count =
          std::max(slots.deferred[chunk].count, plan.deferred_slots[chunk]);
    }
  }
  memory_ = std::make_unique<StageMemory>(stream_.device(), slots, nullptr);
  if (OffloadsActivations()) CHECK_EQ(memory_->MakeStore({}, stream_, nullptr), absl::OkStatus());
  if (OffloadsAttention())
    CHECK_EQ(memory_->MakeHostArenas({}, stream_, nullptr), absl::OkStatus());
  for (const StagePlan& plan : plans) {
    const bool training = &plan != &plans.back();
    StepInputs inputs =
        InputsOf(packer_.batches(), training ? StageMode::kTrain : StageMode::kEvaluate);
    if (diagnostics_ != nullptr) {
      diagnostics_->StartPlanning();
      inputs.activations = diagnostics_->activations();
    }
    for (const int64_t kept_tokens : KeptTokensToMeasure()) {
      inputs.kept_tokens = kept_tokens;
      stage_->StartStep(inputs);
      if (training) data_parallel_->StartStep(plan.microbatches);
      CHECK_EQ(RunSchedule(plan, stage_.get(), groups_.pipeline, &memory_->edges, stream_),
               absl::OkStatus());
      if (training) data_parallel_->FinalizeGradients();
    }
  }
  int64_t generation = 0;
  if (options_.max_generation_context > 0) {
    TextGenerator generator = MakeGenerator(nullptr);
    generator.Measure();
    generation = generator.bytes();
  }
  StageMemorySizes sizes = memory_->HighWater();
  sizes.generation = generation;
  sizes.whole_weights = data_parallel_->HighWater().weights;
  sizes.whole_gradients = data_parallel_->HighWater().gradients;
  if (options_.cuda_graphs.enabled)
    sizes.graph_inputs = GraphInputBytes(sizes.slots, packer_.BytesOfOne());
  return sizes;
}

TextGenerator Trainer::MakeGenerator(MemoryLedger* ledger) {
  return TextGenerator({stage_.get(), memory_.get(), data_parallel_.get(), groups_.pipeline},
                       options_.generation_limits(), stream_, ledger);
}

absl::Status Trainer::ShareWeights() {
  data_parallel_->ShareWeights();
  data_parallel_->WaitForWeights();
  return GroupStatus();
}

std::map<std::string, int64_t> Trainer::MeasuredActivations() const {
  std::map<std::string, int64_t> bytes;
  std::vector<const Arena*> arenas = {&memory_->recompute, &memory_->scratch};
  for (const auto* slots : {&memory_->slots, &memory_->deferred}) {
    for (const auto& chunk : *slots) {
      if (!chunk.empty()) arenas.push_back(chunk[0].get());
    }
  }
  if (memory_->store != nullptr) {
    for (const Arena* window : memory_->store->windows()) arenas.push_back(window);
  }
  for (const Arena* arena : arenas) {
    for (const auto& [name, held] : arena->NamesAtHighWater()) bytes[name] += held;
  }
  return bytes;
}

int64_t Trainer::MoeLayers() const {
  const TransformerOptions& options = options_.model.transformer;
  int64_t count = 0;
  for (int64_t layer = 0; layer < options.num_layers; ++layer)
    count += options.moe.IsMoeLayer(layer);
  return count;
}

int64_t Trainer::NumSums() const { return ReportShape(*stage_).numel(); }

void Trainer::StartMeasuring(bool router_losses) {
  const TraceSpan span(stream_, TimeCategory::kCompute, "measure");
  const Tensor sums = report_.At(0, DType::kFloat32, ReportShape(*stage_));
  if (options_.placement.last()) {
    ops::Copy(stream_, stage_->loss_sums(), sums);
    groups_.data_context.AllReduce(sums, ReduceOp::kSum, stream_);
    SumOverGrid(sums);
  }
  groups_.pipeline.Broadcast(sums, options_.placement.last_stage(), stream_);
  if (router_losses && MoeLayers() > 0) SumRouterLosses();
  host_report_.StartFetch(stream_);
}

// The ranks of a cube's row, on all levels, have the samples of the inner layout.
void Trainer::SumOverGrid(const Tensor& sums) {
  const TensorGridGroups grid = GridOf(groups_);
  if (!grid.is_grid()) return;
  if (!grid.is_cube) return grid.columns.AllReduce(sums, ReduceOp::kSum, stream_);
  grid.depth.AllReduce(sums, ReduceOp::kSum, stream_);
  grid.row.AllReduce(sums, ReduceOp::kSum, stream_);
}

// Every rank has summed over the rows that it routes, in its stage's layers.
void Trainer::SumRouterLosses() {
  const Tensor sums_2 = report_.At(NumSums() * SizeOf(DType::kFloat32), DType::kFloat32, {2});
  if (stage_->router_state().empty()) {
    ops::Zero(stream_, sums_2);
  } else {
    ops::Copy(stream_, stage_->router_state().losses_2(), sums_2);
  }
  groups_.world.AllReduce(sums_2, ReduceOp::kSum, stream_);
}

Measured Trainer::FinishMeasuring() {
  host_report_.Finish();
  Measured measured;
  const float* sum = host_report_.host().data<float>();
  for (const megatron::Measure& measure : stage_->measures()) {
    const double mean = sum[1] == 0 ? 0 : double{sum[0]} / sum[1];
    measured.values.emplace_back(measure, mean);
    if (sum[1] == 0) measured.undefined_means.push_back(measure.name);
    if (measure.is_loss) measured.loss += mean;
    sum += 2;
  }
  return measured;
}

void Trainer::ReportRouterLosses(StepReport* report) const {
  const int64_t layers = MoeLayers();
  if (layers == 0) return;
  const double count = static_cast<double>(report->global_batch_size * layers);
  const float* const sums = host_report_.host().data<float>() + NumSums();
  report->load_balancing_loss = sums[0] / count;
  report->z_loss = sums[1] / count;
  const MoeOptions& moe = options_.model.transformer.moe;
  const auto add = [&](MeasureKind kind, const char* name, double value) {
    report->values.emplace_back(megatron::Measure{kind, name, /*is_loss=*/true}, value);
  };
  if (moe.balance != BalanceUnit::kNone) {
    add(MeasureKind::kLoadBalancingLoss,
        moe.balance == BalanceUnit::kSample ? "seq_load_balancing_loss"
        : moe.balance == BalanceUnit::kStep ? "global_load_balancing_loss"
                                            : "load_balancing_loss",
        report->load_balancing_loss);
  }
  if (moe.z_loss_coeff != 0) add(MeasureKind::kRouterZLoss, "z_loss", report->z_loss);
}

absl::Status Trainer::GroupStatus() const {
  for (const ProcessGroup* group : {&groups_.world, &groups_.tensor, &groups_.context,
                                    &groups_.data_context, &groups_.pipeline}) {
    MEGATRON_RETURN_IF_ERROR(group->status());
  }
  return WithExitCode(buffers_->status(), kExitIo);
}

StepInputs Trainer::InputsOf(const std::vector<MicroBatch>& batches, StageMode mode) const {
  StepInputs inputs;
  inputs.memory = memory_.get();
  inputs.blocks = data_parallel_.get();
  inputs.batches = &batches;
  if (inner_packer_ != nullptr) inputs.inner_batches = &inner_packer_->batches();
  inputs.mode = mode;
  if (qk_clip_ != nullptr) inputs.largest_scores_LN = qk_clip_->largest_scores_LN();
  return inputs;
}

Diagnostics* Trainer::NextDiagnostics() const {
  const bool measures =
      diagnostics_ != nullptr && (progress_.iteration + 1) % options_.diagnostics_interval == 0;
  return measures ? diagnostics_.get() : nullptr;
}

// A graph has no place for what a measured step does besides.
absl::Status Trainer::RunPipeline(int64_t micro_batches, Diagnostics* diagnostics) {
  const StagePlan& plan = PlanFor(micro_batches);
  // A graph would keep the scales of the moment, which a step has as long as there are no others.
  const Float8History& history = stage_->float8_history();
  const bool graphed =
      graphed_stage_ != nullptr && diagnostics == nullptr && (history.empty() || history.known());
  const int64_t kept_tokens = KeptTokensAfter(progress_.iteration);
  if (graphed) graphed_stage_->StartStep(kept_tokens);
  StepInputs inputs =
      InputsOf(graphed ? graphed_stage_->batches() : packer_.batches(), StageMode::kTrain);
  inputs.kept_tokens = kept_tokens;
  if (diagnostics != nullptr) inputs.activations = diagnostics->activations();
  stage_->StartStep(inputs);
  Stage* inner = stage_.get();
  if (graphed) inner = graphed_stage_.get();
  ReportingStage reporting(inner, rank_progress_);
  CountedStage stage(&reporting, *memory_);
  if (!options_.measure_pipeline)
    return RunSchedule(plan, &stage, groups_.pipeline, &memory_->edges, stream_);
  MEGATRON_ASSIGN_OR_RETURN(
      const Timeline mine,
      RunScheduleAndMeasure(plan, &stage, groups_.pipeline, &memory_->edges, stream_));
  measured_.schedule = MakeSchedule(ScheduleFor(micro_batches));
  MEGATRON_ASSIGN_OR_RETURN(measured_.timelines,
                            GatherTimelines(measured_.schedule, mine, groups_.pipeline, stream_));
  return absl::OkStatus();
}

int64_t Trainer::SeqLengthAfter(int64_t iteration) const {
  return options_.curriculum.enabled() ? options_.curriculum.At(iteration + 1)
                                       : options_.packing.seq_length;
}

int64_t Trainer::KeptTokensAfter(int64_t iteration) const {
  if (!options_.random_ltd.enabled()) return 0;
  const int64_t kept = options_.random_ltd.At(iteration + 1);
  return kept < SeqLengthAfter(iteration) ? kept : 0;
}

MicroBatchPacker::Step Trainer::PackedAfter(int64_t consumed_samples) const {
  MicroBatchPacker::Step step;
  step.consumed_samples = consumed_samples;
  step.micro_batches = batch_sizes_.NumMicrobatches(consumed_samples);
  step.loss_scale = scaler_.scale();
  if (!batch_sizes_.IsEven(consumed_samples))
    step.samples = batch_sizes_.GlobalBatchSize(consumed_samples);
  return step;
}

// Runs while the GPU is busy with this step.
void Trainer::ReadAhead(const SampleSource& source, int64_t batch) {
  const int64_t consumed = progress_.consumed_train_samples + batch;
  const TraceSpan span(stream_, TimeCategory::kData, "read ahead");
  MicroBatchPacker::Step next = PackedAfter(consumed);
  next.seq_length = SeqLengthAfter(progress_.iteration + 1);
  packer_.ReadAhead(source, next);
  if (inner_packer_ != nullptr) inner_packer_->ReadAhead(source, next);
}

absl::Status Trainer::Pack(const SampleSource& source, const MicroBatchPacker::Step& step) {
  MEGATRON_RETURN_IF_ERROR(packer_.Pack(source, step, SamplesGroup(), stream_));
  if (inner_packer_ == nullptr) return absl::OkStatus();
  return inner_packer_->Pack(source, step, groups_.data_inner_rows, stream_);
}

absl::StatusOr<StepResult> Trainer::Update(const StepRequests& requests, Diagnostics* diagnostics) {
  if (diagnostics != nullptr) diagnostics->AddGradients();
  StepOptions step;
  step.lr = scheduler_.learning_rate();
  step.decoupled_lr = scheduler_.decoupled_learning_rate();
  step.weight_decay = scheduler_.weight_decay();
  step.loss_scale = scaler_.scale();
  step.clip_grad = options_.clip_grad;
  step.stop_requested = requests.stop;
  step.log_requested = requests.log;
  if (diagnostics != nullptr) step.observer = diagnostics->update_observer();
  if (optimizer_->rule().averages_over_ranks()) step.average = data_parallel_.get();
  if (outer_ != nullptr) step.islands = &groups_.data_context_replicas;
  const absl::StatusOr<StepResult> updated = optimizer_->Step(step, island_, stream_);
  MEGATRON_RETURN_IF_ERROR(WithExitCode(buffers_->status(), kExitIo));
  return updated;
}

absl::StatusOr<std::optional<IslandLink::Round>> Trainer::JoinIslands(IslandLink::Stop stop) {
  if (!options_.islands.enabled()) return std::nullopt;
  stop_ = std::move(stop);
  std::map<std::string, Shape> shapes;
  const auto whole = MakeStage(options_.model, {{DeviceType::kMeta}});
  for (const Parameter* parameter : whole->parameters())
    shapes[parameter->name] = parameter->sharding.global_shape;
  std::vector<NamedShape> tensors;
  for (const auto& [name, shape] : shapes) tensors.push_back({name, shape});
  absl::StatusOr<IslandLink::Round> round;
  {
    absl::StatusOr<std::unique_ptr<IslandLink>> link =
        IslandLink::Create(options_.islands, tensors, groups_, outer_.get(), buffers_.get());
    MEGATRON_RETURN_IF_ERROR(WithExitCode(link.status(), kExitConfig));
    islands_ = *std::move(link);
    const RankProgress::ExternalWait waiting(rank_progress_);
    // The copy comes into the gradients, between which elements stay zero.
    buffers_->ZeroGradients(stream_);
    round = islands_->Join(progress_.server_run, progress_.server_round, stop_, stream_);
  }
  MEGATRON_RETURN_IF_ERROR(GroupStatus());
  MEGATRON_RETURN_IF_ERROR(WithExitCode(round.status(), kExitConfig));
  progress_.server_run = islands_->run();
  progress_.server_round = islands_->round();
  if (!round->has_copy) return std::make_optional(*round);
  outer_->TakeCopy(stream_);
  MEGATRON_RETURN_IF_ERROR(ShareWeights());
  return std::make_optional(*round);
}

absl::StatusOr<bool> Trainer::FinishRound(StepReport* report) {
  if ((progress_.iteration + 1) % options_.outer.sync_every != 0) return false;
  CHECK(islands_ != nullptr);
  absl::StatusOr<IslandLink::Round> round;
  {
    const TraceSpan span(stream_, TimeCategory::kDataParallel, "outer step");
    const RankProgress::ExternalWait waiting(rank_progress_);
    outer_->FormUpdate(stream_);
    round = islands_->Exchange(stop_, stream_);
  }
  MEGATRON_RETURN_IF_ERROR(GroupStatus());
  MEGATRON_RETURN_IF_ERROR(WithExitCode(round.status(), kExitConfig));
  progress_.server_run = islands_->run();
  progress_.server_round = islands_->round();
  report->round = *round;
  if (!round->has_copy) return false;
  outer_->TakeCopy(stream_);
  return true;
}

absl::Status Trainer::FinishUpdate(bool applied, StepReport* report) {
  bool joined = false;
  if (options_.islands.enabled()) {
    MEGATRON_ASSIGN_OR_RETURN(joined, FinishRound(report));
  } else if (outer_ != nullptr) {
    joined = outer_->FinishStep(progress_.iteration + 1, stream_);
  }
  // Weights that are sent as codes have the scales of the next step.
  if (applied) stage_->float8_history().Record(stream_, data_parallel_->LargestFloat8Weights());
  if (applied || joined) {
    const TraceSpan span(stream_, DataCategory(groups_), "share weights");
    data_parallel_->ShareWeights();
  }
  if (applied) stage_->router_state().UpdateBiases({groups_.tensor, groups_.data_context}, stream_);
  return absl::OkStatus();
}

absl::Status Trainer::CheckReplicas() {
  const int64_t iteration = progress_.iteration + 1;
  if (replica_check_ == nullptr || iteration % options_.replica_check_interval != 0)
    return absl::OkStatus();
  data_parallel_->WaitForWeights();
  const absl::Status status = replica_check_->Check(stream_);
  if (status.ok()) last_alike_ = iteration;
  if (!absl::IsDataLoss(status)) return status;
  const std::string before = last_alike_ < 0
                                 ? "this run has not compared them before"
                                 : absl::StrCat("they were alike after iteration ", last_alike_);
  return WithExitCode(absl::DataLossError(absl::StrCat("after iteration ", iteration, ", ",
                                                       status.message(), "; ", before)),
                      kExitNumeric);
}

// Weights that are still being sent may not be overwritten.
void Trainer::UseCommonWeights(bool use) {
  if (outer_ == nullptr && optimizer_->local_rates() == 0) return;
  data_parallel_->WaitForWeights();
  if (outer_ != nullptr) {
    outer_->SwapWithMasters(stream_);
  } else if (use) {
    buffers_->CopyMastersToWeights(stream_);
  } else {
    optimizer_->MakeLocalWeights(stream_);
  }
  data_parallel_->ShareWeights();
}

double Trainer::SentGradients() const {
  const DataParallel::SentElements& own = data_parallel_->sent();
  int64_t sums[] = {own.sent, own.all};
  groups_.world.AllReduce(Tensor(sums, DType::kInt64, {2}), ReduceOp::kSum, stream_);
  // Before the first step with compression nothing is counted, and all is sent.
  return sums[1] == 0 ? 1 : static_cast<double>(sums[0]) / static_cast<double>(sums[1]);
}

absl::StatusOr<StepReport> Trainer::Step(const SampleSource& source,
                                         const std::function<StepRequests()>& before_update) {
  made_step_.reset();
  StepReport report;
  report.global_batch_size = GlobalBatchSize();
  report.loss_scale = scaler_.scale();
  report.seq_length = SeqLengthAfter(progress_.iteration);
  report.kept_tokens = KeptTokensAfter(progress_.iteration);
  MicroBatchPacker::Step packed = PackedAfter(progress_.consumed_train_samples);
  packed.seq_length = report.seq_length;
  const int64_t micro_batches = packed.micro_batches;
  Diagnostics* const diagnostics = NextDiagnostics();
  rank_progress_->SetIteration(progress_.iteration + 1);
  const TraceSpan step_span(stream_, TimeCategory::kOther, "step", progress_.iteration + 1);
  rank_progress_->Enter(Phase::kData);
  {
    const TraceSpan span(stream_, TimeCategory::kData, "data");
    MEGATRON_RETURN_IF_ERROR(Pack(source, packed));
  }
  {
    const TraceSpan span(stream_, TimeCategory::kOptimizer, "zero gradients");
    if (diagnostics != nullptr) diagnostics->StartStep(micro_batches, scaler_.scale());
    data_parallel_->StartStep(
        micro_batches, progress_.iteration,
        optimizer_->rule().StepAfter(optimizer_->applied_steps()) != RankStep::kSum);
    if (options_.placement.last()) ops::Zero(stream_, stage_->loss_sums());
    if (qk_clip_ != nullptr) qk_clip_->StartStep(stream_);
    stage_->router_state().StartStep(stream_);
    stage_->float8_history().StartStep(stream_);
  }
  {
    const TraceSpan span(stream_, TimeCategory::kOther, "forward-backward");
    MEGATRON_RETURN_IF_ERROR(RunPipeline(micro_batches, diagnostics));
  }
  rank_progress_->Enter(Phase::kReduce);
  StartMeasuring(/*router_losses=*/true);
  ReadAhead(source, report.global_batch_size);
  {
    const TraceSpan span(stream_, DataCategory(groups_), "reduce gradients");
    data_parallel_->FinalizeGradients();
    if (options_.data_parallel.sent_elements_vary()) report.sent_gradients = SentGradients();
  }
  stage_->float8_history().StartReduce({groups_.tensor, groups_.data_context}, stream_);
  MEGATRON_RETURN_IF_ERROR(GroupStatus());
  rank_progress_->Enter(Phase::kSave);
  StepRequests requests;
  if (before_update) {
    const TraceSpan span(stream_, TimeCategory::kCheckpoint, "wait for checkpoint");
    requests = before_update();
  }
  rank_progress_->Enter(Phase::kUpdate);
  const TraceSpan update_span(stream_, TimeCategory::kOptimizer, "optimizer");
  MEGATRON_ASSIGN_OR_RETURN(report.update, Update(requests, diagnostics));
  const absl::Status finished = FinishStep(diagnostics, &report);
  // A GPU may never do what it was given before the error.
  if (!finished.ok() && stream_.device().type != DeviceType::kCpu) return finished;
  static_cast<Measured&>(report) = FinishMeasuring();
  ReportRouterLosses(&report);
  scaler_.Update(!report.update.finite);
  if (report.update.applied) scheduler_.Advance(report.global_batch_size);
  report.learning_rate = scheduler_.learning_rate();
  report.decoupled_learning_rate = scheduler_.decoupled_learning_rate();
  PassOverIteration();
  if (finished.ok()) return report;
  made_step_ = std::move(report);
  return finished;
}

absl::Status Trainer::FinishStep(Diagnostics* diagnostics, StepReport* report) {
  if (options_.log_num_zeros_in_grad)
    report->num_zeros = optimizer_->CountZeroGradients(island_, stream_);
  std::optional<double> largest_score;
  if (qk_clip_ != nullptr && report->update.applied)
    largest_score = qk_clip_->Clip(island_.world, stream_);
  MEGATRON_RETURN_IF_ERROR(FinishUpdate(report->update.applied, report));
  MEGATRON_RETURN_IF_ERROR(CheckReplicas());
  if (options_.log_params_norm) report->params_norm = optimizer_->ParametersNorm(island_, stream_);
  if (diagnostics != nullptr)
    report->diagnostics = diagnostics->Finish(report->update.applied, report->global_batch_size);
  if (largest_score.has_value()) report->diagnostics.max_attention_logit = largest_score;
  return GroupStatus();
}

void Trainer::PassOverIteration() {
  const int64_t samples = GlobalBatchSize();
  if (options_.curriculum.enabled())
    progress_.consumed_train_tokens += samples * SeqLengthAfter(progress_.iteration);
  ++progress_.iteration;
  progress_.consumed_train_samples += samples;
}

absl::StatusOr<Measured> Trainer::Evaluate(const SampleSource& source, int64_t iterations) {
  const int64_t batch = options_.batch_size.global_batch_size;
  const int64_t batches = std::max<int64_t>(1, source.size() / batch);
  MicroBatchPacker::Step packed;
  packed.micro_batches = options_.batch_size.MicroBatchesOf(batch);
  if (batch % options_.batch_size.granularity != 0) packed.samples = batch;
  const StagePlan plan = PlanForward(packed.micro_batches);
  const TraceSpan span(stream_, TimeCategory::kEvaluation, "evaluate");
  UseCommonWeights(true);
  if (options_.placement.last()) ops::Zero(stream_, stage_->loss_sums());
  for (int64_t i = 0; i < iterations; ++i) {
    rank_progress_->Enter(Phase::kEvaluate);
    // A run that was continued or extended may have used up the samples drawn for it; it begins
    // again from the first.
    packed.consumed_samples = progress_.consumed_valid_samples / batch % batches * batch;
    MEGATRON_RETURN_IF_ERROR(Pack(source, packed), _ << "while evaluating");
    stage_->StartStep(InputsOf(packer_.batches(), StageMode::kEvaluate));
    MEGATRON_RETURN_IF_ERROR(
        RunSchedule(plan, stage_.get(), groups_.pipeline, &memory_->edges, stream_));
    progress_.consumed_valid_samples += batch;
  }
  StartMeasuring(/*router_losses=*/false);
  const Measured measured = FinishMeasuring();
  UseCommonWeights(false);
  MEGATRON_RETURN_IF_ERROR(GroupStatus());
  return measured;
}

}  // namespace megatron
