#include "megatron/train/pretrain.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "megatron/base/core_binding.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/steady_now.h"
#include "megatron/comm/launch/launch_env.h"
#include "megatron/comm/process_group.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/comm/watch/fault_monitor.h"
#include "megatron/ops/cpu/isa.h"
#include "megatron/train/command_line/user_commands.h"
#include "megatron/train/config/config_parser.h"
#include "megatron/train/config/config_text.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/failure/exit_status.h"
#include "megatron/train/failure/failure.h"
#include "megatron/train/failure/run_lock.h"
#include "megatron/train/failure/stop_signals.h"
#include "megatron/train/huggingface/save_huggingface.h"
#include "megatron/train/introduction.h"
#include "megatron/train/launch/rank_job.h"
#include "megatron/train/launch/rank_processes.h"
#include "megatron/train/metrics/run_event.h"
#include "megatron/train/planning/auto_layout.h"
#include "megatron/train/planning/planning_facts.h"
#include "megatron/train/planning/predict_run.h"
#include "megatron/train/preflight/check_memory.h"
#include "megatron/train/preflight/check_same_kernels.h"
#include "megatron/train/preflight/check_same_run.h"
#include "megatron/train/preflight/check_world_size.h"
#include "megatron/train/preflight/open_checkpoint.h"
#include "megatron/train/preflight/open_data.h"
#include "megatron/train/preflight/open_devices.h"
#include "megatron/train/preflight/open_directories.h"
#include "megatron/train/preflight/open_local_checkpoints.h"
#include "megatron/train/preflight/plan_pretraining.h"
#include "megatron/train/preflight/rank_cores.h"
#include "megatron/train/print_lines.h"
#include "megatron/train/print_plan.h"
#include "megatron/train/rank/pretrain_rank.h"
#include "megatron/train/rank_recovery.h"
#include "megatron/train/run_events.h"
#include "megatron/train/trainer/consensus.h"
#include "megatron/train/trainer/run_identity.h"
#include "megatron/train/trainer/run_plan.h"

namespace megatron {
namespace {

constexpr int64_t kUnknownIteration = -1;

// This process of a run. Its ranks are threads, which share what does not change, or this process
// is one rank of several: then all go through the same steps, and what goes wrong in one is the
// failure of all.
class PretrainProcess {
 public:
  PretrainProcess(const PretrainCommand& command, LaunchEnvironment launch, absl::Time start)
      : command_(command),
        launch_(std::move(launch)),
        one_of_several_(launch_.world_size > 1),
        start_(start),
        run_start_(one_of_several_ && launch_.launch_time
                       ? SteadyNow() - (absl::Now() - *launch_.launch_time)
                       : start),
        recovery_(ranks_, launch_, failure_,
                  [this](int64_t data_size) { return Fits(data_size); }) {}

  // Returns the exit code.
  int Run();

 private:
  struct Planned {
    LoadedConfig loaded;
    PlannedPretraining run;
  };

  // Waits for the other processes and goes on if none has an error. Else all return that of the
  // first which has.
  absl::Status Agree(const absl::Status& mine) const {
    return Consensus(processes_).FirstFailure(mine);
  }
  template <typename T>
  absl::StatusOr<T> Agree(absl::StatusOr<T> mine) const {
    MEGATRON_RETURN_IF_ERROR(Agree(mine.status()));
    return mine;
  }

  // Reads the configuration, at best with this parallel.data_parallel_size; 0: with its own.
  absl::StatusOr<LoadedConfig> ReadConfig(int64_t data_size = 0) const;
  // The first rank chooses the layout for all.
  absl::StatusOr<LoadedConfig> ReadWithLayout(const AskedConfig& asked);
  // Returns whether the configuration would be valid with this parallel.data_parallel_size.
  bool Fits(int64_t data_size) const;
  // Reads the configuration and meets the other processes. Nothing if they did not meet: then the
  // error is printed, and `code` is the exit code.
  std::optional<absl::StatusOr<LoadedConfig>> Start(int* code);
  // Returns whether the run needs this process.
  absl::StatusOr<bool> Join();
  void Watch();
  // Checks all that the run is planned and predicted from, before anything is opened.
  absl::StatusOr<Planned> Plan(absl::StatusOr<LoadedConfig> read);
  absl::StatusOr<RunLock> OpenDirectories(const PretrainRun& run) const;
  absl::StatusOr<PretrainRun> Prepare(const LoadedConfig& loaded, PlannedPretraining planned);
  // Returns what is expected of a step, on all processes alike; without parts if there is nothing
  // to predict it from.
  absl::StatusOr<StepComparison> Predict(const config::PretrainConfig& config,
                                         int64_t padded_vocab_size) const;
  // Trains with the ranks that there are. Returns the exit code.
  int RunWith(absl::StatusOr<LoadedConfig> read);
  int RunRanks(const PretrainRun& run);
  int RunThreads(const PretrainRun& run);
  int RunOneOfSeveral(const PretrainRun& run);
  // Writes the model of a run that has come to its end, if it is to. Returns the exit code.
  int WriteModel(const PretrainRun& run);

  // Finds the state that the run starts from.
  absl::Status FindStart(const LoadedConfig& loaded, PretrainRun* run);
  // Makes a world of the processes that go on. Nothing if this one does not: `code` is its exit
  // code.
  std::optional<absl::StatusOr<LoadedConfig>> GoOn(int* code);

  // Returns the failure that ends this process after its world has failed.
  absl::Status FailureOf(const absl::Status& world) const;
  FaultMonitorOptions MonitorOptions(const RanksOptions& ranks);
  void Warn(const std::string& warning) const {
    if (is_reporting_rank()) PrintLine(absl::StrCat("WARNING: ", warning));
  }
  // Prints the error, which all processes know, once. Returns the exit code.
  int Leave(const absl::Status& error) const;
  bool one_of_several() const { return one_of_several_; }
  // Returns the cores of the ranks of this machine, by their numbers on it; none where they are not
  // bound, or where the machine does not say which it has.
  std::vector<CoreShare> OpenCores(const RunOptions& options) const;
  // Binds this thread, which is that of a rank, to its cores, if there are any.
  void Bind(const std::vector<CoreShare>& cores, int local_rank) const;
  int RanksHere(const RunOptions& options) const {
    return one_of_several() ? launch_.local_world_size : options.num_ranks();
  }
  bool is_reporting_rank() const { return launch_.rank == launch_.world_size - 1; }

  const PretrainCommand& command_;
  LaunchEnvironment launch_;  // this process's place among the ranks that there are
  const bool one_of_several_;
  // SteadyNow() at the start of this process, and of the first processes of the run.
  const absl::Time start_, run_start_;
  RanksOptions ranks_;
  std::optional<SavedLayout> layout_;   // with train.auto_layout
  std::optional<PlanningFacts> facts_;  // on the first rank of a run that is to be predicted
  std::unique_ptr<RankJob> job_;        // null: this process is not one rank of several
  FirstFailure failure_;                // the first failure among the ranks of this process
  DeviceCalls device_calls_;            // outlives the monitor, which asks it
  RunEvents events_;                    // outlives the monitor
  RankRecovery recovery_;               // outlives the monitor
  std::unique_ptr<FaultMonitor> monitor_;
  ProcessGroup processes_;
  std::optional<RunLock> save_lock_;
  const std::vector<int> allowed_threads_ = AllowedThreads();  // before any rank was bound
  bool listens_ = false;                                       // to signals
};

int PretrainProcess::Leave(const absl::Status& error) const {
  if (job_ != nullptr && !job_->world().status().ok()) {
    monitor_->WaitUntilReported();
  } else if (is_reporting_rank()) {
    PrintError(error);
  }
  return ExitCodeOf(error);
}

absl::Status PretrainProcess::FailureOf(const absl::Status& world) const {
  const absl::Status failure = failure_.Get();
  return failure.ok() ? WithExitCodeOfRank(world, kExitPeerLost) : failure;
}

FaultMonitorOptions PretrainProcess::MonitorOptions(const RanksOptions& ranks) {
  FaultMonitorOptions options;
  options.stuck_after = ranks.stuck_timeout;
  if (ranks.in_process_recovery) options.grace_without_others = ranks.heartbeat_timeout;
  options.device_calls = [this](int rank) { return device_calls_.Of(rank); };
  options.process_end = [this](const absl::Status& reason) -> ProcessEnd {
    const absl::Status failure = FailureOf(reason);
    // Ranks that are threads, one of which does not end.
    if (!one_of_several()) events_.TellEnd(ExitCodeOf(failure), kUnknownIteration, failure);
    events_.Finish();
    // The others go on without this process, which may be started again.
    const int code = recovery_.LostOthers() ? kExitHang : ExitCodeOf(failure);
    return {code, std::string(failure.message())};
  };
  options.on_report = [this](const absl::Status& reason, int64_t iteration) {
    const absl::Status failure = FailureOf(reason);
    const int code = ExitCodeOf(failure);
    if (code == kExitPeerLost || code == kExitHang)
      events_.Tell(RunEventKind::kRankLost, iteration, std::string(reason.message()), std::nullopt);
    if (recovery_.LostOthers()) return;
    events_.TellEnd(code, iteration, failure);
    events_.Finish();
  };
  return options;
}

absl::StatusOr<LoadedConfig> PretrainProcess::ReadConfig(int64_t data_size) const {
  MEGATRON_ASSIGN_OR_RETURN(const FoundConfig found, FindConfig(command_.config));
  std::vector<std::string> overrides = command_.all_overrides();
  if (data_size > 0) {
    overrides.push_back(absl::StrCat("parallel.data_parallel_size=", data_size));
  } else if (const std::optional<int64_t> size = DataParallelSizeOfWorld(
                 launch_, ParseConfig(found.text, found.source, overrides).config.parallel())) {
    overrides.push_back(absl::StrCat("parallel.data_parallel_size=", *size));
  }
  // A configuration of one rank refuses ranks_as. That it does not fit the launcher is said later.
  if (one_of_several() && HasSeveralRanks(found, overrides))
    overrides.push_back("parallel.ranks_as=processes");
  return LoadConfigFromString(found.text, found.source, overrides, ConfigPurpose::kRun);
}

bool PretrainProcess::Fits(int64_t data_size) const { return ReadConfig(data_size).ok(); }

absl::StatusOr<LoadedConfig> PretrainProcess::ReadWithLayout(const AskedConfig& asked) {
  MEGATRON_ASSIGN_OR_RETURN(
      const SavedLayout mine,
      Agree(launch_.rank == 0 ? ChooseLayoutOf(command_, asked, launch_) : SavedLayout()));
  MEGATRON_ASSIGN_OR_RETURN(layout_,
                            ParseSavedLayout(Consensus(processes_).OfFirst(LayoutText(mine))));
  std::vector<std::string> overrides = command_.all_overrides();
  if (one_of_several()) overrides.push_back("parallel.ranks_as=processes");
  return LoadWithLayout(asked, overrides, *layout_, ConfigPurpose::kRun);
}

absl::StatusOr<bool> PretrainProcess::Join() {
  if (!one_of_several()) return true;
  MEGATRON_ASSIGN_OR_RETURN(job_, RankJob::Join(launch_, ranks_));
  if (job_ == nullptr) return false;
  recovery_.Join(job_.get(), start_);
  Watch();
  return true;
}

void PretrainProcess::Watch() {
  launch_ = job_->launch();
  monitor_ = std::make_unique<FaultMonitor>(&job_->world(), MonitorOptions(ranks_));
  processes_ = ProcessGroup(job_->world().communicator());
}

std::optional<absl::StatusOr<LoadedConfig>> PretrainProcess::GoOn(int* code) {
  if (!recovery_.makes_room()) monitor_->WaitUntilReported();
  const std::string withheld = monitor_->withheld();
  monitor_.reset();
  processes_ = ProcessGroup();
  failure_.Clear();
  const absl::StatusOr<bool> goes_on = recovery_.Regroup();
  if (!goes_on.ok()) {
    std::fputs(withheld.c_str(), stderr);
    *code = ExitCodeOf(goes_on.status());
    if (job_->tells()) {
      PrintError(goes_on.status());
      events_.TellEnd(*code, kUnknownIteration, goes_on.status());
      events_.Finish();
    }
    return std::nullopt;
  }
  if (!*goes_on) {
    *code = kExitDone;
    return std::nullopt;
  }
  Watch();
  return ReadConfig(job_->plan()->data_size);
}

absl::StatusOr<PretrainProcess::Planned> PretrainProcess::Plan(absl::StatusOr<LoadedConfig> read) {
  Planned planned;
  MEGATRON_ASSIGN_OR_RETURN(planned.loaded, Agree(ForThisProgram(command_, std::move(read))));
  MEGATRON_ASSIGN_OR_RETURN(planned.run, Agree(PlanPretraining(planned.loaded.config)));
  const RunOptions& options = planned.run.options;
  absl::StatusOr<std::optional<PlanningFacts>> facts = std::nullopt;
  if (launch_.rank == 0)
    facts = WithExitCode(ReadFactsOfRun(PosixFileSystem(), options), kExitConfig);
  MEGATRON_ASSIGN_OR_RETURN(facts_, Agree(std::move(facts)));
  MEGATRON_RETURN_IF_ERROR(Agree(CheckMemory(options, planned.run.plan, RanksHere(options))));
  MEGATRON_RETURN_IF_ERROR(
      Agree(CheckDisk(PosixFileSystem(), options, planned.run.plan, RanksHere(options))));
  return planned;
}

absl::StatusOr<RunLock> PretrainProcess::OpenDirectories(const PretrainRun& run) const {
  const ProfileOptions& profile = run.options().profile;
  if (profile.enabled && (!one_of_several() || profile.Covers(launch_.rank))) {
    MEGATRON_RETURN_IF_ERROR(OpenProfileDirectory(*run.fs, profile, launch_.rank));
  }
  if (const std::string& folder = run.options().trainer.state_directory; !folder.empty()) {
    MEGATRON_RETURN_IF_ERROR(WithExitCode(run.fs->CreateDirs(folder), kExitConfig),
                             _ << "for optimizer.optimizer_offload_path");
  }
  if (const std::string& folder = run.options().trainer.weight_directory; !folder.empty()) {
    MEGATRON_RETURN_IF_ERROR(WithExitCode(run.fs->CreateDirs(folder), kExitConfig),
                             _ << "for parallel.param_offload_path");
  }
  if (recovery_.goes_on()) return RunLock();
  return OpenSaveDirectory(*run.fs, run.options().checkpoint,
                           RunId(run.training.description.identity), launch_.rank,
                           launch_.world_size);
}

absl::StatusOr<PretrainRun> PretrainProcess::Prepare(const LoadedConfig& loaded,
                                                     PlannedPretraining planned) {
  const config::PretrainConfig& config = loaded.config;
  PretrainRun run;
  run.fs = &PosixFileSystem();
  run.plan = std::move(planned.plan);
  run.rank_order = std::move(planned.rank_order);
  run.offload = std::move(planned.offload);
  run.tokenizer = std::move(planned.tokenizer);
  run.training.options = std::move(planned.options);
  run.training.speed = planned.speed;
  run.training.program_start = run_start_;
  run.training.restart_reason = launch_.restart_reason;
  run.device_calls = &device_calls_;
  run.on_piece = command_.on_piece;
  run.user.commands = UserCommands::OfThisProcess(command_.program);
  run.user.arguments = command_.arguments();
  run.user.has_launcher = one_of_several() && std::getenv(kTypedProgramVariable) == nullptr;
  if (one_of_several()) {
    run.local_rank = launch_.local_rank;
    run.host = job_->host();
  }
  const RunOptions& options = run.options();
  const int ranks_here = RanksHere(options);
  run.threads_per_rank = std::max(1, options.num_threads / ranks_here);
  MEGATRON_ASSIGN_OR_RETURN(run.links, Agree(OpenDeviceLinks(options, launch_, processes_)));
  run.training.speed.peak_flops = PeakFlops(options, ranks_here);
  MEGATRON_ASSIGN_OR_RETURN(run.attention, Agree(OpenAttention(*run.fs, config, options)));
  run.training.options.trainer.model.transformer.attention_kernels = run.attention.kernels;
  MEGATRON_ASSIGN_OR_RETURN(run.training.data,
                            Agree(OpenData(*run.fs, options.data, *run.tokenizer)));
  MEGATRON_ASSIGN_OR_RETURN(run.training.tasks,
                            Agree(OpenTasks(*run.fs, options.tasks, *run.tokenizer)));
  const std::string& fingerprint = run.training.data.fingerprint;
  const std::string instruction_set = options.device == DeviceType::kCpu ? ops::IsaName() : "";
  run.training.description.identity = RunIdentity(config, fingerprint);
  run.training.description.config_text = EffectiveConfigText(config);
  run.training.description.phase_transitions = options.loop.phase_transitions;
  run.training.description.phase_data = fingerprint;
  run.training.description.seed = options.seed;
  MEGATRON_ASSIGN_OR_RETURN(run.training.prediction,
                            Predict(config, options.trainer.model.padded_vocab_size));
  events_.Open(one_of_several(), &run.training);
  run.training.description.instruction_set = instruction_set;
  if (ranks_.in_process_recovery && launch_.rank == 0)
    run.training.others_come = recovery_.OthersCome();
  MEGATRON_ASSIGN_OR_RETURN(RunLock opened, Agree(OpenDirectories(run)));
  // The first process has taken the lock; the others join it.
  if (!save_lock_) {
    const bool has_it = launch_.rank == 0 && !recovery_.goes_on();
    absl::StatusOr<RunLock> lock =
        has_it ? absl::StatusOr<RunLock>(std::move(opened)) : JoinSaveDirectory(options.checkpoint);
    MEGATRON_RETURN_IF_ERROR(Agree(lock.status()));
    save_lock_ = *std::move(lock);
  } else {
    MEGATRON_RETURN_IF_ERROR(Agree(absl::OkStatus()));
  }
  const auto warn = [this](const std::string& warning) { Warn(warning); };
  MEGATRON_ASSIGN_OR_RETURN(
      run.training.local,
      OpenLocalPlace(*run.fs, options.checkpoint, options.num_ranks(), processes_, warn));
  if (layout_) {
    run.layout = {layout_->line().begin(), layout_->line().end()};
    const std::string& save = options.checkpoint.save;
    const bool saves = launch_.rank == 0 && !save.empty();
    MEGATRON_RETURN_IF_ERROR(Agree(
        WithExitCode(saves ? SaveLayout(*run.fs, save, *layout_) : absl::OkStatus(), kExitIo)));
  }
  // The plans may lie in the directory of checkpoints, which is there now.
  MEGATRON_ASSIGN_OR_RETURN(const std::string gemm_plans, Agree(OpenGemmPlans(*run.fs, options)));
  std::string& kernels = run.training.description.kernels;
  kernels = DescribeKernels(options, run.attention, gemm_plans);
  MEGATRON_RETURN_IF_ERROR(FindStart(loaded, &run));
  const std::string checkpoint =
      run.start.checkpoint == nullptr ? "" : run.start.checkpoint->directory();
  MEGATRON_RETURN_IF_ERROR(
      Agree(CheckSameRun({config, fingerprint, gemm_plans, run.attention.order, checkpoint,
                          instruction_set, options.parallel.order.ToString()},
                         processes_)));
  MEGATRON_RETURN_IF_ERROR(
      Agree(CheckSameKernels(run.start, kernels, options.deterministic, warn)));
  return run;
}

absl::Status PretrainProcess::FindStart(const LoadedConfig& loaded, PretrainRun* run) {
  if (recovery_.goes_on()) recovery_.DescribeGoingOn(&run->training);
  if (recovery_.goes_on() && job_->plan()->iteration >= 0) {
    run->state_in_memory = {job_->plan()->iteration, job_->plan()->parts};
    run->kept = &recovery_.kept();
    run->training.starts_from_local = true;
    return absl::OkStatus();
  }
  const auto warn = [this](const std::string& warning) { Warn(warning); };
  const CheckpointOptions& options = run->options().checkpoint;
  MEGATRON_ASSIGN_OR_RETURN(run->start, Agree(OpenCheckpoint(*run->fs, options, warn)));
  MEGATRON_RETURN_IF_ERROR(PreferLocalCheckpoint(
      *run->fs, options, RunId(run->training.description.identity), run->training.local, processes_,
      [this](const std::string& line) {
        if (is_reporting_rank()) PrintLine(line);
      },
      warn, &run->start));
  run->training.starts_from_local = run->start.peer_files != nullptr;
  if (run->start.checkpoint == nullptr || BeginsRun(run->start.restore)) return absl::OkStatus();
  const std::string other = OtherInstructionSet(*run->start.checkpoint, run->training.description);
  if (!other.empty()) warn(other);
  return Agree(CheckBatches(*run->start.checkpoint, loaded.config, loaded.locations));
}

absl::StatusOr<StepComparison> PretrainProcess::Predict(const config::PretrainConfig& config,
                                                        int64_t padded_vocab_size) const {
  StepComparison mine;
  if (facts_) {
    const auto predicted = PredictRun(config, padded_vocab_size, *facts_);
    if (predicted.ok()) {
      mine = *predicted;
    } else {
      PrintLine(absl::StrCat("no step of this run is predicted: ", predicted.status().message()));
    }
  }
  StepComparison first;
  const std::string text = Consensus(processes_).OfFirst(mine.SerializeAsString());
  if (!first.ParseFromString(text)) return absl::InternalError("a prediction can't be read");
  return first;
}

std::optional<absl::StatusOr<LoadedConfig>> PretrainProcess::Start(int* code) {
  const absl::StatusOr<AskedConfig> asked = ReadAsked(command_);
  const bool chooses = asked.ok() && asked->chooses_layout();
  absl::StatusOr<LoadedConfig> read;
  if (!chooses) read = ReadConfig();
  // Each process knows the sizes for itself, and need not wait for the others to say so.
  if (read.ok()) {
    const absl::Status fits = CheckWorldSize(launch_, read->config.parallel());
    if (!fits.ok()) {
      *code = Leave(fits);
      return std::nullopt;
    }
  }
  // Processes meet before data, tokenizers and directories are opened, so that an error of any of
  // them is reported once, by all.
  if (chooses) ranks_ = ToRanksOptions(asked->parsed.config.parallel());
  if (read.ok()) ranks_ = ToRanksOptions(read->config.parallel());
  const absl::StatusOr<bool> joined = Join();
  if (!joined.ok() || !*joined) {
    *code = joined.ok() ? kExitDone : PrintError(joined.status());
    return std::nullopt;
  }
  if (recovery_.goes_on()) return ReadConfig(job_->plan()->data_size);
  return chooses ? ReadWithLayout(*asked) : std::move(read);
}

int PretrainProcess::Run() {
  int code = kExitDone;
  std::optional<absl::StatusOr<LoadedConfig>> read = Start(&code);
  while (read) {
    code = RunWith(*std::move(read));
    if (!recovery_.MayGoOn()) return code;
    recovery_.LeaveWorld();
    read = GoOn(&code);
  }
  return code;
}

int PretrainProcess::RunWith(absl::StatusOr<LoadedConfig> read) {
  absl::StatusOr<Planned> planned = Plan(std::move(read));
  if (!planned.ok()) return Leave(planned.status());
  const RunOptions& options = planned->run.options;
  recovery_.Plan(options.parallel, !options.checkpoint.save.empty());
  if (!one_of_several() && options.ranks.processes && options.num_ranks() > 1) {
    const absl::StatusOr<RunLock> claim =
        ClaimSaveDirectory(PosixFileSystem(), options.checkpoint, command_.program);
    if (!claim.ok()) return Leave(claim.status());
    setenv(kTypedProgramVariable, command_.program.c_str(), /*overwrite=*/1);
    return StartRanks(options.num_ranks(), options.parallel.data, command_.arguments(),
                      options.ranks, [this](int64_t data_size) { return Fits(data_size); });
  }
  const absl::StatusOr<PretrainRun> run = Prepare(planned->loaded, std::move(planned->run));
  if (!run.ok()) return Leave(run.status());
  if (is_reporting_rank() && !recovery_.goes_on()) {
    RanksOfMachine here;
    here.ranks = RanksHere(run->options());
    here.bytes = HostBytes(run->options(), run->plan, here.ranks);
    if (one_of_several()) here.launch = launch_.Describe();
    here.restarts = launch_.restarts;
    here.restart_reason = launch_.restart_reason;
    for (const std::string& line : command_.checkpoint_lines) PrintLine(line);
    for (const std::string& line : Introduce(planned->loaded.config, *run, here)) PrintLine(line);
    if (ranks_.in_process_recovery && !launch_.store_is_served) {
      Warn(
          "parallel.in_process_recovery has no effect with this launcher, which ends all ranks "
          "when "
          "one is lost; launch --in_process_recovery goes on with them");
    }
  }
  if (!std::exchange(listens_, true)) ListenForStopSignals(/*answer=*/is_reporting_rank());
  const int code = one_of_several() ? RunOneOfSeveral(*run) : RunRanks(*run);
  return code == kExitDone && launch_.rank == 0 ? WriteModel(*run) : code;
}

int PretrainProcess::WriteModel(const PretrainRun& run) {
  const absl::StatusOr<std::string> line = SaveHuggingface(*run.fs, run.options());
  if (!line.ok()) return PrintError(line.status());
  if (!line->empty()) PrintLine(*line);
  return kExitDone;
}

std::vector<CoreShare> PretrainProcess::OpenCores(const RunOptions& options) const {
  if (!options.bind_cores) return {};
  const absl::StatusOr<std::vector<CoreShare>> cores =
      CoresOfRanks(options.device, RanksHere(options), allowed_threads_);
  if (!cores.ok()) {
    Warn(absl::StrCat("system.bind_cores_to_rank: ", cores.status().message(),
                      "; ranks are not bound"));
    return {};
  }
  if (is_reporting_rank()) {
    for (size_t rank = 0; rank < cores->size(); ++rank)
      PrintLine(absl::StrCat("rank ", rank, " of this machine runs on cores ",
                             DescribeCores((*cores)[rank])));
  }
  return *cores;
}

void PretrainProcess::Bind(const std::vector<CoreShare>& cores, int local_rank) const {
  if (cores.empty()) return;
  const absl::Status bound = BindThisThread(cores[static_cast<size_t>(local_rank)].threads);
  if (!bound.ok()) Warn(absl::StrCat("system.bind_cores_to_rank: ", bound.message()));
}

int PretrainProcess::RunRanks(const PretrainRun& run) {
  if (run.options().num_ranks() > 1) return RunThreads(run);
  Bind(OpenCores(run.options()), 0);
  PretrainRank rank(run, ProcessGroup(), &failure_);
  const ExitCode code = rank.Run();
  const absl::Status first = failure_.Get();
  events_.TellEnd(code, rank.progress().iteration(), first);
  return first.ok() ? code : Leave(first);
}

int PretrainProcess::RunThreads(const PretrainRun& run) {
  ThreadWorldOptions options;
  options.deadline = run.options().ranks.timeout;
  ThreadWorld world(run.options().num_ranks(), options);
  FaultMonitor monitor(&world, MonitorOptions(run.options().ranks));
  const std::vector<CoreShare> cores = OpenCores(run.options());
  ExitCode code = kExitDone;
  std::atomic<int64_t> iteration{0};
  auto run_rank = [&](int number, const ProcessGroup& group) -> absl::Status {
    pthread_setname_np(pthread_self(),
                       absl::StrCat("rank ", number).c_str());  // the name is for reports
    Bind(cores, number);
    PretrainRank rank(run, group, &failure_);
    const FaultMonitor::Watch watch(&monitor, number, &rank.progress());
    const ExitCode left = rank.Run();
    if (rank.is_reporting_rank()) code = left;
    iteration = std::max<int64_t>(iteration, rank.progress().iteration());
    // An error ends the others, whatever they wait for, and before this rank's own end waits for
    // them.
    const absl::Status first = failure_.Get();
    if (first.ok()) return absl::OkStatus();
    world.Abort(absl::AbortedError(absl::StrCat("rank ", number, ": ", first.message())));
    return absl::AbortedError(first.message());
  };
  const absl::Status status = megatron::RunRanks(&world, run_rank);
  const bool told = !status.ok() && monitor.WaitUntilReported();
  const absl::Status first =
      failure_.Get().ok() ? WithExitCode(status, kExitPeerLost) : failure_.Get();
  events_.TellEnd(first.ok() ? code : ExitCodeOf(first), iteration, first);
  if (first.ok()) return code;
  return told ? ExitCodeOf(first) : Leave(first);
}

int PretrainProcess::RunOneOfSeveral(const PretrainRun& run) {
  Bind(OpenCores(run.options()), launch_.local_rank);
  PretrainRank rank(run, processes_, &failure_);
  const FaultMonitor::Watch watch(monitor_.get(), launch_.rank, &rank.progress());
  const ExitCode code = rank.Run();
  const absl::Status first = failure_.Get();
  recovery_.set_makes_room(rank.makes_room());
  if (recovery_.MayGoOn()) {
    rank.Keep(&recovery_.kept());
    return code;
  }
  if (first.ok()) {
    if (is_reporting_rank()) events_.TellEnd(code, rank.progress().iteration(), first);
    job_->End();
    return code;
  }
  job_->world().Abort(absl::AbortedError(first.message()));
  return Leave(first);
}

}  // namespace

int Pretrain(const PretrainCommand& asked) {
  const absl::Time start = SteadyNow();
  const absl::Status cpu = ops::CheckCpu();
  if (!cpu.ok()) return PrintError(WithExitCode(cpu, kExitConfig));
  const absl::StatusOr<PretrainCommand> with_args = WithCheckpointArgs(asked);
  if (!with_args.ok()) return PrintError(with_args.status());
  const PretrainCommand& command = *with_args;
  if (command.dry_run != DryRun::kOff) return PrintPlan(command);
  absl::StatusOr<LaunchEnvironment> launch = ReadLaunchEnvironment(ProcessEnvironment());
  if (!launch.ok()) return PrintError(WithExitCode(launch.status(), kExitConfig));
  return PretrainProcess(command, *std::move(launch), start).Run();
}

}  // namespace megatron
