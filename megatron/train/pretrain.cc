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
#include "megatron/base/out_of_memory.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/steady_now.h"
#include "megatron/comm/launch/claim_line.h"
#include "megatron/comm/launch/launch_env.h"
#include "megatron/comm/process_group.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/comm/watch/fault_monitor.h"
#include "megatron/ops/cpu/isa.h"
#include "megatron/train/command_line/user_commands.h"
#include "megatron/train/config/config.pb.h"
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
#include "megatron/train/preflight/check_limits.h"
#include "megatron/train/preflight/check_memory.h"
#include "megatron/train/preflight/check_world_size.h"
#include "megatron/train/preflight/open_directories.h"
#include "megatron/train/preflight/rank_cores.h"
#include "megatron/train/prepare_run.h"
#include "megatron/train/pretrain_command.h"
#include "megatron/train/print_lines.h"
#include "megatron/train/print_plan.h"
#include "megatron/train/rank/pretrain_rank.h"
#include "megatron/train/rank_recovery.h"
#include "megatron/train/run_events.h"
#include "megatron/train/run_process.h"
#include "megatron/train/trainer/consensus.h"

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
        asked_(ReadAsked(command)),
        process_(std::move(launch)),
        start_(start),
        recovery_(ranks_, process_.launch(), failure_,
                  [this](int64_t data_size) { return Fits(data_size); }),
        preparation_(command, process_, RunStart(), {&recovery_, &events_, &device_calls_}) {}

  // Returns the exit code.
  int Run();

 private:
  // Returns SteadyNow() at the start of the first processes of the run.
  absl::Time RunStart() const;
  // Loads the configuration, at best with this parallel.data_parallel_size; 0: with its own.
  absl::StatusOr<LoadedConfig> ReadConfig(int64_t data_size = 0) const;
  // The first rank chooses the layout for all.
  absl::StatusOr<LoadedConfig> ReadWithLayout(const AskedConfig& asked);
  // Returns the fields that all processes of the run have alike, of what was read.
  absl::StatusOr<std::string> SharedText(const absl::StatusOr<LoadedConfig>& read) const;
  // Returns whether the configuration would be valid with this parallel.data_parallel_size.
  bool Fits(int64_t data_size) const;
  // Loads the configuration and meets the other processes. Nothing if they did not meet: then the
  // error is printed, and `code` is the exit code.
  std::optional<absl::StatusOr<LoadedConfig>> Start(int* code);
  // Enters the world of the other processes, and watches it.
  void Watch();
  // Trains with the ranks that there are. Returns the exit code.
  int RunWith(absl::StatusOr<LoadedConfig> read);
  int RunRanks(const PretrainRun& run);
  int RunThreads(const PretrainRun& run);
  int RunOneOfSeveral(const PretrainRun& run);
  // Writes the model of a run that has come to its end, if it is to. Returns the exit code.
  int WriteModel(const PretrainRun& run);

  // Makes a world of the processes that go on. Nothing if this one does not: `code` is its exit
  // code.
  std::optional<absl::StatusOr<LoadedConfig>> GoOn(int* code);

  // Returns the failure that ends this process after its world has failed.
  absl::Status FailureOf(const absl::Status& world) const;
  FaultMonitorOptions MonitorOptions(const RanksOptions& ranks);
  // Prints the error once, which all processes know or this one alone. Returns the exit code.
  int Leave(const absl::Status& error) const;
  // Whether this process leaves the others with an error that they do not know.
  bool IsOwn(const absl::Status& error) const {
    return process_.leaves_alone() && ExitCodeOf(error) == kExitHang;
  }
  // Returns the cores of the ranks of this machine, by their numbers on it; none where they are not
  // bound, or where the machine does not say which it has.
  std::vector<CoreShare> OpenCores(const RunOptions& options) const;
  // Binds this thread, which is that of a rank, to its cores, if there are any.
  void Bind(const std::vector<CoreShare>& cores, int local_rank) const;
  RankJob& job() const { return *process_.job(); }  // of one rank of several, once it has joined

  const PretrainCommand& command_;
  // What the process began with. The file may change while it runs.
  const absl::StatusOr<AskedConfig> asked_;
  RunProcess process_;
  const absl::Time start_;  // SteadyNow() at the start of this process
  RanksOptions ranks_;
  std::optional<SavedLayout> layout_;  // with train.auto_layout
  FirstFailure failure_;               // the first failure among the ranks of this process
  DeviceCalls device_calls_;           // outlives the monitor, which asks it
  RunEvents events_;                   // outlives the monitor
  RankRecovery recovery_;              // outlives the monitor
  RunPreparation preparation_;
  std::unique_ptr<FaultMonitor> monitor_;
  const std::vector<int> allowed_threads_ = AllowedThreads();  // before any rank was bound
  bool listens_ = false;                                       // to signals
};

absl::Time PretrainProcess::RunStart() const {
  const std::optional<absl::Time>& launched = process_.launch().launch_time;
  return process_.one_of_several() && launched ? SteadyNow() - (absl::Now() - *launched) : start_;
}

int PretrainProcess::Leave(const absl::Status& error) const {
  if (process_.job() != nullptr && !job().world().status().ok()) {
    monitor_->WaitUntilReported();
  } else if (process_.is_reporting_rank() || IsOwn(error)) {
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
    if (!process_.one_of_several())
      events_.TellEnd(ExitCodeOf(failure), kUnknownIteration, failure);
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
  MEGATRON_RETURN_IF_ERROR(asked_.status());
  const FoundConfig& found = asked_->found;
  std::vector<std::string> overrides = command_.all_overrides();
  if (data_size > 0) {
    overrides.push_back(absl::StrCat("parallel.data_parallel_size=", data_size));
  } else if (const std::optional<int64_t> size =
                 DataParallelSizeOfWorld(process_.launch(), asked_->parsed.config.parallel())) {
    overrides.push_back(absl::StrCat("parallel.data_parallel_size=", *size));
  }
  // A configuration of one rank refuses ranks_as. That it does not fit the launcher is said later.
  if (process_.one_of_several() && HasSeveralRanks(found, overrides))
    overrides.push_back("parallel.ranks_as=processes");
  return LoadConfigFromString(found.text, found.source, overrides, ConfigPurpose::kRun);
}

bool PretrainProcess::Fits(int64_t data_size) const { return ReadConfig(data_size).ok(); }

absl::StatusOr<LoadedConfig> PretrainProcess::ReadWithLayout(const AskedConfig& asked) {
  MEGATRON_ASSIGN_OR_RETURN(
      const SavedLayout mine,
      process_.Agree(process_.is_first() ? ChooseLayoutOf(command_, asked, process_.launch())
                                         : SavedLayout()));
  MEGATRON_ASSIGN_OR_RETURN(
      layout_, ParseSavedLayout(Consensus(process_.group()).OfFirst(LayoutText(mine))));
  std::vector<std::string> overrides = command_.all_overrides();
  if (process_.one_of_several()) overrides.push_back("parallel.ranks_as=processes");
  return LoadWithLayout(asked, overrides, *layout_, ConfigPurpose::kRun);
}

absl::StatusOr<std::string> PretrainProcess::SharedText(
    const absl::StatusOr<LoadedConfig>& read) const {
  config::PretrainConfig config;
  if (asked_.ok() && asked_->chooses_layout()) {
    config = asked_->parsed.config;
  } else {
    MEGATRON_RETURN_IF_ERROR(read.status());
    config = read->config;
  }
  config.clear_system();  // machines may differ
  return EffectiveConfigText(config);
}

void PretrainProcess::Watch() {
  process_.EnterWorld();
  // Until it has prepared the run, the others have lost nothing if it ends.
  if (recovery_.has_come()) process_.set_leaves_alone(true);
  // The others can go on without this process, and an abort tells that it is lost: a code of its
  // own would be the failure of all.
  if (ranks_.in_process_recovery) SetExitCodeForWantOfMemory(kAbortForWantOfMemory);
  monitor_ = std::make_unique<FaultMonitor>(&job().world(), MonitorOptions(ranks_));
}

// Returns the code of a process that leaves while it has no place in the run. Where it was asked to
// end, others may still have to end in good order: its code must not say that they have.
ExitCode CodeWithoutPlace() { return StopSignal() != 0 ? kExitHang : kExitDone; }

std::optional<absl::StatusOr<LoadedConfig>> PretrainProcess::GoOn(int* code) {
  if (!recovery_.makes_room()) monitor_->WaitUntilReported();
  const std::string withheld = monitor_->withheld();
  monitor_.reset();
  process_.LeaveWorld();
  failure_.Clear();
  const absl::StatusOr<bool> goes_on = recovery_.Regroup();
  if (!goes_on.ok()) {
    std::fputs(withheld.c_str(), stderr);
    *code = ExitCodeOf(goes_on.status());
    if (job().tells()) {
      PrintError(goes_on.status());
      // The others may go on without a process that is lost alone.
      if (*code != kExitHang) events_.TellEnd(*code, kUnknownIteration, goes_on.status());
      events_.Finish();
    }
    return std::nullopt;
  }
  if (!*goes_on) {
    *code = CodeWithoutPlace();
    return std::nullopt;
  }
  Watch();
  return ReadConfig(job().plan()->data_size);
}

std::optional<absl::StatusOr<LoadedConfig>> PretrainProcess::Start(int* code) {
  const bool chooses = asked_.ok() && asked_->chooses_layout();
  absl::StatusOr<LoadedConfig> read;
  if (!chooses) read = ReadConfig();
  // Each process knows the sizes for itself, and need not wait for the others to say so.
  if (read.ok()) {
    const absl::Status fits = CheckWorldSize(process_.launch(), read->config.parallel());
    // One that was started in the place of a lost rank tells it alone, and finds in the store of
    // its launcher that it is one.
    if (!fits.ok() && process_.launch().store_is_served) {
      read = fits;
    } else if (!fits.ok()) {
      *code = Leave(fits);
      return std::nullopt;
    }
  }
  // Machines may have other limits; the processes of one have the same.
  const absl::Status files = CheckOpenFiles(LimitsOfThisProcess(), process_.launch().world_size);
  if (!files.ok()) {
    if (process_.launch().local_rank == 0) PrintError(files);
    *code = ExitCodeOf(files);
    return std::nullopt;
  }
  // Processes meet before data, tokenizers and directories are opened, so that an error of any of
  // them is reported once, by all.
  if (chooses) ranks_ = ToRanksOptions(asked_->parsed.config.parallel());
  if (read.ok()) ranks_ = ToRanksOptions(read->config.parallel());
  const absl::StatusOr<bool> joined = process_.Join(ranks_, SharedText(read));
  if (!joined.ok() || !*joined) {
    *code = joined.ok() ? CodeWithoutPlace() : PrintError(joined.status());
    return std::nullopt;
  }
  if (process_.one_of_several()) {
    recovery_.Join(&job(), start_);
    Watch();
  }
  if (recovery_.goes_on()) return ReadConfig(job().plan()->data_size);
  return chooses ? ReadWithLayout(*asked_) : std::move(read);
}

int PretrainProcess::Run() {
  int code = kExitDone;
  std::optional<absl::StatusOr<LoadedConfig>> read = Start(&code);
  while (read) {
    code = RunWith(*std::move(read));
    // One that has joined and waits for a topology file's order of ranks can't meet the others.
    const bool is_lost_alone = process_.leaves_alone() && recovery_.LostOthers();
    if (!recovery_.MayGoOn()) return is_lost_alone ? kExitHang : code;
    recovery_.LeaveWorld();
    read = GoOn(&code);
  }
  return code;
}

int PretrainProcess::RunWith(absl::StatusOr<LoadedConfig> read) {
  if (read.ok()) recovery_.BeginPlan(read->config);
  absl::StatusOr<AcceptedRun> accepted = preparation_.Plan(std::move(read), layout_);
  if (!accepted.ok()) return Leave(accepted.status());
  const RunOptions& options = accepted->options();
  recovery_.Plan(options.parallel, !options.checkpoint.save.empty());
  if (!process_.one_of_several() && options.ranks.processes && options.num_ranks() > 1) {
    const bool has_launcher = std::getenv(kClaimantVariable) != nullptr;
    const absl::StatusOr<RunLock> claim =
        ClaimSaveDirectory(PosixFileSystem(), options.checkpoint, command_.program);
    if (!claim.ok()) return Leave(claim.status());
    // A launcher above tells it itself.
    if (!has_launcher) setenv(kClaimedVariable, options.checkpoint.save.c_str(), /*overwrite=*/1);
    setenv(kTypedProgramVariable, command_.program.c_str(), /*overwrite=*/1);
    return StartRanks(options.num_ranks(), options.parallel.data, command_.arguments(),
                      options.ranks, [this](int64_t data_size) { return Fits(data_size); });
  }
  const absl::StatusOr<PretrainRun> run = preparation_.Prepare(&*accepted);
  if (!run.ok()) return Leave(run.status());
  process_.set_leaves_alone(false);
  if (process_.is_reporting_rank() && !recovery_.goes_on()) {
    RanksOfMachine here;
    here.ranks = process_.RanksHere(run->options());
    here.bytes = HostBytes(run->options(), run->plan, here.ranks);
    if (process_.one_of_several()) here.launch = process_.launch().Describe();
    here.restarts = process_.launch().restarts;
    here.restart_reason = process_.launch().restart_reason;
    for (const std::string& line : command_.checkpoint_lines) PrintLine(line);
    for (const std::string& line : Introduce(accepted->loaded.config, *run, here)) PrintLine(line);
    if (ranks_.in_process_recovery && !process_.launch().store_is_served) {
      process_.Warn(
          "parallel.in_process_recovery has no effect with this launcher, which ends all ranks "
          "when one is lost; launch --in_process_recovery goes on with them");
    }
  }
  if (!std::exchange(listens_, true)) ListenForStopSignals(/*answer=*/process_.is_reporting_rank());
  const int code = process_.one_of_several() ? RunOneOfSeveral(*run) : RunRanks(*run);
  return code == kExitDone && process_.is_first() ? WriteModel(*run) : code;
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
      CoresOfRanks(options.device, process_.RanksHere(options), allowed_threads_);
  if (!cores.ok()) {
    process_.Warn(absl::StrCat("system.bind_cores_to_rank: ", cores.status().message(),
                               "; ranks are not bound"));
    return {};
  }
  if (process_.is_reporting_rank()) {
    for (size_t rank = 0; rank < cores->size(); ++rank)
      PrintLine(absl::StrCat("rank ", rank, " of this machine runs on cores ",
                             DescribeCores((*cores)[rank])));
  }
  return *cores;
}

void PretrainProcess::Bind(const std::vector<CoreShare>& cores, int local_rank) const {
  if (cores.empty()) return;
  const absl::Status bound = BindThisThread(cores[static_cast<size_t>(local_rank)].threads);
  if (!bound.ok()) process_.Warn(absl::StrCat("system.bind_cores_to_rank: ", bound.message()));
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
  Bind(OpenCores(run.options()), process_.launch().local_rank);
  PretrainRank rank(run, process_.group(), &failure_);
  const FaultMonitor::Watch watch(monitor_.get(), process_.launch().rank, &rank.progress());
  const ExitCode code = rank.Run();
  const absl::Status first = failure_.Get();
  recovery_.set_makes_room(rank.makes_room());
  if (recovery_.MayGoOn()) {
    rank.Keep(&recovery_.kept());
    return code;
  }
  if (first.ok()) {
    if (process_.is_reporting_rank()) events_.TellEnd(code, rank.progress().iteration(), first);
    job().End();
    return code;
  }
  // Until it has the state, the others have lost nothing if it ends.
  if (recovery_.has_come() && !rank.has_state() && job().world().status().ok()) {
    process_.set_leaves_alone(true);
    return Leave(process_.Agree(first));
  }
  job().world().Abort(absl::AbortedError(first.message()));
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
