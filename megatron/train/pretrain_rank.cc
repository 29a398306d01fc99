#include "megatron/train/pretrain_rank.h"

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/process_groups.h"
#include "megatron/comm/rank_grid.h"
#include "megatron/models/text_generator.h"
#include "megatron/train/failure/stop_signals.h"
#include "megatron/train/text/masked_text.h"
#include "megatron/train/text/restored_text.h"
#include "megatron/train/text/text_stream.h"
#include "megatron/train/trainer/consensus.h"
#include "megatron/train/trainer/training_loop.h"

namespace megatron {
namespace {

// What other ranks did comes before what this one was doing.
ExitCode CodeOf(const absl::Status& status, ExitCode own) {
  if (status.code() == absl::StatusCode::kDeadlineExceeded) return kExitHang;
  const bool others = status.code() == absl::StatusCode::kUnavailable ||
                      status.code() == absl::StatusCode::kAborted;
  return others ? kExitPeerLost : own;
}

}  // namespace

PretrainRank::PretrainRank(const PretrainRun& run, const ProcessGroup& world, FirstFailure* failure)
    : run_(run),
      world_(world),
      failure_(failure),
      progress_(
          run.on_piece == nullptr
              ? std::function<void(Phase)>()
              : [this](Phase phase) { run_.on_piece({world_, progress_.iteration(), phase}); }),
      console_(is_reporting_rank(), &progress_),
      fs_(run.fs, &progress_),
      pool_(run.threads_per_rank),
      stream_(Stream::Cpu(&pool_)) {
  if (run.options.device == DeviceType::kCuda) {
    const int device = DeviceOfRank(run.local_rank.value_or(world.rank()));
    cuda_ = std::make_unique<CudaStream>(device);
    stream_ = Stream::Cuda(device, cuda_.get());
  }
  if (profiled()) stream_ = trace_.Follow(stream_, "compute");
}

PretrainRank::~PretrainRank() {
  if (nccl_ != nullptr) run_.device_calls->Set(world_.rank(), nullptr);
}

// All ranks for what is on their devices.
absl::StatusOr<std::shared_ptr<Communicator>> PretrainRank::LinkDevices() {
  if (!run_.links.nccl) return world_.communicator();
  NcclWorldOptions options;
  options.device = stream_.device().index;
  options.connect_deadline = run_.options.ranks.start_timeout;
  options.deadline = run_.options.ranks.timeout;
  options.sum_in_rank_order = run_.options.ranks.sum_in_rank_order;
  options.compare_calls = run_.options.ranks.check_collectives;
  MEGATRON_ASSIGN_OR_RETURN(nccl_,
                            NcclWorld::Create(NcclLibrary(), world_.communicator(), options));
  run_.device_calls->Set(world_.rank(), [nccl = nccl_.get()] { return nccl->PendingCalls(); });
  return nccl_->communicator();
}

absl::Status PretrainRank::Build() {
  const RunOptions& options = run_.options;
  const int size = options.num_ranks();
  MEGATRON_ASSIGN_OR_RETURN(const RankGrid dense, RankGrid::Create(options.parallel, size));
  MEGATRON_ASSIGN_OR_RETURN(const RankGrid expert, RankGrid::CreateExpert(options.parallel, size));
  MEGATRON_ASSIGN_OR_RETURN(const std::shared_ptr<Communicator> ranks, LinkDevices());
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

absl::Status PretrainRank::Start(ExitCode* code) {
  if (run_.checkpoint == nullptr) {
    trainer_->InitializeWeights(run_.options.seed);
    return absl::OkStatus();
  }
  const CheckpointReader& checkpoint = *run_.checkpoint;
  absl::Status status;
  {
    const RankProgress::ExternalWait reading(&progress_);
    status = RestoreCheckpoint(checkpoint, run_.restore, run_.description, trainer_.get());
  }
  if (status.code() == absl::StatusCode::kFailedPrecondition) {
    *code = kExitConfig;
    return status;
  }
  *code = kExitCorruptCheckpoint;
  MEGATRON_RETURN_IF_ERROR(status, _ << "to continue from the checkpoint before it move "
                                     << checkpoint.directory() << " away");
  console_.PrintLine(absl::StrCat(
      run_.restore == Restore::kWeights ? "starting from the weights of " : "continuing from ",
      checkpoint.directory(), " at iteration ", trainer_->progress().iteration));
  return absl::OkStatus();
}

ExitCode PretrainRank::Train() {
  TrainingLoop::Context context;
  context.options = &run_.options;
  context.data = &run_.data;
  context.run = run_.description;
  context.speed = run_.speed;
  context.program_start = run_.program_start;
  context.saving = saving_;
  context.console = &console_;
  context.profile.options = run_.options.profile;
  context.profile.world = world_;
  context.profile.trace = profiled() ? &trace_ : nullptr;
  context.profile.ledger = &ledger_;
  context.profile.planned = run_.plan.stages[trainer_->options().placement.stage].memory;
  context.failure = failure_;
  context.progress = &progress_;
  return TrainingLoop(context, fs_, trainer_.get()).Run();
}

void PretrainRank::FillMasks() {
  constexpr int kGuesses = 3;
  TextGenerator model = trainer_->MakeGenerator(&ledger_);
  const absl::StatusOr<FilledText> filled =
      megatron::FillMasks(run_.options.generation.prompt, kGuesses, *run_.tokenizer,
                          run_.options.data.seq_length, &model);
  console_.Print("--- the model fills in ---\n");
  console_.Print(filled.ok()
                     ? absl::StrCat(filled->text, "\n", FormatGuesses(*filled))
                     : absl::StrCat("generation.prompt: ", filled.status().message(), "\n"));
}

void PretrainRank::Restore() {
  const TrainerOptions& options = run_.options.trainer;
  RestoreOptions how;
  how.sampling = run_.options.generation.sampling;
  how.tokens = run_.options.generation.tokens;
  how.limits = {options.model.vocab_size, options.max_generation_context,
                options.max_encoder_context};
  Consensus consensus(world_);
  TextGenerator model = trainer_->MakeGenerator(&ledger_);
  const absl::StatusOr<RestoredText> restored =
      RestoreText(run_.options.generation.prompt, *run_.tokenizer, how, &model,
                  [&] { return !consensus.Any(StopSignal() != 0); });
  console_.Print("--- the model restores ---\n");
  console_.Print(restored.ok()
                     ? absl::StrCat(restored->text, "\n", FormatSpans(*restored))
                     : absl::StrCat("generation.prompt: ", restored.status().message(), "\n"));
}

void PretrainRank::Generate() {
  progress_.Enter(Phase::kGenerate);
  if (run_.options.trainer.model.kind == ModelKind::kBert) return FillMasks();
  if (run_.options.trainer.model.kind == ModelKind::kT5) return Restore();
  const GenerationOptions& generation = run_.options.generation;
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
  ExitCode code = kExitConfig;
  absl::Status status = Build();
  if (status.ok()) status = Start(&code);
  if (!world_.status().ok()) code = kExitPeerLost;
  if (!status.ok()) return failure_->Set(CodeOf(status, code), std::string(status.message()));
  code = Train();
  const bool finished = trainer_->progress().iteration >= run_.options.loop.train_iters;
  if (code == kExitDone && finished && run_.options.generation.enabled) Generate();
  if (failure_->Get().has_value()) return code;  // the others do not come
  // While all are here a rank that hangs at the end is missed.
  progress_.Enter(Phase::kLeave);
  world_.Barrier(Stream::Cpu(&pool_));
  status = world_.status();
  if (status.ok()) return code;
  return failure_->Set(CodeOf(status, kExitPeerLost), std::string(status.message()));
}

}  // namespace megatron
