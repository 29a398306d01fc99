#include "megatron/train/rank/pretrain_rank.h"

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/process_groups.h"
#include "megatron/comm/rank_grid.h"
#include "megatron/models/text_generator.h"
#include "megatron/train/failure/exit_status.h"
#include "megatron/train/failure/stop_signals.h"
#include "megatron/train/text/masked_text.h"
#include "megatron/train/text/restored_text.h"
#include "megatron/train/text/text_stream.h"
#include "megatron/train/trainer/consensus.h"
#include "megatron/train/trainer/training_loop.h"

namespace megatron {
PretrainRank::PretrainRank(const PretrainRun& run, const ProcessGroup& world, FirstFailure* failure)
    : run_(run),
      world_(world),
      failure_(failure),
      progress_(
          run.on_piece == nullptr
              ? std::function<void(Phase)>()
              : [this](Phase phase) { run_.on_piece({world_, progress_.iteration(), phase}); }),
      console_(prints(), &progress_),
      fs_(run.fs, &progress_),
      pool_(run.threads_per_rank),
      stream_(Stream::Cpu(&pool_)) {
  if (run.options().device == DeviceType::kCuda) {
    const int device = DeviceOfRank(run.local_rank.value_or(world.rank()));
    cuda_ = std::make_unique<CudaStream>(device);
    stream_ = Stream::Cuda(device, cuda_.get());
  }
  if (profiled()) stream_ = trace_.Follow(stream_, "compute");
}

PretrainRank::~PretrainRank() {
  if (nccl_ != nullptr) run_.device_calls->Set(world_.rank(), nullptr);
}

absl::StatusOr<std::shared_ptr<Communicator>> PretrainRank::MakeDeviceCommunicator() {
  if (!run_.links.nccl) return world_.communicator();
  NcclWorldOptions world;
  world.device = stream_.device().index;
  world.connect_deadline = options().ranks.start_timeout;
  world.deadline = options().ranks.timeout;
  world.sum_in_rank_order = options().ranks.sum_in_rank_order;
  world.compare_calls = options().ranks.check_collectives;
  MEGATRON_ASSIGN_OR_RETURN(nccl_,
                            NcclWorld::Create(NcclLibrary(), world_.communicator(), world));
  run_.device_calls->Set(world_.rank(), [nccl = nccl_.get()] { return nccl->Doing(); });
  return nccl_->communicator();
}

absl::Status PretrainRank::BuildTrainer() {
  const RunOptions& options = run_.options();
  const int size = options.num_ranks();
  MEGATRON_ASSIGN_OR_RETURN(const RankGrid dense, RankGrid::Create(options.parallel, size));
  MEGATRON_ASSIGN_OR_RETURN(const RankGrid expert, RankGrid::CreateExpert(options.parallel, size));
  MEGATRON_ASSIGN_OR_RETURN(const std::shared_ptr<Communicator> ranks, MakeDeviceCommunicator());
  MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups groups, MakeGroups(dense, expert, ranks));
  if (size > 1) {
    std::vector<std::vector<int>> all(1, std::vector<int>(size));
    std::iota(all[0].begin(), all[0].end(), 0);
    MEGATRON_ASSIGN_OR_RETURN(std::shared_ptr<Communicator> saving,
                              world_.communicator()->Split(all, "checkpoint"));
    saving_ = ProcessGroup(std::move(saving));
  }
  MEGATRON_ASSIGN_OR_RETURN(const LossScaler scaler, MakeLossScaler(options.precision));
  const int stage = dense.Coordinate(world_.rank(), Axis::kPipeline),
            data_rank = dense.Coordinate(world_.rank(), Axis::kData);
  MEGATRON_ASSIGN_OR_RETURN(trainer_,
                            Trainer::Create(options.TrainerOf(stage, data_rank), scaler, groups,
                                            run_.plan.stages[stage].sizes, stream_, &ledger_));
  trainer_->ReportTo(&progress_);
  return absl::OkStatus();
}

absl::Status PretrainRank::RestoreOrInitialize() {
  if (run_.start.checkpoint == nullptr) {
    trainer_->InitializeWeights(options().seed);
    return absl::OkStatus();
  }
  const CheckpointReader& checkpoint = *run_.start.checkpoint;
  absl::Status status;
  {
    const RankProgress::Outside reading(&progress_);
    status = RestoreCheckpoint(checkpoint, run_.start.restore, run_.training.description,
                               trainer_.get());
  }
  // The checkpoint is another model's or run's.
  if (status.code() == absl::StatusCode::kFailedPrecondition)
    return WithExitCode(status, kExitConfig);
  MEGATRON_RETURN_IF_ERROR(
      WithExitCodeOfRank(status, kExitCorruptCheckpoint),
      _ << "to continue from the checkpoint before it move " << checkpoint.directory() << " away");
  console_.PrintLine(
      absl::StrCat(run_.start.restore == Restore::kWeights ? "starting from the weights of "
                                                           : "continuing from ",
                   checkpoint.directory(), " at iteration ", trainer_->progress().iteration));
  return absl::OkStatus();
}

absl::Status PretrainRank::Prepare() {
  MEGATRON_RETURN_IF_ERROR(WithExitCodeOfRank(BuildTrainer(), kExitConfig));
  return RestoreOrInitialize();
}

ExitCode PretrainRank::Train() {
  TrainingLoop::Rank rank;
  rank.saving = saving_;
  rank.profile.options = options().profile;
  rank.profile.world = world_;
  rank.profile.trace = profiled() ? &trace_ : nullptr;
  rank.profile.ledger = &ledger_;
  rank.profile.planned = run_.plan.stages[trainer_->options().placement.stage].memory;
  rank.console = &console_;
  rank.progress = &progress_;
  rank.failure = failure_;
  return TrainingLoop(run_.training, rank, fs_, trainer_.get()).Run();
}

void PretrainRank::FillMasks() {
  constexpr int kGuesses = 3;
  TextGenerator model = trainer_->MakeGenerator(&ledger_);
  const absl::StatusOr<FilledText> filled = megatron::FillMasks(
      options().generation.prompt, kGuesses, *run_.tokenizer, options().data.seq_length, &model);
  console_.Print("--- the model fills in ---\n");
  console_.Print(filled.ok()
                     ? absl::StrCat(filled->text, "\n", FormatGuesses(*filled))
                     : absl::StrCat("generation.prompt: ", filled.status().message(), "\n"));
}

void PretrainRank::RestoreGaps() {
  const TrainerOptions& trainer = options().trainer;
  RestoreOptions how;
  how.sampling = options().generation.sampling;
  how.tokens = options().generation.tokens;
  how.limits = {trainer.model.vocab_size, trainer.max_generation_context,
                trainer.max_encoder_context};
  Consensus consensus(world_);
  TextGenerator model = trainer_->MakeGenerator(&ledger_);
  const absl::StatusOr<RestoredText> restored =
      RestoreText(options().generation.prompt, *run_.tokenizer, how, &model,
                  [&] { return !consensus.Any(StopSignal() != 0); });
  console_.Print("--- the model restores ---\n");
  console_.Print(restored.ok()
                     ? absl::StrCat(restored->text, "\n", FormatSpans(*restored))
                     : absl::StrCat("generation.prompt: ", restored.status().message(), "\n"));
}

void PretrainRank::Generate() {
  progress_.Enter(Phase::kGenerate);
  if (options().trainer.model.masked_lm_head) return FillMasks();
  if (options().trainer.model.num_encoder_layers > 0) return RestoreGaps();
  const GenerationOptions& generation = options().generation;
  const Tokenizer& tokenizer = *run_.tokenizer;
  std::vector<int32_t> tokens;
  const absl::Status encoded = tokenizer.Encode(generation.prompt, &tokens);
  if (!encoded.ok() || tokens.empty()) tokens.assign(1, tokenizer.eod());
  console_.Print("--- the model continues ---\n" + generation.prompt);
  TextStream text(tokenizer, tokens);
  Consensus consensus(world_);
  TextGenerator generator = trainer_->MakeGenerator(&ledger_);
  generator.Generate(generation.sampling, generation.tokens, &tokens, [&](int32_t token) {
    if (token == tokenizer.eod()) return false;
    progress_.Enter(Phase::kGenerate);  // the next one
    console_.Print(text.Add(token));
    return !consensus.Any(StopSignal() != 0) && world_.status().ok();
  });
  console_.Print("\n");
}

ExitCode PretrainRank::Run() {
  progress_.Start();
  absl::Status status = Prepare();
  if (!status.ok()) {
    // What other ranks did comes before what this one was doing.
    if (!world_.status().ok()) status = WithExitCodeOfRank(status, kExitPeerLost);
    return failure_->Set(status);
  }
  const ExitCode code = Train();
  const bool finished = trainer_->progress().iteration >= options().loop.train_iters;
  if (code == kExitDone && finished && options().generation.enabled) Generate();
  if (!failure_->Get().ok()) return code;  // the others do not come
  // While all ranks are here, one that hangs at the end is noticed.
  progress_.Enter(Phase::kLeave);
  world_.Barrier(Stream::Cpu(&pool_));
  status = world_.status();
  return status.ok() ? code : failure_->Set(WithExitCodeOfRank(status, kExitPeerLost));
}

}  // namespace megatron
