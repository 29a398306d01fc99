#include "megatron/train/trainer/trainer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/models/make_stage.h"
#include "megatron/ops/elementwise.h"
#include "megatron/pipeline/executor.h"
#include "megatron/tensor/trace/trace.h"
#include "megatron/train/diagnostics/diagnostics.h"
#include "megatron/train/failure/exit_status.h"
#include "megatron/train/failure/reporting_stage.h"
#include "megatron/train/profile/counted_stage.h"

namespace megatron {
namespace {

// Returns the category of the time that gradients and weights take between data-parallel ranks:
// alone, a rank still scales and copies.
TimeCategory DataCategory(const ProcessGroups& groups) {
  const bool alone = groups.data_context.size() == 1 && groups.expert_data.size() == 1;
  return alone ? TimeCategory::kOptimizer : TimeCategory::kDataParallel;
}

}  // namespace

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

bool Trainer::passes_change_states() const {
  const CompressionType type = options_.data_parallel.compression.type;
  return data_parallel_->compressor() != nullptr && type != CompressionType::kOneBit &&
         stream_.device().type == DeviceType::kCpu;
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
  if (source_losses_ != nullptr) inputs.token_losses_T = source_losses_->token_losses_T();
  return inputs;
}

Diagnostics* Trainer::NextDiagnostics() const {
  const bool measures =
      diagnostics_ != nullptr && (progress_.iteration + 1) % options_.diagnostics_interval == 0;
  return measures ? diagnostics_.get() : nullptr;
}

// A graph has no place for what a measured step does besides.
absl::Status Trainer::RunPipeline(const Passes& passes) {
  Diagnostics* const diagnostics = passes.diagnostics;
  const StagePlan& plan = plans_.Of(passes.micro_batches);
  // A graph would keep the scales of the moment, which a step has as long as there are no others.
  const Float8History& history = stage_->float8_history();
  const bool graphed =
      graphed_stage_ != nullptr && diagnostics == nullptr && (history.empty() || history.known());
  const int64_t kept_tokens = KeptTokensAfter(progress_.iteration);
  if (graphed) graphed_stage_->StartStep(kept_tokens);
  StepInputs inputs =
      InputsOf(graphed ? graphed_stage_->batches() : passes.packer->batches(), StageMode::kTrain);
  inputs.kept_tokens = kept_tokens;
  if (diagnostics != nullptr) inputs.activations = diagnostics->activations();
  stage_->StartStep(inputs);
  Stage* inner = stage_.get();
  if (graphed) inner = graphed_stage_.get();
  SourceLossStage by_source(inner, source_losses_.get(), options_.placement.chunks - 1,
                            *passes.source, PackerOfLosses(*passes.packer));
  ReportingStage reporting(&by_source, rank_progress_);
  CountedStage stage(&reporting, *memory_);
  if (!options_.measure_pipeline)
    return RunSchedule(plan, &stage, groups_.pipeline, &memory_->edges, stream_);
  MEGATRON_ASSIGN_OR_RETURN(
      const Timeline mine,
      RunScheduleAndMeasure(plan, &stage, groups_.pipeline, &memory_->edges, stream_));
  measured_.schedule = plans_.ScheduleOf(passes.micro_batches);
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

void Trainer::ReleaseSources() {
  packer_.ReleaseSources();
  for (MicroBatchPacker* const other : {inner_packer_.get(), next_packer_.get()}) {
    if (other != nullptr) other->ReleaseSources();
  }
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
  step.scaled_lr = scheduler_.scaled_learning_rate();
  step.weight_decay = scheduler_.weight_decay();
  step.loss_scale = scaler_.scale();
  step.clip_grad = options_.clip_grad;
  step.stop_requested = requests.stop;
  step.log_requested = requests.log;
  if (diagnostics != nullptr) step.observer = diagnostics->update_observer();
  if (optimizer_->rule().averages_over_ranks()) step.average = data_parallel_.get();
  if (outer_ != nullptr) step.islands = &groups_.data_context_replicas;
  step.prompt_updates = options_.prompt_updates;
  const absl::StatusOr<StepResult> updated = optimizer_->Step(step, island_, stream_);
  MEGATRON_RETURN_IF_ERROR(WithExitCode(buffers_->status(), kExitIo));
  if (updated.ok() && !updated->finite) data_parallel_->ForgetStep();
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

absl::Status Trainer::FinishUpdate(StepReport* report) {
  const bool applied = report->update.applied;
  bool joined = false;
  if (options_.islands.enabled()) {
    MEGATRON_ASSIGN_OR_RETURN(joined, FinishRound(report));
  } else if (outer_ != nullptr) {
    joined = outer_->FinishStep(progress_.iteration + 1, stream_);
  }
  // Weights that are sent as codes have the scales of the next step.
  if (applied) stage_->float8_history().Record(stream_, data_parallel_->LargestFloat8Weights());
  if (report->update.weights_changed || joined) {
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

absl::Status Trainer::RunPasses(const Passes& passes) {
  if (passes.executed != nullptr) call_record_->Start();
  {
    const TraceSpan span(stream_, TimeCategory::kOptimizer, "zero gradients");
    if (passes.diagnostics != nullptr)
      passes.diagnostics->StartStep(passes.micro_batches, scaler_.scale());
    data_parallel_->StartStep(
        passes.micro_batches, progress_.iteration,
        optimizer_->rule().StepAfter(optimizer_->applied_steps()) != RankStep::kSum,
        optimizer_->gradients_taken());
    if (options_.placement.last()) ops::Zero(stream_, stage_->loss_sums());
    if (source_losses_ != nullptr) source_losses_->StartStep(stream_);
    if (qk_clip_ != nullptr) qk_clip_->StartStep(stream_);
    stage_->router_state().StartStep(stream_);
    stage_->float8_history().StartStep(stream_);
  }
  {
    const TraceSpan span(stream_, TimeCategory::kOther, "forward-backward");
    MEGATRON_RETURN_IF_ERROR(RunPipeline(passes));
  }
  rank_progress_->Enter(Phase::kReduce);
  if (passes.executed != nullptr && KeepsOwnGradients()) {
    passes.executed->local = ChecksumOfGradients(/*all=*/true, /*finite=*/nullptr);
    passes.executed->local_at = call_record_->Now();
  }
  measures_.Start(/*training=*/true);
  if (passes.read_ahead) ReadAhead(*passes.source, GlobalBatchSize());
  {
    const TraceSpan span(stream_, DataCategory(groups_), "reduce gradients");
    data_parallel_->FinalizeGradients();
  }
  stage_->float8_history().StartReduce({groups_.tensor, groups_.data_context}, stream_);
  if (passes.executed != nullptr) {
    ExecutedStep& executed = *passes.executed;
    executed.calls = call_record_->Stop();
    executed.loss = measures_.Finish().loss;
    executed.reduced = ChecksumOfGradients(/*all=*/false, &executed.finite);
    if (options_.rerun.gradients_may_overflow) executed.finite = true;
    executed.finite = executed.finite && std::isfinite(executed.loss);
  }
  return GroupStatus();
}

// Weights that the update reads leave the device when it starts. They have arrived by then.
void Trainer::UpdateAhead() {
  const bool reads_weights = !buffers_->has_masters();
  if (stream_.device().type == DeviceType::kCuda && optimizer_->pending().exists && reads_weights)
    data_parallel_->WaitForWeights();
  optimizer_->StartPendingUpdate();
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
  Diagnostics* const diagnostics = NextDiagnostics();
  rank_progress_->SetIteration(progress_.iteration + 1);
  const TraceSpan step_span(stream_, TimeCategory::kOther, "step", progress_.iteration + 1);
  rank_progress_->Enter(Phase::kData);
  {
    const TraceSpan span(stream_, TimeCategory::kData, "data");
    MEGATRON_RETURN_IF_ERROR(Pack(source, packed));
  }
  ExecutedStep executed;
  MEGATRON_RETURN_IF_ERROR(
      RunPasses({&source, &packer_, packed.micro_batches, diagnostics,
                 /*read_ahead=*/true, validator_ == nullptr ? nullptr : &executed}));
  if (options_.data_parallel.sent_elements_vary()) report.sent_gradients = SentGradients();
  if (validator_ != nullptr) {
    MEGATRON_ASSIGN_OR_RETURN(report.rerun, ValidateStep(source, packed, diagnostics, executed));
  }
  rank_progress_->Enter(Phase::kSave);
  StepRequests requests;
  if (before_update) {
    const TraceSpan span(stream_, TimeCategory::kCheckpoint, "wait for checkpoint");
    requests = before_update();
  }
  rank_progress_->Enter(Phase::kUpdate);
  const TraceSpan update_span(stream_, TimeCategory::kOptimizer, "optimizer");
  MEGATRON_ASSIGN_OR_RETURN(report.update, Update(requests, diagnostics));
  absl::Status finished = FinishStep(diagnostics, &report);
  // A GPU may never do what it was given before the error.
  if (!finished.ok() && stream_.device().type != DeviceType::kCpu) return finished;
  static_cast<Measured&>(report) = measures_.Finish();
  measures_.ReportSources(&report);
  measures_.ReportRouterLosses(&report);
  scaler_.Update(!report.update.finite);
  if (report.update.applied) scheduler_.Advance(report.global_batch_size);
  report.learning_rate = scheduler_.learning_rate();
  report.decoupled_learning_rate = scheduler_.decoupled_learning_rate();
  PassOverIteration();
  if (finished.ok() && progress_.iteration % options_.shard_copy_interval == 0)
    finished = CopyShards(evaluated_iteration_);
  if (finished.ok()) return report;
  made_step_ = std::move(report);
  return finished;
}

absl::Status Trainer::CopyShards(int64_t evaluated_iteration) {
  evaluated_iteration_ = evaluated_iteration;
  if (shard_copies_ == nullptr || shard_copies_->iteration() == progress_.iteration)
    return absl::OkStatus();
  const TraceSpan span(stream_, TimeCategory::kDataParallel, "copy shards");
  MEGATRON_RETURN_IF_ERROR(
      shard_copies_->Take(common_state(evaluated_iteration), UpdateNumbers(), stream_));
  return GroupStatus();
}

void Trainer::NoteEvaluation() {
  evaluated_iteration_ = progress_.iteration;
  if (shard_copies_ != nullptr && shard_copies_->iteration() == progress_.iteration)
    shard_copies_->Update(common_state(evaluated_iteration_));
}

CommonState Trainer::common_state(int64_t evaluated_iteration) const {
  return {progress_,
          scheduler_.state(),
          scaler_.state(),
          optimizer_->applied_steps(),
          optimizer_->pending(),
          evaluated_iteration};
}

std::vector<float> Trainer::UpdateNumbers() {
  std::vector<float> numbers;
  for (size_t i = 0; i < buffers_->parameters().size(); ++i) {
    for (float number : optimizer_->NumbersOf(i)) numbers.push_back(number);
  }
  return numbers;
}

absl::Status Trainer::FinishStep(Diagnostics* diagnostics, StepReport* report) {
  if (options_.log_num_zeros_in_grad)
    report->num_zeros = optimizer_->CountZeroGradients(island_, stream_);
  std::optional<double> largest_score;
  if (qk_clip_ != nullptr && report->update.applied)
    largest_score = qk_clip_->Clip(island_.world, stream_);
  MEGATRON_RETURN_IF_ERROR(FinishUpdate(report));
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
  const StagePlan plan = plans_.Forward(packed.micro_batches);
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
  measures_.Start(/*training=*/false);
  const Measured measured = measures_.Finish();
  UseCommonWeights(false);
  MEGATRON_RETURN_IF_ERROR(GroupStatus());
  return measured;
}

}  // namespace megatron
