#include "megatron/train/pretrain.h"

#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/find_checkpoint.h"
#include "megatron/comm/launch/launch_env.h"
#include "megatron/comm/launch/tcp_job.h"
#include "megatron/comm/process_group.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/comm/watch/fault_monitor.h"
#include "megatron/ops/cpu/isa.h"
#include "megatron/ops/cuda/gemm/gemm_planner.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/train/check_tokenizer.h"
#include "megatron/train/config/config_difference.h"
#include "megatron/train/config/config_text.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/device_links.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/failure/failure.h"
#include "megatron/train/failure/run_lock.h"
#include "megatron/train/failure/stop_signals.h"
#include "megatron/train/gemm/plan_gemms.h"
#include "megatron/train/introduction.h"
#include "megatron/train/pretrain_rank.h"
#include "megatron/train/rank_processes.h"
#include "megatron/train/resolve_paths.h"
#include "megatron/train/trainer/consensus.h"
#include "megatron/train/trainer/flops.h"
#include "megatron/train/trainer/run_plan.h"

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

// For a run that was killed to be gone.
constexpr absl::Duration kLockPatience = absl::Seconds(3);

// A directory that can't be written is found now, not at the first checkpoint.
absl::Status CheckWritable(FileSystem& fs, const std::string& directory, int rank) {
  MEGATRON_RETURN_IF_ERROR(fs.CreateDirs(directory));
  const std::string probe = absl::StrCat(directory, "/.write_test_", rank);
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

int64_t FreeDeviceBytes() {
  int64_t bytes = 0;
  for (int device = 0; device < CudaDeviceCount(); ++device) bytes += CudaFacts(device).free_bytes;
  return bytes;
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

Failure LockFailure(const absl::Status& status) {
  const bool taken = status.code() == absl::StatusCode::kFailedPrecondition;
  return Fail(taken ? kExitConfig : kExitIo, status);
}

// Everything that a run needs and how it came to be; one of these lives as long as the program. Its
// ranks are threads of this process, which share what does not change, or this process is one rank
// of several: then all go through the same steps, and what goes wrong in one is the failure of all.
class Pretraining {
 public:
  Pretraining(const PretrainCommand& command, absl::Time start) : command_(command) {
    run_.fs = &fs_;
    run_.program_start = start;
    run_.device_calls = &device_calls_;
    run_.on_piece = command.on_piece;
  }

  int DryRun();
  int Run();

 private:
  using Step = std::optional<Failure> (Pretraining::*)();
  // The first failure of any process, after which none goes on.
  std::optional<Failure> Together(const std::vector<Step>& steps);
  std::optional<Failure> ReadLaunch();
  void Read();
  std::optional<Failure> Join();
  std::optional<Failure> Load();
  std::optional<Failure> Plan();
  std::optional<Failure> CheckWorldSize() const;
  std::optional<Failure> ShareOutThreads();
  std::optional<Failure> CheckMemory();
  std::optional<Failure> OpenData();
  std::optional<Failure> OpenSaveDirectory();
  std::optional<Failure> ShareSaveDirectory();
  absl::StatusOr<FoundCheckpoint> ChooseCheckpoint(megatron::Restore* what) const;
  std::optional<Failure> OpenCheckpoint();
  std::optional<Failure> LinkDevices();
  std::optional<double> PeakFlops() const;
  std::optional<Failure> ChooseKernels();
  std::optional<Failure> CheckThatAllRunTheSame();
  int Report(const Failure& failure) const;
  FaultMonitorOptions MonitorOptions(const RanksOptions& ranks) const;
  int RunThreads();
  int RunProcess();

  bool one_of_several() const { return launch_.world_size > 1; }
  int ranks_here() const {
    return one_of_several() ? launch_.local_world_size : run_.options.num_ranks();
  }
  LocalShare Local() const {
    LocalShare local;
    local.ranks = ranks_here();
    local.bytes = BytesHere();
    if (one_of_several()) here.launch = launch_.Describe();
    return local;
  }
  // That the run takes of this machine's memory.
  int64_t BytesHere() const {
    return run_.plan.machine_bytes(ranks_here(), run_.options.ranks.processes ? ranks_here() : 1);
  }
  bool is_reporting_rank() const { return launch_.rank == launch_.world_size - 1; }

  const PretrainCommand& command_;
  ConfigPurpose purpose_ = ConfigPurpose::kRun;
  LaunchEnvironment launch_;
  std::unique_ptr<TcpJob> job_;  // null: this process is not one rank of several
  FirstFailure failure_;         // of the ranks of this process
  DeviceCalls device_calls_;     // outlives who asks it
  std::unique_ptr<FaultMonitor> monitor_;
  ProcessGroup processes_;
  std::optional<absl::StatusOr<LoadedConfig>> read_;
  LoadedConfig loaded_;
  FileSystem& fs_ = PosixFileSystem();
  PretrainRun run_;
  RunLock lock_;
  std::string gemm_plans_;  // that were read, as text
};

// What all know is told by one.
int Pretraining::Report(const Failure& failure) const {
  if (job_ != nullptr && !job_->world().status().ok()) {
    monitor_->WaitUntilReported();
  } else if (is_reporting_rank()) {
    megatron::Report(failure);
  }
  return failure.code;
}

FaultMonitorOptions Pretraining::MonitorOptions(const RanksOptions& ranks) const {
  FaultMonitorOptions options;
  options.stuck_after = ranks.stuck_timeout;
  options.device_calls = [this](int rank) { return device_calls_.Of(rank); };
  options.process_end = [this](const absl::Status& reason) -> ProcessEnd {
    const auto failure = failure_.Get();
    if (failure.has_value()) return {failure->code, failure->message};
    const bool hang = reason.code() == absl::StatusCode::kDeadlineExceeded;
    return {hang ? kExitHang : kExitPeerLost, std::string(reason.message())};
  };
  return options;
}

std::optional<Failure> Pretraining::Together(const std::vector<Step>& steps) {
  Consensus consensus(processes_);
  for (const Step step : steps) {
    auto failure = consensus.FirstFailure((this->*step)());
    if (failure.has_value()) return failure;
  }
  return std::nullopt;
}

std::optional<Failure> Pretraining::ReadLaunch() {
  absl::StatusOr<LaunchEnvironment> launch = ReadLaunchEnvironment(ProcessEnvironment());
  if (!launch.ok()) return Fail(kExitConfig, launch.status());
  launch_ = *std::move(launch);
  return std::nullopt;
}

// What is wrong with it is told when all have met, once.
void Pretraining::Read() {
  std::vector<std::string> overrides = command_.overrides;
  if (one_of_several()) overrides.push_back("parallel.ranks_as=processes");
  read_ = LoadConfig(command_.config, overrides, purpose_);
}

// Before anything else is looked at, so that all hear of what is wrong anywhere.
std::optional<Failure> Pretraining::Join() {
  if (!one_of_several()) return std::nullopt;
  const RanksOptions options =
      read_->ok() ? ToRanksOptions((*read_)->config.parallel()) : RanksOptions();
  absl::StatusOr<std::unique_ptr<TcpJob>> job = JoinRanks(launch_, options);
  if (!job.ok()) {
    const bool mine = job.status().code() == absl::StatusCode::kInvalidArgument;
    return Failure{mine ? kExitConfig : kExitPeerLost,
                   absl::StrCat(launch_.Describe(), ": ", job.status().message())};
  }
  job_ = *std::move(job);
  monitor_ = std::make_unique<FaultMonitor>(&job_->world(), MonitorOptions(options));
  processes_ = ProcessGroup(job_->world().communicator());
  return std::nullopt;
}

std::optional<Failure> Pretraining::Load() {
  if (!read_->ok()) return Fail(kExitConfig, read_->status());
  loaded_ = **std::move(read_);
  const std::string type = config::ModelType::Type_Name(loaded_.config.model().model_type());
  if (type != command_.model_type) {
    return Failure{kExitConfig, absl::StrCat(command_.config, " has model.model_type = ", type,
                                             ", which pretrain_", type, " trains")};
  }
  ResolvePaths(fs_, command_.config, &loaded_.config);
  return std::nullopt;
}

// Of what was read: each process knows it for itself, and need not wait for the others to say so.
std::optional<Failure> Pretraining::CheckWorldSize() const {
  if (!one_of_several() || !read_->ok()) return std::nullopt;
  const config::ParallelConfig& parallel = (*read_)->config.parallel();
  const int64_t model = parallel.tensor_model_parallel_size() * parallel.context_parallel_size() *
                        parallel.pipeline_model_parallel_size();
  const int64_t ranks = model * parallel.data_parallel_size();
  if (launch_.world_size == ranks) return std::nullopt;
  const std::string way_out =
      launch_.world_size % model == 0
          ? absl::StrCat("parallel.data_parallel_size = ", launch_.world_size / model, " would fit")
          : absl::StrCat("they would have to be a multiple of ", model);
  return Failure{kExitConfig,
                 absl::StrCat(launch_.world_size, " processes were started (", launch_.Describe(),
                              "), but 'parallel' asks for ", ranks, " ranks: ", way_out,
                              "; MEGATRON_LAUNCH=single pays no attention to the launcher")};
}

std::optional<Failure> Pretraining::ShareOutThreads() {
  run_.threads_per_rank = std::max(1, run_.options.num_threads / ranks_here());
  return std::nullopt;
}

std::optional<Failure> Pretraining::Plan() {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      CreateTokenizer(ToTokenizerOptions(loaded_.config.data()));
  if (!tokenizer.ok()) return Fail(kExitConfig, tokenizer.status());
  run_.tokenizer = *std::move(tokenizer);
  run_.options = ToRunOptions(loaded_.config, run_.tokenizer->vocab_size());
  const absl::Status fits = CheckTokenizer(run_.options, *run_.tokenizer);
  if (!fits.ok()) return Fail(kExitConfig, fits);
  absl::StatusOr<RunPlan> plan = PlanRun(run_.options);
  if (!plan.ok()) return Fail(kExitConfig, plan.status());
  run_.plan = *std::move(plan);
  const int64_t vocab = run_.options.trainer.model.padded_vocab_size;
  run_.speed.flops_per_token =
      FlopsPerToken(loaded_.config.model(), vocab, FlopsConvention::kCausalHalved);
  run_.speed.full_flops_per_token =
      FlopsPerToken(loaded_.config.model(), vocab, FlopsConvention::kClassic);
  return std::nullopt;
}

std::optional<Failure> Pretraining::LinkDevices() {
  if (one_of_several()) run_.local_rank = launch_.local_rank;
  if (run_.options.device != DeviceType::kCuda) return std::nullopt;
  absl::StatusOr<DeviceLinks> links =
      one_of_several() ? LinkProcesses(run_.options, launch_.local_rank, processes_)
                       : LinkThreads(run_.options);
  if (!links.ok()) return Fail(kExitConfig, links.status());
  run_.links = *std::move(links);
  run_.speed.peak_flops = PeakFlops();
  return std::nullopt;
}

// Ranks that share a GPU share its peak.
std::optional<double> Pretraining::PeakFlops() const {
  const bool half = run_.options.trainer.model.transformer.dtype != DType::kFloat32;
  const std::optional<double> peak =
      PeakFlopsPerSecond(CudaFacts(0).name, half ? MatmulPrecision::kHalf : MatmulPrecision::kFp32);
  if (!peak) return std::nullopt;
  const double devices = std::min(CudaDeviceCount(), ranks_here());
  return *peak * devices / ranks_here() * run_.options.num_ranks();
}

std::optional<Failure> Pretraining::ChooseKernels() {
  GemmOptions options = run_.options.gemms;
  if (run_.options.device != DeviceType::kCuda) return std::nullopt;
  if (!options.plan_file.empty()) options.plan_file = PathFromWhereTheUserStands(options.plan_file);
  absl::StatusOr<std::string> plans = PlanGemms(fs_, options, &ops::cuda::ProcessGemmPlanner());
  if (!plans.ok()) return Fail(kExitConfig, plans.status());
  gemm_plans_ = *std::move(plans);
  return std::nullopt;
}

std::optional<Failure> Pretraining::OpenData() {
  DataOptions& data_options = run_.options.data;
  if (!data_options.per_split_data_args_path.empty()) {
    data_options.per_split_data_args_path =
        PathFromWhereTheUserStands(data_options.per_split_data_args_path);
    const absl::Status status = ReadPerSplitDataArgs(fs_, &data_options);
    if (!status.ok()) return Fail(kExitData, status);
  }
  for (std::vector<std::string>* path :
       {&data_options.data_path, &data_options.train_data_path, &data_options.valid_data_path,
        &data_options.test_data_path}) {
    for (std::string& part : *path) {
      double weight;
      if (!absl::SimpleAtod(part, &weight)) part = PathFromWhereTheUserStands(part);
    }
  }
  if (!data_options.cache_path.empty())
    data_options.cache_path = PathFromWhereTheUserStands(data_options.cache_path);
  absl::StatusOr<TrainingData> data = OpenTrainingData(run_.options.data, *run_.tokenizer);
  if (!data.ok()) return Fail(kExitData, data.status());
  run_.data = *std::move(data);
  return std::nullopt;
}

std::optional<Failure> Pretraining::OpenSaveDirectory() {
  run_.description.identity = RunIdentity(loaded_.config, run_.data.fingerprint);
  run_.description.config_text = EffectiveConfigText(loaded_.config);
  const ProfileOptions& profile = run_.options.profile;
  if (profile.enabled && (!one_of_several() || profile.Covers(launch_.rank))) {
    const absl::Status writable = CheckWritable(fs_, profile.directory, launch_.rank);
    if (!writable.ok()) {
      return Failure{kExitIo, absl::StrCat("logging.profile_dir = ", profile.directory, ": ",
                                           writable.message())};
    }
  }
  if (run_.options.checkpoint.save.empty()) return std::nullopt;
  const absl::Status writable = CheckWritable(fs_, run_.options.checkpoint.save, launch_.rank);
  if (!writable.ok()) {
    return Failure{kExitIo, absl::StrCat("checkpoint.save = ", run_.options.checkpoint.save, ": ",
                                         writable.message())};
  }
  if (launch_.rank > 0) return std::nullopt;
  absl::StatusOr<RunLock> lock = RunLock::Take(run_.options.checkpoint.save, kLockPatience);
  absl::Status locked = lock.status();
  if (locked.ok()) lock_ = *std::move(lock);
  if (locked.ok() && one_of_several()) locked = lock_.Share();
  if (!locked.ok()) return LockFailure(locked);
  const absl::Status ours =
      CheckThatNobodyElseSavesThere(fs_, run_.options.checkpoint, RunId(run_.description.identity));
  if (ours.ok()) return std::nullopt;
  const bool another = ours.code() == absl::StatusCode::kFailedPrecondition;
  return Fail(another ? kExitConfig : kExitCorruptCheckpoint, ours);
}

std::optional<Failure> Pretraining::ShareSaveDirectory() {
  if (launch_.rank == 0 || run_.options.checkpoint.save.empty()) return std::nullopt;
  absl::StatusOr<RunLock> lock = RunLock::Join(run_.options.checkpoint.save);
  if (!lock.ok()) return LockFailure(lock.status());
  lock_ = *std::move(lock);
  return std::nullopt;
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
  for (const std::string& warning : found->warnings) {
    if (is_reporting_rank()) Say(absl::StrCat("WARNING: ", warning));
  }
  absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(fs_, found->directory);
  if (!reader.ok()) return Fail(kExitCorruptCheckpoint, reader.status());
  run_.checkpoint = std::make_unique<CheckpointReader>(*std::move(reader));
  return std::nullopt;
}

std::optional<Failure> Pretraining::CheckMemory() {
  const bool cuda = run_.options.device == DeviceType::kCuda;
  const std::optional<int64_t> available = cuda ? FreeDeviceBytes() : AvailableBytes();
  const int64_t planned =
      cuda ? run_.plan.rank_bytes() / run_.options.num_ranks() * ranks_here() : BytesHere();
  if (!available.has_value() || planned <= *available) return std::nullopt;
  return Failure{kExitConfig,
                 absl::StrCat("the run takes ", FormatBytes(planned), " of ",
                              cuda ? "the GPUs' " : "", "memory and ", FormatBytes(*available),
                              " are available; --dry_run says what takes it. A "
                              "smaller train.micro_batch_size, recompute "
                              "or bf16 take less.")};
}

// What this process is to do and to continue from, which others found out for themselves.
std::optional<Failure> Pretraining::CheckThatAllRunTheSame() {
  config::PretrainConfig config = loaded_.config;
  config.clear_system();  // machines may differ
  Consensus consensus(processes_);
  const std::string text =
      absl::StrCat(EffectiveConfigText(config), "data fingerprint: ", run_.data.fingerprint, "\n");
  if (!consensus.Same(text)) {
    const std::string first = consensus.OfFirst(text);
    if (first == text) return std::nullopt;  // another rank has something to tell
    return Failure{kExitConfig,
                   absl::StrCat("was started with another configuration than rank 0, or has other "
                                "data: ",
                                DescribeDifferences(DifferencesOf(first, text)))};
  }
  if (!consensus.Same(gemm_plans_))
    return Failure{kExitConfig, "the ranks read different plans from system.gemm_plan_file"};
  if (!consensus.Same(run_.checkpoint == nullptr ? "" : run_.checkpoint->directory())) {
    return Failure{kExitCorruptCheckpoint,
                   "the ranks see different checkpoints: checkpoint.save and checkpoint.load must "
                   "be directories that all machines share"};
  }
  return std::nullopt;
}

int Pretraining::DryRun() {
  purpose_ = ConfigPurpose::kDryRun;
  Read();
  if (const auto failure = Together({&Pretraining::Load, &Pretraining::Plan}))
    return Report(*failure);
  Say(EffectiveConfigText(loaded_.config, loaded_.locations));
  Say(FormatRunPlan(loaded_.config, run_.options, run_.plan));
  return kExitDone;
}

int Pretraining::Run() {
  if (const auto failure = ReadLaunch()) return megatron::Report(*failure);
  Read();
  if (const auto failure = CheckWorldSize()) return Report(*failure);
  if (const auto failure = Join()) return megatron::Report(*failure);
  if (const auto failure = Together({&Pretraining::Load, &Pretraining::Plan,
                                     &Pretraining::ShareOutThreads, &Pretraining::CheckMemory})) {
    return Report(*failure);
  }
  if (!one_of_several() && run_.options.ranks.processes && run_.options.num_ranks() > 1) {
    return StartRanks(run_.options.num_ranks(), command_.arguments(), run_.options.ranks);
  }
  if (const auto failure =
          Together({&Pretraining::LinkDevices, &Pretraining::ChooseKernels, &Pretraining::OpenData,
                    &Pretraining::OpenSaveDirectory, &Pretraining::ShareSaveDirectory,
                    &Pretraining::OpenCheckpoint, &Pretraining::CheckThatAllRunTheSame})) {
    return Report(*failure);
  }
  if (is_reporting_rank()) {
    for (const std::string& line : Introduce(loaded_.config, run_, Local())) Say(line);
  }
  ListenForStopSignals(/*answer=*/is_reporting_rank());
  return one_of_several() ? RunProcess() : RunThreads();
}

int Pretraining::RunThreads() {
  const int ranks = run_.options.num_ranks();
  if (ranks == 1) {
    const ExitCode code = PretrainRank(run_, ProcessGroup(), &failure_).Run();
    const auto first = failure_.Get();
    return first.has_value() ? Report(*first) : code;
  }
  ThreadWorldOptions options;
  options.deadline = run_.options.ranks.timeout;
  ThreadWorld world(ranks, options);
  FaultMonitor monitor(&world, MonitorOptions(run_.options.ranks));
  ExitCode code = kExitDone;
  auto run_rank = [&](int number, const ProcessGroup& group) -> absl::Status {
    pthread_setname_np(pthread_self(), absl::StrCat("rank ", number).c_str());  // for reports
    PretrainRank rank(run_, group, &failure_);
    const FaultMonitor::Watch watch(&monitor, number, &rank.progress());
    const ExitCode left = rank.Run();
    if (rank.is_reporting_rank()) code = left;
    // An error ends the others, whatever they wait for, and before this rank's own end waits for
    // them.
    const auto first = failure_.Get();
    if (!first.has_value()) return absl::OkStatus();
    world.Abort(absl::AbortedError(absl::StrCat("rank ", number, ": ", first->message)));
    return absl::AbortedError(first->message);
  };
  const absl::Status status = RunRanks(&world, run_rank);
  const bool told = !status.ok() && monitor.WaitUntilReported();
  const auto first = failure_.Get();
  if (!first.has_value()) return status.ok() ? code : Report(Fail(kExitPeerLost, status));
  return told ? first->code : Report(*first);
}

int Pretraining::RunProcess() {
  PretrainRank rank(run_, processes_, &failure_);
  const FaultMonitor::Watch watch(monitor_.get(), launch_.rank, &rank.progress());
  const ExitCode code = rank.Run();
  const auto first = failure_.Get();
  if (!first.has_value()) return code;
  job_->world().Abort(absl::AbortedError(first->message));
  return Report(*first);
}

}  // namespace

std::vector<std::string> PretrainCommand::arguments() const {
  std::vector<std::string> arguments = {absl::StrCat("--config=", config)};
  for (const std::string& text : overrides) arguments.push_back(absl::StrCat("--set=", text));
  if (dry_run) arguments.push_back("--dry_run");
  return arguments;
}

int Pretrain(const PretrainCommand& command) {
  const absl::Time start = absl::Now();
  const absl::Status cpu = ops::CheckCpu();
  if (!cpu.ok()) return Report(Fail(kExitConfig, cpu));
  Pretraining pretraining(command, start);
  return command.dry_run ? pretraining.DryRun() : pretraining.Run();
}

}  // namespace megatron
