#include "megatron/train/pretrain.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/launch/launch_env.h"
#include "megatron/comm/launch/regroup.h"
#include "megatron/comm/process_group.h"
#include "megatron/comm/rank_grid.h"
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
#include "megatron/train/introduction.h"
#include "megatron/train/launch/rank_job.h"
#include "megatron/train/launch/rank_processes.h"
#include "megatron/train/metrics/event_command.h"
#include "megatron/train/metrics/run_event.h"
#include "megatron/train/planning/auto_layout.h"
#include "megatron/train/planning/planning_facts.h"
#include "megatron/train/planning/predict_run.h"
#include "megatron/train/preflight/check_memory.h"
#include "megatron/train/preflight/check_same_kernels.h"
#include "megatron/train/preflight/check_same_run.h"
#include "megatron/train/preflight/check_world_size.h"
#include "megatron/train/preflight/checkpoint_args.h"
#include "megatron/train/preflight/open_checkpoint.h"
#include "megatron/train/preflight/open_data.h"
#include "megatron/train/preflight/open_devices.h"
#include "megatron/train/preflight/open_directories.h"
#include "megatron/train/preflight/open_local_checkpoints.h"
#include "megatron/train/preflight/plan_pretraining.h"
#include "megatron/train/preflight/plan_report.h"
#include "megatron/train/preflight/resolve_paths.h"
#include "megatron/train/rank/pretrain_rank.h"
#include "megatron/train/trainer/consensus.h"
#include "megatron/train/trainer/run_identity.h"
#include "megatron/train/trainer/run_plan.h"

namespace megatron {
namespace {

constexpr int64_t kUnknownIteration = -1;

// Returns the exit code.
int PrintError(const absl::Status& error) {
  std::fflush(stdout);
  std::fprintf(stderr, "error: %s\n", std::string(error.message()).c_str());
  return ExitCodeOf(error);
}

void PrintLine(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

// Returns the configuration that was read, if the program may train it, with paths that can be
// opened.
absl::StatusOr<LoadedConfig> ForThisProgram(const PretrainCommand& command,
                                            absl::StatusOr<LoadedConfig> read) {
  MEGATRON_RETURN_IF_ERROR(WithExitCode(read.status(), kExitConfig));
  MEGATRON_RETURN_IF_ERROR(CheckModelType(read->config, command.config, command.model_type));
  ResolvePaths(PosixFileSystem(), command.config, &read->config);
  if (command.on_config != nullptr) {
    MEGATRON_RETURN_IF_ERROR(WithExitCode(command.on_config(read->config), kExitConfig));
  }
  return read;
}

// What the command asks for, before any of it is checked.
struct AskedConfig {
  FoundConfig found;
  ParsedConfig parsed;

  // Errors are left to the loading of the whole configuration.
  bool chooses_layout() const {
    return parsed.errors.empty() && parsed.config.train().auto_layout();
  }
};

absl::StatusOr<AskedConfig> ReadAsked(const PretrainCommand& command) {
  AskedConfig asked;
  MEGATRON_ASSIGN_OR_RETURN(asked.found, FindConfig(command.config));
  asked.parsed = ParseConfig(asked.found.text, asked.found.source, command.all_overrides());
  return asked;
}

absl::StatusOr<SavedLayout> ChooseLayoutOf(const PretrainCommand& command, const AskedConfig& asked,
                                           const LaunchEnvironment& launch) {
  LayoutRequest request;
  request.parsed = asked.parsed;
  ResolvePaths(PosixFileSystem(), command.config, &request.parsed.config);
  if (launch.world_size > 1) {
    request.launched = launch.world_size;
    request.launched_here = launch.local_world_size;
  }
  return WithExitCode(ChooseLayout(PosixFileSystem(), request), kExitConfig);
}

// Loads the configuration with the layout, whose fields have the choice as their place.
absl::StatusOr<LoadedConfig> LoadWithLayout(const AskedConfig& asked,
                                            const std::vector<std::string>& overrides,
                                            const SavedLayout& layout, ConfigPurpose purpose) {
  MEGATRON_ASSIGN_OR_RETURN(LoadedConfig loaded,
                            LoadConfigFromString(asked.found.text, asked.found.source,
                                                 WithLayout(overrides, layout), purpose));
  for (const std::string& text : layout.set()) {
    const std::string path = text.substr(0, text.find('='));
    if (loaded.locations.IsSet(path)) loaded.locations.Set(path, "train.auto_layout");
  }
  return loaded;
}

// Returns the configuration to plan; sets the layout where that is to be chosen.
absl::StatusOr<LoadedConfig> LoadToPlan(const PretrainCommand& command, SavedLayout* layout) {
  const absl::StatusOr<AskedConfig> asked = ReadAsked(command);
  MEGATRON_RETURN_IF_ERROR(asked.status());
  if (asked->chooses_layout()) {
    MEGATRON_ASSIGN_OR_RETURN(*layout, ChooseLayoutOf(command, *asked, LaunchEnvironment()));
  }
  return LoadWithLayout(*asked, command.all_overrides(), *layout, ConfigPurpose::kDryRun);
}

int PrintPlan(const PretrainCommand& command) {
  SavedLayout layout;
  const absl::StatusOr<LoadedConfig> loaded = ForThisProgram(command, LoadToPlan(command, &layout));
  if (!loaded.ok()) return PrintError(loaded.status());
  const absl::StatusOr<PlannedPretraining> planned = PlanPretraining(loaded->config);
  if (!planned.ok()) return PrintError(planned.status());
  const absl::Status predictable =
      WithExitCode(ReadFactsOfRun(PosixFileSystem(), planned->options).status(), kExitConfig);
  if (!predictable.ok()) return PrintError(predictable);
  std::string report;
  if (command.dry_run == DryRun::kFull) {
    report = FormatFullPlan(*loaded, *planned);
  } else {
    MachineMemory machine = MemoryOfThisMachine();
    // A plan may be for another machine, with devices that this one lacks.
    const auto here = LoadConfig(command.config, WithLayout(command.all_overrides(), layout),
                                 ConfigPurpose::kRun);
    machine.refusal = std::string(here.status().message());
    if (const std::string& folder = planned->options.trainer.state_directory; !folder.empty())
      machine.disk_bytes = FreeDiskBytes(PosixFileSystem(), folder);
    report = command.dry_run == DryRun::kJson ? FormatPlanJson(*loaded, *planned, machine)
                                              : FormatPlanScreen(*loaded, *planned, machine);
  }
  if (command.dry_run != DryRun::kJson) {
    for (const std::string& line : command.checkpoint_lines) PrintLine(line);
    for (const std::string& line : layout.line()) PrintLine(line);
  }
  std::fwrite(report.data(), 1, report.size(), stdout);
  return kExitDone;
}

// Returns whether the configuration asks for several ranks, whatever else may be wrong with it.
bool HasSeveralRanks(const FoundConfig& found, const std::vector<std::string>& overrides) {
  const ParsedConfig parsed = ParseConfig(found.text, found.source, overrides);
  const config::ParallelConfig& parallel = parsed.config.parallel();
  return parallel.tensor_model_parallel_size() > 1 || parallel.context_parallel_size() > 1 ||
         parallel.pipeline_model_parallel_size() > 1 || parallel.data_parallel_size() > 1;
}

// This process of a run. Its ranks are threads, which share what does not change, or this process
// is one rank of several: then all go through the same steps, and what goes wrong in one is the
// failure of all.
class PretrainProcess {
 public:
  PretrainProcess(const PretrainCommand& command, LaunchEnvironment launch, absl::Time start)
      : command_(command),
        launch_(std::move(launch)),
        one_of_several_(launch_.world_size > 1),
        start_(start) {}

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
  // Makes the command hear of the run's events, if the user has one.
  void OpenEventCommand(TrainingRun* run);
  // Trains with the ranks that there are. Returns the exit code.
  int RunWith(absl::StatusOr<LoadedConfig> read);
  int RunRanks(const PretrainRun& run);
  int RunThreads(const PretrainRun& run);
  int RunOneOfSeveral(const PretrainRun& run);

  // Finds the state that the run starts from.
  absl::Status FindStart(const LoadedConfig& loaded, PretrainRun* run);
  // Whether other ranks were lost, and this process may go on without them.
  bool LostOthers() const;
  bool MayGoOn() const { return job_ != nullptr && sizes_ && (makes_room_ || LostOthers()); }
  // Makes a world of the processes that go on. Nothing if this one does not: `code` is its exit code.
  std::optional<absl::StatusOr<LoadedConfig>> GoOn(int* code);
  // The iteration of the kept state if it is that of this process's rank; else -1.
  int64_t KeptIteration() const;
  RegroupRules Rules() const;
  // Returns TrainingRun::others_come of the first rank.
  std::function<bool()> OthersCome();
  // What the run's loop has to know of the world that this process has come to.
  void DescribeGoingOn(TrainingRun* run);

  // Returns the failure that ends this process after its world has failed.
  absl::Status FailureOf(const absl::Status& world) const;
  FaultMonitorOptions MonitorOptions(const RanksOptions& ranks);
  void Warn(const std::string& warning) const {
    if (is_reporting_rank()) PrintLine(absl::StrCat("WARNING: ", warning));
  }
  // Prints the error, which all processes know, once. Returns the exit code.
  int Leave(const absl::Status& error) const;
  // Tells the run's listener, if there is one, that the run has lost a rank or ends.
  void Tell(RunEventKind kind, int64_t iteration, const std::string& message,
            std::optional<int> exit_code) const;
  // Tells the end of the run, unless that has been told.
  void TellEnd(int code, int64_t iteration, const absl::Status& failure);
  // Waits a moment for the commands that still run.
  void FinishEvents() const;

  bool one_of_several() const { return one_of_several_; }
  // Whether ranks have met anew since the launch.
  bool goes_on() const { return job_ != nullptr && job_->plan() != nullptr; }
  int RanksHere(const RunOptions& options) const {
    return one_of_several() ? launch_.local_world_size : options.num_ranks();
  }
  bool is_reporting_rank() const { return launch_.rank == launch_.world_size - 1; }

  const PretrainCommand& command_;
  LaunchEnvironment launch_;  // this process's place among the ranks that there are
  const bool one_of_several_;
  const absl::Time start_;
  RanksOptions ranks_;
  std::optional<SavedLayout> layout_;   // with train.auto_layout
  std::optional<PlanningFacts> facts_;  // on the first rank of a run that is to be predicted
  std::unique_ptr<RankJob> job_;        // null: this process is not one rank of several
  FirstFailure failure_;                // the first failure among the ranks of this process
  DeviceCalls device_calls_;            // outlives the monitor, which asks it
  std::unique_ptr<EventCommand> event_command_;  // null: none; outlives the monitor
  // The same, for the monitor's threads, which may look before there is one.
  std::atomic<EventCommand*> events_{nullptr};
  std::atomic<bool> told_end_{false};
  std::unique_ptr<FaultMonitor> monitor_;
  ProcessGroup processes_;
  // What a process keeps while ranks change: the layout before, the lock on the directory of
  // checkpoints, its state, and when it had to leave its world.
  std::optional<ParallelSizes> sizes_;
  std::optional<RunLock> save_lock_;
  KeptRank kept_;
  bool has_checkpoints_ = false;
  bool listens_ = false;  // to signals
  bool makes_room_ = false;
  absl::Time left_at_;
};

int PretrainProcess::Leave(const absl::Status& error) const {
  if (job_ != nullptr && !job_->world().status().ok()) {
    monitor_->WaitUntilReported();
  } else if (is_reporting_rank()) {
    PrintError(error);
  }
  return ExitCodeOf(error);
}

void PretrainProcess::Tell(RunEventKind kind, int64_t iteration, const std::string& message,
                           std::optional<int> exit_code) const {
  EventCommand* const command = events_.load();
  if (command == nullptr) return;
  RunEvent event;
  event.kind = kind;
  event.time = absl::Now();
  event.iteration = iteration;
  event.message = message;
  event.exit_code = exit_code;
  command->Raise(event);
}

void PretrainProcess::FinishEvents() const {
  if (EventCommand* const command = events_.load()) command->Finish();
}

void PretrainProcess::TellEnd(int code, int64_t iteration, const absl::Status& failure) {
  if (told_end_.exchange(true)) return;
  Tell(RunEventKind::kEnd, iteration,
       failure.ok() ? absl::StrCat("training ends with code ", code)
                    : std::string(failure.message()),
       code);
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
    if (!one_of_several()) TellEnd(ExitCodeOf(failure), kUnknownIteration, failure);
    FinishEvents();
    // The others go on without this process, which may be started again.
    const int code = LostOthers() ? kExitHang : ExitCodeOf(failure);
    return {code, std::string(failure.message())};
  };
  options.on_report = [this](const absl::Status& reason, int64_t iteration) {
    const absl::Status failure = FailureOf(reason);
    const int code = ExitCodeOf(failure);
    if (code == kExitPeerLost || code == kExitHang)
      Tell(RunEventKind::kRankLost, iteration, std::string(reason.message()), std::nullopt);
    if (LostOthers()) return;
    TellEnd(code, iteration, failure);
    FinishEvents();
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
  left_at_ = start_;
  Watch();
  return true;
}

void PretrainProcess::Watch() {
  launch_ = job_->launch();
  monitor_ = std::make_unique<FaultMonitor>(&job_->world(), MonitorOptions(ranks_));
  processes_ = ProcessGroup(job_->world().communicator());
}

bool PretrainProcess::LostOthers() const {
  if (!ranks_.in_process_recovery || job_ == nullptr) return false;
  const absl::Status world = job_->world().status();
  if (!absl::IsUnavailable(world) && !absl::IsDeadlineExceeded(world)) return false;
  // What failed here may follow from it, unless it is wrong in itself.
  const int code = ExitCodeOf(failure_.Get());
  return code == kExitDone || code == kExitPeerLost || code == kExitHang || code == kExitIo;
}

int64_t PretrainProcess::KeptIteration() const {
  if (!kept_.state) return -1;
  const absl::StatusOr<RankGrid> grid = RankGrid::Create(*sizes_, launch_.world_size);
  const bool is_of_rank =
      grid.ok() && grid->Coordinate(launch_.rank, Axis::kTensor) == kept_.state->tensor_rank &&
      grid->Coordinate(launch_.rank, Axis::kPipeline) == kept_.state->pipeline_rank;
  return is_of_rank ? kept_.state->iteration() : -1;
}

RegroupRules PretrainProcess::Rules() const {
  RegroupRules rules;
  rules.sizes = *sizes_;
  const int ranks_of_model = launch_.world_size / sizes_->data;
  rules.most_data_size = job_->launched_ranks() / ranks_of_model;
  rules.least_data_size = std::max<int>(1, static_cast<int>(ranks_.min_data_size));
  rules.fits = [this](int64_t data_size) { return Fits(data_size); };
  rules.from_checkpoint = has_checkpoints_;
  return rules;
}

std::function<bool()> PretrainProcess::OthersCome() {
  const int ranks_of_model = launch_.world_size / sizes_->data;
  int next = sizes_->data + 1;
  const int most = job_->launched_ranks() / ranks_of_model;
  while (next <= most && !Fits(next)) ++next;
  if (next > most) return nullptr;
  const int64_t missing = int64_t{ranks_of_model} * next - launch_.world_size;
  return [this, missing, last = absl::InfinitePast()]() mutable {
    if (absl::Now() < last + absl::Seconds(1)) return false;
    last = absl::Now();
    return job_->CountWaiting() >= missing;
  };
}

std::optional<absl::StatusOr<LoadedConfig>> PretrainProcess::GoOn(int* code) {
  if (!makes_room_) monitor_->WaitUntilReported();
  monitor_.reset();
  processes_ = ProcessGroup();
  failure_.Clear();
  makes_room_ = false;
  const absl::StatusOr<bool> goes_on = job_->Regroup(KeptIteration(), Rules());
  if (!goes_on.ok()) {
    *code = ExitCodeOf(goes_on.status());
    if (job_->tells()) {
      PrintError(goes_on.status());
      TellEnd(*code, kUnknownIteration, goes_on.status());
      FinishEvents();
    }
    return std::nullopt;
  }
  if (!*goes_on) {
    *code = kExitDone;
    return std::nullopt;
  }
  Watch();
  sizes_->data = job_->plan()->data_size;
  return ReadConfig(job_->plan()->data_size);
}

void PretrainProcess::DescribeGoingOn(TrainingRun* run) {
  const RegroupPlan& plan = *job_->plan();
  run->going_on.emplace();
  run->going_on->how =
      absl::StrCat(plan.reason.empty() ? "" : " ", plan.reason, ": ", plan.ranks.size(),
                   " ranks, parallel.data_parallel_size = ", plan.data_size, ", from ",
                   plan.iteration >= 0 ? "the memory of ranks" : "a checkpoint");
  run->going_on->since = left_at_;
  run->going_on->last_step = kept_.last_step;
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
  if (goes_on()) return RunLock();
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
  run.tokenizer = std::move(planned.tokenizer);
  run.training.options = std::move(planned.options);
  run.training.speed = planned.speed;
  run.training.program_start = start_;
  run.training.restart_reason = launch_.restart_reason;
  run.device_calls = &device_calls_;
  run.on_piece = command_.on_piece;
  run.user.commands = UserCommands::OfThisProcess(command_.program);
  run.user.arguments = command_.arguments();
  run.user.has_launcher = one_of_several() && std::getenv(kTypedProgramVariable) == nullptr;
  if (one_of_several()) run.local_rank = launch_.local_rank;
  const RunOptions& options = run.options();
  const int ranks_here = RanksHere(options);
  run.threads_per_rank = std::max(1, options.num_threads / ranks_here);
  MEGATRON_ASSIGN_OR_RETURN(run.links, Agree(OpenDeviceLinks(options, launch_, processes_)));
  run.training.speed.peak_flops = PeakFlops(options, ranks_here);
  MEGATRON_ASSIGN_OR_RETURN(run.attention, Agree(OpenAttention(*run.fs, config, options)));
  run.training.options.trainer.model.transformer.attention_kernels = run.attention.kernels;
  MEGATRON_ASSIGN_OR_RETURN(run.training.data,
                            Agree(OpenData(*run.fs, options.data, *run.tokenizer)));
  const std::string& fingerprint = run.training.data.fingerprint;
  const std::string instruction_set = options.device == DeviceType::kCpu ? ops::IsaName() : "";
  run.training.description.identity = RunIdentity(config, fingerprint);
  run.training.description.config_text = EffectiveConfigText(config);
  MEGATRON_ASSIGN_OR_RETURN(run.training.prediction,
                            Predict(config, options.trainer.model.padded_vocab_size));
  OpenEventCommand(&run.training);
  run.training.description.instruction_set = instruction_set;
  if (ranks_.in_process_recovery && launch_.rank == 0) run.training.others_come = OthersCome();
  MEGATRON_ASSIGN_OR_RETURN(RunLock opened, Agree(OpenDirectories(run)));
  // The first process has taken the lock; the others join it.
  if (!save_lock_) {
    const bool has_it = launch_.rank == 0 && !goes_on();
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
  if (goes_on()) DescribeGoingOn(&run->training);
  if (goes_on() && job_->plan()->iteration >= 0) {
    run->iteration_in_memory = job_->plan()->iteration;
    run->kept = &kept_;
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
  if (run->start.checkpoint == nullptr || run->start.restore == Restore::kWeights)
    return absl::OkStatus();
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

void PretrainProcess::OpenEventCommand(TrainingRun* run) {
  if (run->options.loop.on_event.empty()) return;
  run->on_event = [this](const RunEvent& event) { event_command_->Raise(event); };
  if (event_command_ != nullptr) return;
  EventCommandOptions options;
  options.command = run->options.loop.on_event;
  options.run_id = RunId(run->description.identity);
  options.save = run->options.checkpoint.save;
  // A launcher ends a rank that stays behind the others without doing anything.
  const absl::Duration stuck = run->options.ranks.stuck_timeout;
  if (one_of_several() && stuck > absl::ZeroDuration())
    options.last_wait = std::min(options.last_wait, stuck / 4);
  event_command_ = std::make_unique<EventCommand>(std::move(options));
  events_.store(event_command_.get());
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
  if (goes_on()) return ReadConfig(job_->plan()->data_size);
  return chooses ? ReadWithLayout(*asked) : std::move(read);
}

int PretrainProcess::Run() {
  int code = kExitDone;
  std::optional<absl::StatusOr<LoadedConfig>> read = Start(&code);
  while (read) {
    code = RunWith(*std::move(read));
    if (!MayGoOn()) return code;
    left_at_ = absl::Now();
    read = GoOn(&code);
  }
  return code;
}

int PretrainProcess::RunWith(absl::StatusOr<LoadedConfig> read) {
  absl::StatusOr<Planned> planned = Plan(std::move(read));
  if (!planned.ok()) return Leave(planned.status());
  const RunOptions& options = planned->run.options;
  sizes_ = options.parallel;
  has_checkpoints_ = !options.checkpoint.save.empty();
  if (!one_of_several() && options.ranks.processes && options.num_ranks() > 1) {
    setenv(kTypedProgramVariable, command_.program.c_str(), /*overwrite=*/1);
    return StartRanks(options.num_ranks(), options.parallel.data, command_.arguments(),
                      options.ranks, [this](int64_t data_size) { return Fits(data_size); });
  }
  const absl::StatusOr<PretrainRun> run = Prepare(planned->loaded, std::move(planned->run));
  if (!run.ok()) return Leave(run.status());
  if (is_reporting_rank() && !goes_on()) {
    RanksOfMachine here;
    here.ranks = RanksHere(run->options());
    here.bytes = HostBytes(run->options(), run->plan, here.ranks);
    if (one_of_several()) here.launch = launch_.Describe();
    here.restarts = launch_.restarts;
    here.restart_reason = launch_.restart_reason;
    for (const std::string& line : command_.checkpoint_lines) PrintLine(line);
    for (const std::string& line : Introduce(planned->loaded.config, *run, here)) PrintLine(line);
  }
  if (!std::exchange(listens_, true)) ListenForStopSignals(/*answer=*/is_reporting_rank());
  return one_of_several() ? RunOneOfSeveral(*run) : RunRanks(*run);
}

int PretrainProcess::RunRanks(const PretrainRun& run) {
  if (run.options().num_ranks() > 1) return RunThreads(run);
  PretrainRank rank(run, ProcessGroup(), &failure_);
  const ExitCode code = rank.Run();
  const absl::Status first = failure_.Get();
  TellEnd(code, rank.progress().iteration(), first);
  return first.ok() ? code : Leave(first);
}

int PretrainProcess::RunThreads(const PretrainRun& run) {
  ThreadWorldOptions options;
  options.deadline = run.options().ranks.timeout;
  ThreadWorld world(run.options().num_ranks(), options);
  FaultMonitor monitor(&world, MonitorOptions(run.options().ranks));
  ExitCode code = kExitDone;
  std::atomic<int64_t> iteration{0};
  auto run_rank = [&](int number, const ProcessGroup& group) -> absl::Status {
    pthread_setname_np(pthread_self(),
                       absl::StrCat("rank ", number).c_str());  // the name is for reports
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
  TellEnd(first.ok() ? code : ExitCodeOf(first), iteration, first);
  if (first.ok()) return code;
  return told ? ExitCodeOf(first) : Leave(first);
}

int PretrainProcess::RunOneOfSeveral(const PretrainRun& run) {
  PretrainRank rank(run, processes_, &failure_);
  const FaultMonitor::Watch watch(monitor_.get(), launch_.rank, &rank.progress());
  const ExitCode code = rank.Run();
  const absl::Status first = failure_.Get();
  makes_room_ = rank.makes_room();
  if (MayGoOn()) {
    rank.Keep(&kept_);
    return code;
  }
  if (first.ok()) {
    if (is_reporting_rank()) TellEnd(code, rank.progress().iteration(), first);
    job_->End();
    return code;
  }
  job_->world().Abort(absl::AbortedError(first.message()));
  return Leave(first);
}

// Returns the command with what it takes from a checkpoint. What can't be read is told by the loading
// of the whole configuration.
absl::StatusOr<PretrainCommand> WithCheckpointArgs(PretrainCommand command) {
  const absl::StatusOr<AskedConfig> asked = ReadAsked(command);
  if (!asked.ok()) return command;
  MEGATRON_ASSIGN_OR_RETURN(CheckpointArgs args,
                            ReadCheckpointArgs(PosixFileSystem(), command.config, asked->parsed));
  command.checkpoint_overrides = std::move(args.overrides);
  command.checkpoint_lines = std::move(args.lines);
  return command;
}

}  // namespace

std::vector<std::string> PretrainCommand::all_overrides() const {
  std::vector<std::string> all = overrides;
  all.insert(all.end(), checkpoint_overrides.begin(), checkpoint_overrides.end());
  return all;
}

std::vector<std::string> PretrainCommand::arguments() const {
  std::vector<std::string> arguments = {absl::StrCat("--config=", config)};
  for (const std::string& text : overrides) arguments.push_back(absl::StrCat("--set=", text));
  return arguments;
}

int Pretrain(const PretrainCommand& asked) {
  const absl::Time start = absl::Now();
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
