#include "megatron/train/pretrain.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "glog/logging.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/checkpoint/find_checkpoint.h"
#include "megatron/comm/process_groups.h"
#include "megatron/comm/rank_grid.h"
#include "megatron/comm/run_ranks.h"
#include "megatron/models/text_generator.h"
#include "megatron/ops/cpu/isa.h"
#include "megatron/train/config_loader.h"
#include "megatron/train/config_text.h"
#include "megatron/train/consensus.h"
#include "megatron/train/exit_code.h"
#include "megatron/train/failure.h"
#include "megatron/train/flops.h"
#include "megatron/train/run_lock.h"
#include "megatron/train/run_plan.h"
#include "megatron/train/stop_signals.h"
#include "megatron/train/text_stream.h"
#include "megatron/train/training_loop.h"

namespace megatron {
namespace {

int Report(const Failure& failure) {
  std::fflush(stdout);
  std::fprintf(stderr, "error: %s\n", failure.message.c_str());
  return failure.code;
}

Failure Fail(ExitCode code, const absl::Status& status) {
  return {code, std::string(status.message())};
}

void Say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

// Paths in a configuration start where the user stands.
void ResolvePaths(config::PretrainConfig* config) {
  auto resolve = [](std::string* path) {
    if (!path->empty()) *path = PathFromWhereTheUserStands(*path);
  };
  config::CheckpointConfig* checkpoint = config->mutable_checkpoint();
  if (checkpoint->has_save()) resolve(checkpoint->mutable_save());
  if (checkpoint->has_load()) resolve(checkpoint->mutable_load());
  config::LoggingConfig* logging = config->mutable_logging();
  if (logging->has_metrics_file()) resolve(logging->mutable_metrics_file());
}

// A directory that can't be written is found now, not at the first checkpoint.
absl::Status CheckWritable(FileSystem& fs, const std::string& directory) {
  MEGATRON_RETURN_IF_ERROR(fs.CreateDirs(directory));
  const std::string probe = absl::StrCat(directory, "/.write_test");
  MEGATRON_RETURN_IF_ERROR(WriteFileAtomically(fs, probe, "can this directory be written?\n"));
  return fs.Remove(probe);
}

// What the system could give this process without swapping; nothing where it does not tell.
std::optional<int64_t> AvailableBytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string name, unit;
  int64_t kilobytes = 0;
  while (meminfo >> name >> kilobytes >> unit) {
    if (name == "MemAvailable:") return kilobytes * 1024;
  }
  return std::nullopt;
}

// Checkpoints of two runs do not share a directory. Where this run continues from it, Restore says
// more.
absl::Status CheckThatNobodyElseSavesThere(FileSystem& fs, const CheckpointOptions& checkpoint,
                                           const std::string& run_id) {
  if (checkpoint.load == checkpoint.save) return absl::OkStatus();
  const absl::StatusOr<FoundCheckpoint> found = FindLatestCheckpoint(fs, checkpoint.save);
  if (!found.ok())
    return found.status().code() == absl::StatusCode::kNotFound ? absl::OkStatus() : found.status();
  MEGATRON_ASSIGN_OR_RETURN(const CheckpointReader reader,
                            CheckpointReader::Open(fs, found->directory));
  if (reader.manifest().run_id == run_id) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(found->directory,
                   " is a checkpoint of another run: give checkpoint.save a directory of its own"));
}

// Everything that a run needs and how it came to be; one of these lives as long as the program. Its
// ranks are threads that share what does not change.
class Pretraining {
 public:
  Pretraining(LoadedConfig loaded, absl::Time start) : loaded_(std::move(loaded)), start_(start) {}

  std::optional<Failure> Plan();
  int DryRun();
  int Run();

 private:
  // What a rank has for itself.
  struct Rank {
    Rank(int num_threads) : pool(num_threads) {}

    ProcessGroup world, saving;
    bool speaks = true;
    MemoryLedger ledger;
    ThreadPool pool;
    std::unique_ptr<GptTrainer> trainer;
  };

  std::optional<Failure> CheckMemory() const;
  std::optional<Failure> OpenData();
  std::optional<Failure> OpenSaveDirectory();
  absl::StatusOr<FoundCheckpoint> ChooseCheckpoint(megatron::Restore* what) const;
  std::optional<Failure> OpenCheckpoint();
  void Introduce() const;

  // Of one rank; what goes wrong is in failure_.
  absl::Status RunRank(int number, const ProcessGroup& world);
  absl::Status BuildRank(int number, Rank* rank) const;
  absl::Status RestoreRank(Rank* rank);
  ExitCode TrainRank(Rank* rank);
  void Generate(Rank* rank);
  // The status of its rank's end, which ends the others.
  absl::Status EndRank(ExitCode code, const absl::Status& status);

  LoadedConfig loaded_;
  absl::Time start_;
  FileSystem& fs_ = PosixFileSystem();
  std::unique_ptr<Tokenizer> tokenizer_;
  RunOptions options_;
  RunPlan plan_;
  GptData data_;
  RunDescription run_;
  RunLock lock_;
  std::optional<CheckpointReader> checkpoint_;  // to start from
  megatron::Restore restore_ = megatron::Restore::kEverything;
  FirstFailure failure_;
  ExitCode exit_code_ = kExitDone;  // of the rank that speaks
};

std::optional<Failure> Pretraining::Plan() {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      CreateTokenizer(ToTokenizerOptions(loaded_.config.data()));
  if (!tokenizer.ok()) return Fail(kExitConfig, tokenizer.status());
  tokenizer_ = *std::move(tokenizer);
  options_ = ToRunOptions(loaded_.config, tokenizer_->vocab_size());
  absl::StatusOr<RunPlan> plan = PlanRun(options_);
  if (!plan.ok()) return Fail(kExitConfig, plan.status());
  plan_ = *std::move(plan);
  return std::nullopt;
}

int Pretraining::DryRun() {
  Say(EffectiveConfigText(loaded_.config, loaded_.locations));
  Say(FormatRunPlan(loaded_.config, options_, plan_));
  return kExitDone;
}

std::optional<Failure> Pretraining::OpenData() {
  DataOptions& data_options = options_.data;
  for (std::vector<std::string>* path : {&data_options.data_path, &data_options.train_data_path,
                                         &data_options.valid_data_path}) {
    for (std::string& part : *path) {
      double weight;
      if (!absl::SimpleAtod(part, &weight)) part = PathFromWhereTheUserStands(part);
    }
  }
  if (!data_options.cache_path.empty())
    data_options.cache_path = PathFromWhereTheUserStands(data_options.cache_path);
  absl::StatusOr<GptData> data = OpenGptData(options_.data, *tokenizer_);
  if (!data.ok()) return Fail(kExitData, data.status());
  data_ = *std::move(data);
  return std::nullopt;
}

std::optional<Failure> Pretraining::OpenSaveDirectory() {
  run_.identity = RunIdentity(loaded_.config, data_.fingerprint);
  run_.config_text = EffectiveConfigText(loaded_.config);
  if (options_.checkpoint.save.empty()) return std::nullopt;
  const absl::Status writable = CheckWritable(fs_, options_.checkpoint.save);
  if (!writable.ok()) {
    return Failure{kExitIo, absl::StrCat("checkpoint.save = ", options_.checkpoint.save, ": ",
                                         writable.message())};
  }
  absl::StatusOr<RunLock> lock = RunLock::Take(options_.checkpoint.save);
  if (!lock.ok()) {
    const bool taken = lock.status().code() == absl::StatusCode::kFailedPrecondition;
    return Fail(taken ? kExitConfig : kExitIo, lock.status());
  }
  lock_ = *std::move(lock);
  const absl::Status ours =
      CheckThatNobodyElseSavesThere(fs_, options_.checkpoint, RunId(run_.identity));
  if (ours.ok()) return std::nullopt;
  const bool another = ours.code() == absl::StatusCode::kFailedPrecondition;
  return Fail(another ? kExitConfig : kExitCorruptCheckpoint, ours);
}

// What this run has saved itself comes before what it was started from, so that the same command
// continues it.
absl::StatusOr<FoundCheckpoint> Pretraining::ChooseCheckpoint(megatron::Restore* what) const {
  const CheckpointOptions& checkpoint = options_.checkpoint;
  *what = megatron::Restore::kEverything;
  if (!checkpoint.save.empty() && checkpoint.save != checkpoint.load) {
    absl::StatusOr<FoundCheckpoint> own = FindLatestCheckpoint(fs_, checkpoint.save);
    if (own.ok() || own.status().code() != absl::StatusCode::kNotFound) return own;
  }
  if (checkpoint.load.empty()) return absl::NotFoundError("no checkpoint is asked for");
  if (checkpoint.no_load_optim) *what = megatron::Restore::kWithoutOptimizer;
  if (checkpoint.finetune) *what = megatron::Restore::kWeights;
  return LocateCheckpoint(fs_, checkpoint.load);
}

std::optional<Failure> Pretraining::OpenCheckpoint() {
  const CheckpointOptions& checkpoint = options_.checkpoint;
  const absl::StatusOr<FoundCheckpoint> found = ChooseCheckpoint(&restore_);
  if (!found.ok() && found.status().code() != absl::StatusCode::kNotFound) {
    const bool damaged = found.status().code() == absl::StatusCode::kDataLoss;
    return Fail(damaged ? kExitCorruptCheckpoint : kExitIo, found.status());
  }
  if (!found.ok()) {
    if (checkpoint.load == checkpoint.save) return std::nullopt;
    return Failure{kExitConfig,
                   absl::StrCat("checkpoint.load = ", checkpoint.load,
                                ": there is no checkpoint; unset it to start from the beginning (",
                                found.status().message(), ")")};
  }
  for (const std::string& warning : found->warnings) Say(absl::StrCat("WARNING: ", warning));
  absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(fs_, found->directory);
  if (!reader.ok()) return Fail(kExitCorruptCheckpoint, reader.status());
  checkpoint_ = *std::move(reader);
  return std::nullopt;
}

void Pretraining::Introduce() const {
  const GptOptions& model = options_.trainer.model;
  const TransformerOptions& transformer = model.transformer;
  if (options_.num_threads > AvailableCores()) {
    Say(absl::StrFormat(
        "WARNING: system.num_threads = %d on %d cores: threads will wait for each other",
        options_.num_threads, AvailableCores()));
  }
  if (options_.num_ranks() > AvailableCores() && options_.num_ranks() > 1) {
    Say(absl::StrFormat("WARNING: %d ranks share %d cores: fewer ranks are faster here",
                        options_.num_ranks(), AvailableCores()));
  }
  const ParallelSizes& sizes = options_.parallel;
  std::string ranks = "1 rank";
  if (options_.num_ranks() > 1) {
    ranks = absl::StrFormat("%d ranks = tensor %d x pipeline %d x data %d", options_.num_ranks(),
                            sizes.tensor, sizes.pipeline, sizes.data);
  }
  Say(absl::StrFormat("device: cpu (%s), %d threads; %s", ops::IsaName(),
                      std::max(options_.num_ranks(), options_.num_threads), ranks));
  Say(absl::StrFormat(
      "model: GPT of %d layers, hidden %d, %d heads, sequence %d, %s: %s parameters",
      transformer.num_layers, transformer.hidden_size, transformer.num_attention_heads,
      options_.data.seq_length, Name(transformer.dtype),
      FormatCount(CountParameters(loaded_.config.model(), model.padded_vocab_size))));
  Say(absl::StrCat("data: ", data_.description));
  Say(absl::StrFormat(
      "memory: %s planned, %s of it for weights, gradients, optimizer and activations",
      FormatBytes(plan_.process_bytes()), FormatBytes(plan_.rank_bytes())));
  Say(absl::StrFormat("training: %d iterations of %d samples, checkpoints %s",
                      options_.loop.train_iters, options_.trainer.batch_size.global_batch_size,
                      options_.checkpoint.save.empty() ? "off (set checkpoint.save)"
                                                       : "in " + options_.checkpoint.save));
}

absl::Status Pretraining::EndRank(ExitCode code, const absl::Status& status) {
  failure_.Set(code, std::string(status.message()));
  return status;
}

absl::Status Pretraining::BuildRank(int number, Rank* rank) const {
  const int size = options_.num_ranks();
  MEGATRON_ASSIGN_OR_RETURN(const RankGrid dense, RankGrid::Create(options_.parallel, size));
  MEGATRON_ASSIGN_OR_RETURN(const RankGrid expert, RankGrid::CreateExpert(options_.parallel, size));
  MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups groups,
                            MakeGroups(dense, expert, rank->world.communicator()));
  if (size > 1) {
    std::vector<std::vector<int>> all(1, std::vector<int>(size));
    std::iota(all[0].begin(), all[0].end(), 0);
    MEGATRON_ASSIGN_OR_RETURN(std::shared_ptr<Communicator> saving,
                              rank->world.communicator()->Split(all, "checkpoint"));
    rank->saving = ProcessGroup(std::move(saving));
  }
  // As in Megatron the last rank, which knows the loss first.
  rank->speaks = number == size - 1;
  MEGATRON_ASSIGN_OR_RETURN(const LossScaler scaler, MakeLossScaler(options_.precision));
  const int stage = dense.Coordinate(number, Axis::kPipeline);
  MEGATRON_ASSIGN_OR_RETURN(
      rank->trainer,
      GptTrainer::Create(options_.TrainerOf(stage, dense.Coordinate(number, Axis::kData)), scaler,
                         groups, plan_.stages[stage].sizes, Stream::Cpu(&rank->pool),
                         &rank->ledger));
  return absl::OkStatus();
}

absl::Status Pretraining::RestoreRank(Rank* rank) {
  if (!checkpoint_.has_value()) {
    rank->trainer->InitializeWeights(options_.seed);
    return absl::OkStatus();
  }
  const absl::Status status = RestoreCheckpoint(*checkpoint_, restore_, run_,
                                                Stream::Cpu(&rank->pool), rank->trainer.get());
  if (status.code() == absl::StatusCode::kFailedPrecondition) return EndRank(kExitConfig, status);
  if (!status.ok()) {
    return EndRank(
        kExitCorruptCheckpoint,
        absl::Status(status.code(), absl::StrCat(status.message(),
                                                 "; to continue from the checkpoint before "
                                                 "it move ",
                                                 checkpoint_->directory(), " away")));
  }
  if (rank->speaks) {
    Say(absl::StrCat(restore_ == megatron::Restore::kWeights ? "starting from the weights of "
                                                             : "continuing from ",
                     checkpoint_->directory(), " at iteration ",
                     rank->trainer->progress().iteration));
  }
  return absl::OkStatus();
}

ExitCode Pretraining::TrainRank(Rank* rank) {
  TrainingLoop::Context context;
  context.options = &options_;
  context.data = &data_;
  context.run = run_;
  context.flops_per_token =
      FlopsPerToken(loaded_.config.model(), options_.trainer.model.padded_vocab_size,
                    FlopsConvention::kCausalHalved);
  context.program_start = start_;
  context.saving = rank->saving;
  context.speaks = rank->speaks;
  context.failure = &failure_;
  return TrainingLoop(context, fs_, rank->trainer.get()).Run();
}

void Pretraining::Generate(Rank* rank) {
  const GenerationOptions& generation = options_.generation;
  std::vector<int32_t> tokens;
  const absl::Status encoded = tokenizer_->Encode(generation.prompt, &tokens);
  if (!encoded.ok() || tokens.empty()) tokens.assign(1, tokenizer_->eod());
  auto print = [&](const std::string& text) {
    if (!rank->speaks) return;
    std::printf("%s", text.c_str());
    std::fflush(stdout);
  };
  print("--- the model continues ---\n" + generation.prompt);
  TextStream text(*tokenizer_, tokens);
  Consensus consensus(rank->world);
  TextGenerator generator = rank->trainer->MakeGenerator(&rank->ledger);
  generator.Generate(generation.sampling, generation.tokens, &tokens, [&](int32_t token) {
    if (token == tokenizer_->eod()) return false;
    print(text.Add(token));
    return !consensus.Any(StopSignal() != 0);
  });
  print("\n");
}

absl::Status Pretraining::RunRank(int number, const ProcessGroup& world) {
  Rank rank(std::max(1, options_.num_threads / options_.num_ranks()));
  rank.world = world;
  const absl::Status built = BuildRank(number, &rank);
  if (!built.ok()) return EndRank(kExitConfig, built);
  MEGATRON_RETURN_IF_ERROR(RestoreRank(&rank));
  const ExitCode code = TrainRank(&rank);
  if (rank.speaks) exit_code_ = code;
  // The others end with this rank, whatever they wait for.
  if (failure_.Get().has_value()) return absl::AbortedError(failure_.Get()->message);
  const bool finished = rank.trainer->progress().iteration >= options_.loop.train_iters;
  if (code == kExitDone && finished && options_.generation.enabled) Generate(&rank);
  return absl::OkStatus();
}

std::optional<Failure> Pretraining::CheckMemory() const {
  const std::optional<int64_t> available = AvailableBytes();
  const int64_t planned = plan_.process_bytes();
  if (!available.has_value() || planned <= *available) return std::nullopt;
  return Failure{kExitConfig, absl::StrCat("the run takes ", FormatBytes(planned),
                                           " of memory and ", FormatBytes(*available),
                                           " are available; --dry_run says what takes it. A "
                                           "smaller training.micro_batch_size, recompute "
                                           "or bf16 take less.")};
}

int Pretraining::Run() {
  if (const auto failure = CheckMemory()) return Report(*failure);
  if (const auto failure = OpenData()) return Report(*failure);
  if (const auto failure = OpenSaveDirectory()) return Report(*failure);
  Introduce();
  if (const auto failure = OpenCheckpoint()) return Report(*failure);
  ListenForStopSignals();
  ThreadWorldOptions world;
  world.deadline = options_.distributed_timeout;
  const absl::Status status =
      options_.num_ranks() == 1
          ? RunRank(0, ProcessGroup())
          : RunRanks(
                options_.num_ranks(),
                [this](int rank, const ProcessGroup& group) { return RunRank(rank, group); },
                world);
  if (const auto failure = failure_.Get()) return Report(*failure);
  if (!status.ok()) return Report(Fail(kExitPeerLost, status));
  return exit_code_;
}

}  // namespace

int PretrainGpt(const PretrainCommand& command) {
  const absl::Time start = absl::Now();
  const absl::Status cpu = ops::CheckCpu();
  if (!cpu.ok()) return Report(Fail(kExitConfig, cpu));
  absl::StatusOr<LoadedConfig> loaded =
      LoadConfig(command.config, command.overrides,
                 command.dry_run ? ConfigPurpose::kDryRun : ConfigPurpose::kRun);
  if (!loaded.ok()) return Report(Fail(kExitConfig, loaded.status()));
  ResolvePaths(&loaded->config);
  Pretraining pretraining(*std::move(loaded), start);
  if (const auto failure = pretraining.Plan()) return Report(*failure);
  return command.dry_run ? pretraining.DryRun() : pretraining.Run();
}

}  // namespace megatron
