#include "megatron/train/pretrain.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
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
#include "megatron/comm/launch_env.h"
#include "megatron/comm/run_ranks.h"
#include "megatron/ops/cpu/isa.h"
#include "megatron/train/config_loader.h"
#include "megatron/train/config_text.h"
#include "megatron/train/exit_code.h"
#include "megatron/train/failure.h"
#include "megatron/train/flops.h"
#include "megatron/train/pretrain_rank.h"
#include "megatron/train/run_lock.h"
#include "megatron/train/run_plan.h"
#include "megatron/train/stop_signals.h"

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
  // The checkpoint keeps these, for programs that are started elsewhere.
  auto resolve_fully = [](std::string* path) {
    if (!path->empty())
      *path = std::filesystem::absolute(PathFromWhereTheUserStands(*path)).lexically_normal();
  };
  config::DataConfig* data = config->mutable_data();
  if (data->has_vocab_file()) resolve_fully(data->mutable_vocab_file());
  if (data->has_merge_file()) resolve_fully(data->mutable_merge_file());
  if (data->has_tokenizer_model()) resolve_fully(data->mutable_tokenizer_model());
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

// One process runs all ranks. Each of several that a launcher has started would train on its own,
// and nobody would notice.
absl::Status CheckThatItIsStartedAlone() {
  MEGATRON_ASSIGN_OR_RETURN(const LaunchEnvironment launch,
                            ReadLaunchEnvironment(ProcessEnvironment()));
  if (launch.world_size == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "this process was started as ", launch.Describe(),
      ", but the ranks of a run are threads of one process: start it once, with the sizes in "
      "'parallel', or with MEGATRON_LAUNCH=single to pay no attention to the launcher"));
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
  Pretraining(LoadedConfig loaded, absl::Time start) : loaded_(std::move(loaded)) {
    run_.fs = &fs_;
    run_.program_start = start;
  }

  std::optional<Failure> Plan();
  int DryRun();
  int Run();

 private:
  std::optional<Failure> CheckMemory() const;
  std::optional<Failure> OpenData();
  std::optional<Failure> OpenSaveDirectory();
  absl::StatusOr<FoundCheckpoint> ChooseCheckpoint(megatron::Restore* what) const;
  std::optional<Failure> OpenCheckpoint();
  void Introduce() const;

  LoadedConfig loaded_;
  FileSystem& fs_ = PosixFileSystem();
  PretrainRun run_;
  RunLock lock_;
};

std::optional<Failure> Pretraining::Plan() {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      CreateTokenizer(ToTokenizerOptions(loaded_.config.data()));
  if (!tokenizer.ok()) return Fail(kExitConfig, tokenizer.status());
  run_.tokenizer = *std::move(tokenizer);
  run_.options = ToRunOptions(loaded_.config, run_.tokenizer->vocab_size());
  absl::StatusOr<RunPlan> plan = PlanRun(run_.options);
  if (!plan.ok()) return Fail(kExitConfig, plan.status());
  run_.plan = *std::move(plan);
  run_.flops_per_token =
      FlopsPerToken(loaded_.config.model(), run_.options.trainer.model.padded_vocab_size,
                    FlopsConvention::kCausalHalved);
  return std::nullopt;
}

int Pretraining::DryRun() {
  Say(EffectiveConfigText(loaded_.config, loaded_.locations));
  Say(FormatRunPlan(loaded_.config, run_.options, run_.plan));
  return kExitDone;
}

std::optional<Failure> Pretraining::OpenData() {
  DataOptions& data_options = run_.options.data;
  for (std::vector<std::string>* path :
       {&data_options.data_path, &data_options.train_data_path, &data_options.valid_data_path}) {
    for (std::string& part : *path) {
      double weight;
      if (!absl::SimpleAtod(part, &weight)) part = PathFromWhereTheUserStands(part);
    }
  }
  if (!data_options.cache_path.empty())
    data_options.cache_path = PathFromWhereTheUserStands(data_options.cache_path);
  absl::StatusOr<GptData> data = OpenGptData(run_.options.data, *run_.tokenizer);
  if (!data.ok()) return Fail(kExitData, data.status());
  run_.data = *std::move(data);
  return std::nullopt;
}

std::optional<Failure> Pretraining::OpenSaveDirectory() {
  run_.description.identity = RunIdentity(loaded_.config, run_.data.fingerprint);
  run_.description.config_text = EffectiveConfigText(loaded_.config);
  if (run_.options.checkpoint.save.empty()) return std::nullopt;
  const absl::Status writable = CheckWritable(fs_, run_.options.checkpoint.save);
  if (!writable.ok()) {
    return Failure{kExitIo, absl::StrCat("checkpoint.save = ", run_.options.checkpoint.save, ": ",
                                         writable.message())};
  }
  absl::StatusOr<RunLock> lock = RunLock::Take(run_.options.checkpoint.save);
  if (!lock.ok()) {
    const bool taken = lock.status().code() == absl::StatusCode::kFailedPrecondition;
    return Fail(taken ? kExitConfig : kExitIo, lock.status());
  }
  lock_ = *std::move(lock);
  const absl::Status ours =
      CheckThatNobodyElseSavesThere(fs_, run_.options.checkpoint, RunId(run_.description.identity));
  if (ours.ok()) return std::nullopt;
  const bool another = ours.code() == absl::StatusCode::kFailedPrecondition;
  return Fail(another ? kExitConfig : kExitCorruptCheckpoint, ours);
}

// What this run has saved itself comes before what it was started from, so that the same command
// continues it.
absl::StatusOr<FoundCheckpoint> Pretraining::ChooseCheckpoint(megatron::Restore* what) const {
  const CheckpointOptions& checkpoint = run_.options.checkpoint;
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
  const CheckpointOptions& checkpoint = run_.options.checkpoint;
  const absl::StatusOr<FoundCheckpoint> found = ChooseCheckpoint(&run_.restore);
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
  run_.checkpoint = std::make_unique<CheckpointReader>(*std::move(reader));
  return std::nullopt;
}

void Pretraining::Introduce() const {
  const GptOptions& model = run_.options.trainer.model;
  const TransformerOptions& transformer = model.transformer;
  if (run_.options.num_threads > AvailableCores()) {
    Say(absl::StrFormat(
        "WARNING: system.num_threads = %d on %d cores: threads will wait for each other",
        run_.options.num_threads, AvailableCores()));
  }
  if (run_.options.num_ranks() > AvailableCores() && run_.options.num_ranks() > 1) {
    Say(absl::StrFormat("WARNING: %d ranks share %d cores: fewer ranks are faster here",
                        run_.options.num_ranks(), AvailableCores()));
  }
  const ParallelSizes& sizes = run_.options.parallel;
  std::string ranks = "1 rank";
  if (run_.options.num_ranks() > 1) {
    ranks = absl::StrFormat("%d ranks = tensor %d x pipeline %d x data %d",
                            run_.options.num_ranks(), sizes.tensor, sizes.pipeline, sizes.data);
  }
  Say(absl::StrFormat("device: cpu (%s), %d threads; %s", ops::IsaName(),
                      std::max(run_.options.num_ranks(), run_.options.num_threads), ranks));
  Say(absl::StrFormat(
      "model: GPT of %d layers, hidden %d, %d heads, sequence %d, %s: %s parameters",
      transformer.num_layers, transformer.hidden_size, transformer.num_attention_heads,
      run_.options.data.seq_length, Name(transformer.dtype),
      FormatCount(CountParameters(loaded_.config.model(), model.padded_vocab_size))));
  Say(absl::StrCat("data: ", run_.data.description));
  Say(absl::StrFormat(
      "memory: %s planned, %s of it for weights, gradients, optimizer and activations",
      FormatBytes(run_.plan.process_bytes()), FormatBytes(run_.plan.rank_bytes())));
  Say(absl::StrFormat("training: %d iterations of %d samples, checkpoints %s",
                      run_.options.loop.train_iters,
                      run_.options.trainer.batch_size.global_batch_size,
                      run_.options.checkpoint.save.empty() ? "off (set checkpoint.save)"
                                                           : "in " + run_.options.checkpoint.save));
}

std::optional<Failure> Pretraining::CheckMemory() const {
  const std::optional<int64_t> available = AvailableBytes();
  const int64_t planned = run_.plan.process_bytes();
  if (!available.has_value() || planned <= *available) return std::nullopt;
  return Failure{kExitConfig, absl::StrCat("the run takes ", FormatBytes(planned),
                                           " of memory and ", FormatBytes(*available),
                                           " are available; --dry_run says what takes it. A "
                                           "smaller train.micro_batch_size, recompute "
                                           "or bf16 take less.")};
}

int Pretraining::Run() {
  if (const auto failure = CheckMemory()) return Report(*failure);
  if (const auto failure = OpenData()) return Report(*failure);
  if (const auto failure = OpenSaveDirectory()) return Report(*failure);
  Introduce();
  if (const auto failure = OpenCheckpoint()) return Report(*failure);
  ListenForStopSignals();
  FirstFailure failure;
  ExitCode code = kExitDone;
  auto run_rank = [&](int, const ProcessGroup& world) -> absl::Status {
    PretrainRank rank(run_, world, &failure);
    const ExitCode left = rank.Run();
    if (rank.speaks()) code = left;
    // An error ends the others, whatever they wait for.
    const auto first = failure.Get();
    return first.has_value() ? absl::AbortedError(first->message) : absl::OkStatus();
  };
  ThreadWorldOptions options;
  options.deadline = run_.options.distributed_timeout;
  const int ranks = run_.options.num_ranks();
  const absl::Status status =
      ranks == 1 ? run_rank(0, ProcessGroup()) : RunRanks(ranks, run_rank, options);
  if (const auto first = failure.Get()) return Report(*first);
  return status.ok() ? code : Report(Fail(kExitPeerLost, status));
}

}  // namespace

int PretrainGpt(const PretrainCommand& command) {
  const absl::Time start = absl::Now();
  const absl::Status cpu = ops::CheckCpu();
  if (!cpu.ok()) return Report(Fail(kExitConfig, cpu));
  const absl::Status alone = CheckThatItIsStartedAlone();
  if (!alone.ok() && !command.dry_run) return Report(Fail(kExitConfig, alone));
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
