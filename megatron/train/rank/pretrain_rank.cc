#include "megatron/train/rank/pretrain_rank.h"

#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "megatron/base/quantity.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/steady_now.h"
#include "megatron/comm/communicator.h"
#include "megatron/comm/process_groups.h"
#include "megatron/comm/rank_grid.h"
#include "megatron/comm/recorded_communicator.h"
#include "megatron/optim/compression/gradient_compressor.h"
#include "megatron/train/failure/exit_status.h"
#include "megatron/train/failure/stop_signals.h"
#include "megatron/train/metrics/outer_round.h"
#include "megatron/train/rank/closing.h"
#include "megatron/train/rank/generate_text.h"
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
              : [this](Phase phase) {
                  run_.on_piece({world_, progress_.iteration(), phase,
                                 trainer_ == nullptr ? nullptr : &trainer_->buffers()});
                }),
      console_(is_reporting_rank(), &progress_),
      fs_(run.fs, &progress_),
      pool_(run.threads_per_rank),
      stream_(Stream::Cpu(&pool_)) {
  if (run.options().device == DeviceType::kCuda) {
    const int device = DeviceOfRank(run.local_rank.value_or(world.rank()));
    cuda_ = std::make_unique<CudaStream>(device);
    stream_ = Stream::Cuda(device, cuda_.get());
  }
  stream_ = trace_.Follow(stream_, "compute");
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
  MEGATRON_ASSIGN_OR_RETURN(nccl_, NcclWorld::Create(NcclLibrary(), world_.communicator(), world));
  run_.device_calls->Set(world_.rank(), [nccl = nccl_.get()] { return nccl->PendingCalls(); });
  return nccl_->communicator();
}

absl::Status PretrainRank::BuildTrainer() {
  const RunOptions& options = run_.options();
  const int size = options.num_ranks();
  MEGATRON_ASSIGN_OR_RETURN(const RankGrid dense, RankGrid::Create(options.parallel, size));
  MEGATRON_ASSIGN_OR_RETURN(const RankGrid expert, RankGrid::CreateExpert(options.parallel, size));
  MEGATRON_ASSIGN_OR_RETURN(std::shared_ptr<Communicator> ranks, MakeDeviceCommunicator());
  if (options.trainer.rerun.enabled() && size > 1) ranks = Recorded(std::move(ranks), &calls_);
  MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups groups, MakeGroups(dense, expert, ranks));
  if (size > 1) {
    std::vector<std::vector<int>> all(1, std::vector<int>(size));
    std::iota(all[0].begin(), all[0].end(), 0);
    MEGATRON_ASSIGN_OR_RETURN(std::shared_ptr<Communicator> saving,
                              world_.communicator()->Split(all, "checkpoint"));
    saving_ = ProcessGroup(std::move(saving));
    if (!options.checkpoint.local_save.empty()) {
      MEGATRON_ASSIGN_OR_RETURN(std::shared_ptr<Communicator> local,
                                world_.communicator()->Split(all, "local-checkpoint"));
      local_saving_ = ProcessGroup(std::move(local));
    }
  }
  MEGATRON_ASSIGN_OR_RETURN(const LossScaler scaler, MakeLossScaler(options.precision));
  const int stage = dense.Coordinate(world_.rank(), Axis::kPipeline),
            data_rank = dense.Coordinate(world_.rank(), Axis::kData);
  TrainerOptions trainer = options.TrainerOf(stage, data_rank);
  trainer.host_threads = run_.threads_per_rank;
  trainer.host = run_.host;
  MEGATRON_ASSIGN_OR_RETURN(
      trainer_,
      Trainer::Create(trainer, scaler, groups, run_.plan.stages[stage].sizes, stream_, &ledger_));
  trainer_->ReportTo(&progress_);
  trainer_->RecordCallsIn(&calls_);
  if (const StateFile* const file = trainer_->buffers().state_file()) {
    console_.PrintLine(absl::StrCat("optimizer states: ", FormatBytes(file->bytes()),
                                    " of the first rank in a file in ", trainer.state_directory,
                                    ", by ", file->method()));
  }
  if (const StateFile* const file = trainer_->buffers().weight_file()) {
    console_.PrintLine(absl::StrCat("weights: ", FormatBytes(file->bytes()),
                                    " of the first rank in a file in ", trainer.weight_directory,
                                    ", by ", file->method()));
  }
  DescribeCompression();
  return absl::OkStatus();
}

void PretrainRank::DescribeCompression() {
  const GradientCompressor* const compressor = trainer_->data_parallel().compressor();
  if (compressor == nullptr || compressor->dense_elements() == 0) return;
  const GradientCompressionOptions& compression = trainer_->options().data_parallel.compression;
  const std::string elements =
      absl::StrCat(FormatCount(compressor->dense_elements()), " of ",
                   FormatCount(compressor->elements()), " elements of the last rank's gradients");
  if (compression.type == CompressionType::kOneBit) {
    console_.PrintLine(absl::StrCat(elements,
                                    " are of tensors that are too small for signs, and are "
                                    "averaged as they are"));
  } else if (compressor->dense_elements() < compressor->elements()) {
    console_.PrintLine(absl::StrCat(elements,
                                    " are summed as they are: biases, norms and matrices that "
                                    "would not get smaller by more than a factor of "
                                    "gradient_compression.min_compression_rate = ",
                                    compression.min_compression_rate));
  } else {
    console_.Warn(
        absl::StrCat("gradient_compression.type = powersgd compresses no matrix, and all gradients "
                     "are summed as "
                     "they are: none would get smaller by more than a factor of "
                     "gradient_compression.min_compression_rate = ",
                     compression.min_compression_rate,
                     " with gradient_compression.matrix_approximation_rank = ", compression.rank));
  }
}

absl::Status PretrainRank::TakeOver() {
  const StateInMemory& state = *run_.state_in_memory;
  MEGATRON_ASSIGN_OR_RETURN(evaluated_iteration_,
                            RestoreKeptState(run_.kept->Of(state), state, trainer_.get()));
  return absl::OkStatus();
}

absl::Status PretrainRank::RestoreOrInitialize() {
  if (run_.state_in_memory) return TakeOver();
  if (run_.start.checkpoint == nullptr) {
    trainer_->InitializeWeights(options().seed);
    return WithExitCode(trainer_->buffers().status(), kExitIo);
  }
  const CheckpointReader& checkpoint = *run_.start.checkpoint;
  // A model that is tuned has no adapters, and no head of a classifier: they keep what they begin
  // with.
  const ModelOptions& model = options().trainer.model;
  const bool may_lack = model.transformer.lora.dim > 0 || model.num_classes > 0;
  if (run_.start.restore == Restore::kWeights && may_lack)
    trainer_->InitializeWeights(options().seed);
  PeerFiles* const others = run_.start.peer_files.get();
  absl::Status status;
  std::vector<std::string> warnings;
  {
    const RankProgress::ExternalWait reading(&progress_);
    if (others != nullptr && others->is_spread()) others->Start(local_saving_);
    status = RestoreCheckpoint(checkpoint, run_.start.restore, run_.training.description,
                               trainer_.get(), &warnings);
    if (others != nullptr) others->Finish(status.ok());
  }
  MEGATRON_RETURN_IF_ERROR(WithExitCode(trainer_->buffers().status(), kExitIo));
  // The checkpoint is another model's or run's.
  if (status.code() == absl::StatusCode::kFailedPrecondition)
    return WithExitCode(status, kExitConfig);
  MEGATRON_RETURN_IF_ERROR(
      WithExitCodeOfRank(status, kExitCorruptCheckpoint),
      _ << "to continue from the checkpoint before it move " << checkpoint.directory() << " away");
  console_.PrintLine(absl::StrCat(
      BeginsRun(run_.start.restore) ? "starting from the weights of " : "continuing from ",
      checkpoint.directory(), " at iteration ", trainer_->progress().iteration));
  for (const std::string& warning : warnings) console_.Warn(warning);
  return absl::OkStatus();
}

absl::Status PretrainRank::Prepare() {
  MEGATRON_RETURN_IF_ERROR(WithExitCodeOfRank(BuildTrainer(), kExitConfig));
  MEGATRON_RETURN_IF_ERROR(RestoreOrInitialize());
  MEGATRON_RETURN_IF_ERROR(trainer_->CopyShards(evaluated_iteration_.value_or(-1)));
  has_state_ = true;
  // One that comes out of this knows that all have their copies, and one that is held up in it does
  // not: it keeps both.
  if (trainer_->shard_copies() != nullptr) {
    world_.Barrier(Stream::Cpu(&pool_));
    MEGATRON_RETURN_IF_ERROR(world_.status());
  }
  all_have_state_ = true;
  if (run_.kept != nullptr) run_.kept->ForgetState();
  MEGATRON_ASSIGN_OR_RETURN(const std::optional<IslandLink::Round> joined,
                            trainer_->JoinIslands([] { return StopSignal() != 0; }));
  if (joined) console_.PrintLine(DescribeJoining(*joined));
  return absl::OkStatus();
}

ExitCode PretrainRank::Train() {
  TrainingLoop::Rank rank;
  rank.saving = saving_;
  rank.local_saving = local_saving_;
  rank.profile.options = options().profile;
  rank.profile.world = world_;
  rank.profile.trace = profiled() ? &trace_ : nullptr;
  rank.profile.ledger = &ledger_;
  rank.profile.planned = run_.plan.stages[trainer_->options().placement.stage].all_memory();
  rank.trace = &trace_;
  rank.console = &console_;
  rank.progress = &progress_;
  rank.failure = failure_;
  rank.evaluated_iteration = evaluated_iteration_;
  TrainingLoop loop(run_.training, rank, fs_, trainer_.get());
  const ExitCode code = loop.Run();
  totals_ = loop.totals();
  makes_room_ = loop.makes_room();
  evaluated_iteration_ = loop.evaluated_iteration();
  last_step_ = loop.last_step();
  unwritten_metrics_ = loop.unwritten_metrics();
  return code;
}

void PretrainRank::Keep(KeptRank* kept) {
  if (!has_state_) return;
  std::optional<KeptState> mine = KeepState(*trainer_, evaluated_iteration_.value_or(-1));
  if (all_have_state_ || !run_.state_in_memory) {
    kept->Keep(std::move(mine));
  } else {
    kept->KeepBeside(*run_.state_in_memory, std::move(mine));
  }
  if (last_step_) kept->last_step = last_step_;
  if (unwritten_metrics_) kept->unwritten_metrics = *std::move(unwritten_metrics_);
}

void PretrainRank::PrintClosing(ExitCode code) {
  RunEnd end;
  end.code = code;
  end.iteration = trainer_->progress().iteration;
  end.budget_spent = trainer_->budget_spent();
  end.totals = totals_;
  end.peak_bytes = Consensus(world_).Max(ledger_.peak_bytes());
  end.elapsed = SteadyNow() - run_.training.program_start;
  if (world_.status().ok()) console_.Print(FormatClosing(run_, end));
}

ExitCode PretrainRank::Run() {
  progress_.Start();
  absl::Status status = Prepare();
  if (!status.ok()) {
    // A failure of other ranks counts before what this one was doing.
    if (!world_.status().ok()) status = WithExitCodeOfRank(status, kExitPeerLost);
    return failure_->Set(status);
  }
  const ExitCode code = Train();
  if (makes_room_) return code;
  const bool finished = trainer_->progress().iteration >= options().loop.train_iters;
  if (code == kExitDone && finished && options().generation.enabled)
    GenerateText(run_, world_, &ledger_, trainer_.get(), &console_, &progress_);
  if (!failure_->Get().ok()) return code;  // the others do not come
  // While all ranks are here, one that hangs at the end is noticed.
  progress_.Enter(Phase::kLeave);
  PrintClosing(code);
  world_.Barrier(Stream::Cpu(&pool_));
  status = world_.status();
  return status.ok() ? code : failure_->Set(WithExitCodeOfRank(status, kExitPeerLost));
}

}  // namespace megatron
