#include "megatron/train/pretrain.h"

#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "glog/logging.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/checkpoint/find_checkpoint.h"
#include "megatron/models/text_generator.h"
#include "megatron/ops/cpu/isa.h"
#include "megatron/train/config_loader.h"
#include "megatron/train/config_text.h"
#include "megatron/train/exit_code.h"
#include "megatron/train/flops.h"
#include "megatron/train/run_lock.h"
#include "megatron/train/run_plan.h"
#include "megatron/train/stop_signals.h"
#include "megatron/train/text_stream.h"
#include "megatron/train/training_loop.h"

namespace megatron {
namespace {

// An error on its way out of the program.
struct Failure {
  ExitCode code;
  std::string message;
};

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

// Everything that a run needs and how it came to be; one of these lives as long as the program.
class Pretraining {
 public:
  Pretraining(LoadedConfig loaded, absl::Time start) : loaded_(std::move(loaded)), start_(start) {}

  std::optional<Failure> Plan();
  int DryRun();
  int Run();

 private:
  std::optional<Failure> CheckMemory() const;
  std::optional<Failure> OpenData();
  std::optional<Failure> Build();
  absl::StatusOr<FoundCheckpoint> ChooseCheckpoint(megatron::Restore* what) const;
  std::optional<Failure> Restore();
  void Introduce() const;
  void Generate();

  LoadedConfig loaded_;
  absl::Time start_;
  FileSystem& fs_ = PosixFileSystem();
  std::unique_ptr<Tokenizer> tokenizer_;
  RunOptions options_;
  RunPlan plan_;
  GptData data_;
  RunDescription run_;
  RunLock lock_;
  MemoryLedger ledger_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<GptTrainer> trainer_;
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

std::optional<Failure> Pretraining::Build() {
  run_.identity = RunIdentity(loaded_.config, data_.fingerprint);
  run_.config_text = EffectiveConfigText(loaded_.config);
  if (!options_.checkpoint.save.empty()) {
    const absl::Status writable = CheckWritable(fs_, options_.checkpoint.save);
    if (!writable.ok()) {
      return Failure{kExitIo, absl::StrCat("checkpoint.save = ", options_.checkpoint.save, ": ",
                                           writable.message())};
    }
    absl::StatusOr<RunLock> lock = RunLock::Take(options_.checkpoint.save);
    if (!lock.ok())
      return Fail(
          lock.status().code() == absl::StatusCode::kFailedPrecondition ? kExitConfig : kExitIo,
          lock.status());
    lock_ = *std::move(lock);
    const absl::Status ours =
        CheckThatNobodyElseSavesThere(fs_, options_.checkpoint, RunId(run_.identity));
    if (!ours.ok())
      return Fail(ours.code() == absl::StatusCode::kFailedPrecondition ? kExitConfig
                                                                       : kExitCorruptCheckpoint,
                  ours);
  }
  absl::StatusOr<LossScaler> scaler = MakeLossScaler(options_.precision);
  if (!scaler.ok()) return Fail(kExitConfig, scaler.status());
  pool_ = std::make_unique<ThreadPool>(options_.num_threads);
  absl::StatusOr<std::unique_ptr<GptTrainer>> trainer =
      GptTrainer::Create(options_.trainer, *scaler, ProcessGroups(), plan_.stages[0].sizes,
                         Stream::Cpu(pool_.get()), &ledger_);
  if (!trainer.ok()) return Fail(kExitConfig, trainer.status());
  trainer_ = *std::move(trainer);
  return std::nullopt;
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

std::optional<Failure> Pretraining::Restore() {
  const CheckpointOptions& checkpoint = options_.checkpoint;
  megatron::Restore what;
  const absl::StatusOr<FoundCheckpoint> found = ChooseCheckpoint(&what);
  if (!found.ok() && found.status().code() != absl::StatusCode::kNotFound) {
    const bool damaged = found.status().code() == absl::StatusCode::kDataLoss;
    return Fail(damaged ? kExitCorruptCheckpoint : kExitIo, found.status());
  }
  if (!found.ok()) {
    if (checkpoint.load != checkpoint.save) {
      return Failure{
          kExitConfig,
          absl::StrCat("checkpoint.load = ", checkpoint.load,
                       ": there is no checkpoint; unset it to start from the beginning (",
                       found.status().message(), ")")};
    }
    trainer_->InitializeWeights(options_.seed);
    return std::nullopt;
  }
  for (const std::string& warning : found->warnings) Say(absl::StrCat("WARNING: ", warning));
  const absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(fs_, found->directory);
  if (!reader.ok()) return Fail(kExitCorruptCheckpoint, reader.status());
  const absl::Status status =
      RestoreCheckpoint(*reader, what, run_, Stream::Cpu(pool_.get()), trainer_.get());
  if (status.code() == absl::StatusCode::kFailedPrecondition) return Fail(kExitConfig, status);
  if (!status.ok()) {
    return Failure{
        kExitCorruptCheckpoint,
        absl::StrCat(status.message(), "; to continue from the checkpoint before it move ",
                     found->directory, " away")};
  }
  Say(absl::StrCat(
      what == megatron::Restore::kWeights ? "starting from the weights of " : "continuing from ",
      found->directory, " at iteration ", trainer_->progress().iteration));
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
  Say(absl::StrFormat("device: cpu (%s), %d threads; 1 rank", ops::IsaName(),
                      options_.num_threads));
  Say(absl::StrFormat(
      "model: GPT of %d layers, hidden %d, %d heads, sequence %d, %s: %s parameters",
      transformer.num_layers, transformer.hidden_size, transformer.num_attention_heads,
      options_.data.seq_length, Name(transformer.dtype),
      FormatCount(CountParameters(loaded_.config.model(), model.padded_vocab_size))));
  Say(absl::StrCat("data: ", data_.description));
  Say(absl::StrFormat(
      "memory: %s planned, %s of it for weights, gradients, optimizer and activations",
      FormatBytes(plan_.process_bytes(0)), FormatBytes(plan_.stages[0].total_bytes())));
  Say(absl::StrFormat("training: %d iterations of %d samples, checkpoints %s",
                      options_.loop.train_iters, options_.trainer.batch_size.global_batch_size,
                      options_.checkpoint.save.empty() ? "off (set checkpoint.save)"
                                                       : "in " + options_.checkpoint.save));
}

void Pretraining::Generate() {
  const GenerationOptions& generation = options_.generation;
  std::vector<int32_t> tokens;
  const absl::Status encoded = tokenizer_->Encode(generation.prompt, &tokens);
  if (!encoded.ok() || tokens.empty()) tokens.assign(1, tokenizer_->eod());
  Say("--- the model continues ---");
  std::printf("%s", generation.prompt.c_str());
  TextStream text(*tokenizer_, tokens);
  TextGenerator generator(&trainer_->stage(), options_.trainer.model, options_.data.seq_length,
                          Stream::Cpu(pool_.get()), &ledger_);
  generator.Generate(generation.sampling, generation.tokens, &tokens, [&](int32_t token) {
    if (token == tokenizer_->eod()) return false;
    std::printf("%s", text.Add(token).c_str());
    std::fflush(stdout);
    return StopSignal() == 0;
  });
  std::printf("\n");
}

std::optional<Failure> Pretraining::CheckMemory() const {
  const std::optional<int64_t> available = AvailableBytes();
  const int64_t planned = plan_.process_bytes(0);
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
  if (const auto failure = Build()) return Report(*failure);
  Introduce();
  if (const auto failure = Restore()) return Report(*failure);
  ListenForStopSignals();
  TrainingLoop::Context context;
  context.options = &options_;
  context.data = &data_;
  context.run = run_;
  context.flops_per_token =
      FlopsPerToken(loaded_.config.model(), options_.trainer.model.padded_vocab_size,
                    FlopsConvention::kCausalHalved);
  context.program_start = start_;
  const ExitCode code = TrainingLoop(context, fs_, trainer_.get()).Run();
  const bool finished = trainer_->progress().iteration >= options_.loop.train_iters;
  if (code == kExitDone && finished && options_.generation.enabled) Generate();
  return code;
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
