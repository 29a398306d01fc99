#include "megatron/train/prepare_run.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/find_checkpoint.h"
#include "megatron/comm/launch/claim_line.h"
#include "megatron/ops/cpu/isa.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/train/command_line/user_commands.h"
#include "megatron/train/config/config_text.h"
#include "megatron/train/failure/exit_status.h"
#include "megatron/train/planning/predict_run.h"
#include "megatron/train/preflight/check_limits.h"
#include "megatron/train/preflight/check_same_kernels.h"
#include "megatron/train/preflight/check_same_run.h"
#include "megatron/train/preflight/device_links.h"
#include "megatron/train/preflight/open_checkpoint.h"
#include "megatron/train/preflight/open_data.h"
#include "megatron/train/preflight/open_devices.h"
#include "megatron/train/preflight/open_directories.h"
#include "megatron/train/preflight/open_local_checkpoints.h"
#include "megatron/train/print_lines.h"
#include "megatron/train/trainer/consensus.h"
#include "megatron/train/trainer/run_identity.h"
#include "megatron/train/trainer/run_plan.h"

namespace megatron {
namespace {

// Without the directory that the run saved to before, a start that nobody watches would begin anew.
absl::Status CheckClaimedDirectory(FileSystem& fs, const CheckpointOptions& checkpoint) {
  const char* const claimed = std::getenv(kClaimedVariable);
  if (claimed == nullptr || checkpoint.save.empty() || checkpoint.save != claimed ||
      RunLock::WasClaimed(checkpoint.save))
    return absl::OkStatus();
  // The state may be in local checkpoints, or ranks have saved there since.
  if (!checkpoint.local_save.empty() ||
      !absl::IsNotFound(FindLatestCheckpoint(fs, checkpoint.save).status()))
    return absl::OkStatus();
  return WithExitCode(
      absl::NotFoundError(absl::StrCat(
          "checkpoint.save = ", checkpoint.save,
          ": the directory that this run had has vanished: it was renamed or removed, or its disk "
          "is not mounted; put it back and start the run again; without it, another start begins "
          "at the first step")),
      kExitIo);
}

}  // namespace

absl::StatusOr<AcceptedRun> RunPreparation::Plan(absl::StatusOr<LoadedConfig> read,
                                                 const std::optional<SavedLayout>& layout) const {
  AcceptedRun accepted;
  accepted.layout = layout;
  MEGATRON_ASSIGN_OR_RETURN(accepted.loaded,
                            process_.Agree(ForThisProgram(command_, std::move(read))));
  MEGATRON_ASSIGN_OR_RETURN(accepted.run, process_.Agree(PlanPretraining(accepted.loaded.config)));
  const RunOptions& options = accepted.options();
  absl::StatusOr<std::optional<PlanningFacts>> facts = std::nullopt;
  if (process_.is_first())
    facts = WithExitCode(ReadFactsOfRun(PosixFileSystem(), options), kExitConfig);
  MEGATRON_ASSIGN_OR_RETURN(accepted.facts, process_.Agree(std::move(facts)));
  // Ranks that go on have met with what they hold. Whoever lacks memory then fails alone, when it
  // asks for it: a check that all agree on would end the others with it.
  if (!shared_.recovery->goes_on()) {
    MEGATRON_RETURN_IF_ERROR(CheckResources(options, accepted.run.plan));
  }
  return accepted;
}

absl::StatusOr<std::vector<GpuShare>> RunPreparation::GpusToCheck(const RunOptions& options) const {
  if (options.device != DeviceType::kCuda) return std::vector<GpuShare>();
  if (!process_.one_of_several())
    return ShareGpus(0, options.num_ranks(), FreeGpuBytes(options.num_ranks()));
  const int local_rank = process_.launch().local_rank;
  GpuShare mine;
  mine.gpu = DeviceOfRank(local_rank);
  MEGATRON_ASSIGN_OR_RETURN(mine.ranks, ProcessesOnSameGpu(local_rank, process_.group()));
  mine.free_bytes = CudaMemoryOf(mine.gpu).free_bytes;
  return std::vector<GpuShare>{mine};
}

absl::Status RunPreparation::CheckLimitsHere(const RunOptions& options, const RunPlan& plan) const {
  std::optional<int> rank;
  if (process_.one_of_several()) rank = process_.launch().rank;
  return process_.Agree(
      CheckLimits(LimitsOfThisProcess(), options, plan, process_.RanksHere(options), rank));
}

absl::Status RunPreparation::CheckResources(const RunOptions& options, const RunPlan& plan) const {
  const int ranks_here = process_.RanksHere(options);
  MEGATRON_RETURN_IF_ERROR(CheckLimitsHere(options, plan));
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<GpuShare> gpus, process_.Agree(GpusToCheck(options)));
  MEGATRON_RETURN_IF_ERROR(process_.Agree(CheckMemory(options, plan, ranks_here, gpus)));
  MEGATRON_RETURN_IF_ERROR(process_.Agree(CheckDisk(PosixFileSystem(), options, plan, ranks_here)));
  const absl::Status room = CheckRoomForCheckpoint(PosixFileSystem(), options, plan, ranks_here,
                                                   LocalDirectoryHere(options.checkpoint));
  if (!room.ok()) process_.Warn(std::string(room.message()));
  return absl::OkStatus();
}

PretrainRun RunPreparation::Begin(PlannedPretraining planned) const {
  PretrainRun run;
  run.fs = &PosixFileSystem();
  run.plan = std::move(planned.plan);
  run.rank_order = std::move(planned.rank_order);
  run.offload = std::move(planned.offload);
  run.tokenizer = std::move(planned.tokenizer);
  run.training.options = std::move(planned.options);
  run.training.speed = planned.speed;
  run.training.program_start = run_start_;
  run.training.restart_reason = process_.launch().restart_reason;
  run.device_calls = shared_.device_calls;
  run.on_piece = command_.on_piece;
  run.user.commands = UserCommands::OfThisProcess(command_.program);
  run.user.arguments = command_.arguments();
  run.user.has_launcher =
      process_.one_of_several() && std::getenv(kTypedProgramVariable) == nullptr;
  if (process_.one_of_several()) {
    run.local_rank = process_.launch().local_rank;
    run.host = process_.job()->host();
  }
  run.threads_per_rank = std::max(1, run.options().num_threads / process_.RanksHere(run.options()));
  return run;
}

absl::StatusOr<RunLock> RunPreparation::OpenDirectories(const PretrainRun& run,
                                                        bool is_locked) const {
  const LaunchEnvironment& launch = process_.launch();
  const ProfileOptions& profile = run.options().profile;
  if (profile.enabled && (!process_.one_of_several() || profile.Covers(launch.rank))) {
    MEGATRON_RETURN_IF_ERROR(OpenProfileDirectory(*run.fs, profile, launch.rank));
  }
  if (const std::string& folder = run.options().trainer.state_directory; !folder.empty()) {
    MEGATRON_RETURN_IF_ERROR(WithExitCode(run.fs->CreateDirs(folder), kExitConfig),
                             _ << "for optimizer.optimizer_offload_path");
  }
  if (const std::string& folder = run.options().trainer.weight_directory; !folder.empty()) {
    MEGATRON_RETURN_IF_ERROR(WithExitCode(run.fs->CreateDirs(folder), kExitConfig),
                             _ << "for parallel.param_offload_path");
  }
  if (is_locked) return RunLock();
  return OpenSaveDirectory(*run.fs, run.options().checkpoint,
                           RunId(run.training.description.identity), launch.rank,
                           launch.world_size);
}

// The first process has taken the lock; the others join it. Ranks that go on have the lock, unless
// one was lost before the first process of all could take it.
absl::Status RunPreparation::TakeSaveLock(const PretrainRun& run) {
  const bool is_locked = Consensus(process_.group()).Any(save_lock_.has_value());
  // Before any process makes it anew.
  const bool looks = process_.is_first() && !is_locked;
  MEGATRON_RETURN_IF_ERROR(process_.Agree(
      looks ? CheckClaimedDirectory(*run.fs, run.options().checkpoint) : absl::OkStatus()));
  MEGATRON_ASSIGN_OR_RETURN(RunLock opened, process_.Agree(OpenDirectories(run, is_locked)));
  if (save_lock_) return process_.Agree(absl::OkStatus());
  const bool has_it = process_.is_first() && !is_locked;
  absl::StatusOr<RunLock> lock = has_it ? absl::StatusOr<RunLock>(std::move(opened))
                                        : JoinSaveDirectory(run.options().checkpoint);
  MEGATRON_RETURN_IF_ERROR(process_.Agree(lock.status()));
  save_lock_ = *std::move(lock);
  return absl::OkStatus();
}

absl::StatusOr<bool> RunPreparation::KeepSaveLock(const CheckpointOptions& checkpoint,
                                                  bool is_first) {
  const std::lock_guard<std::mutex> guard(save_lock_mutex_);
  if (save_lock_->HasItsName()) return false;
  MEGATRON_ASSIGN_OR_RETURN(save_lock_,
                            is_first ? LockSaveDirectory(checkpoint, process_.launch().world_size)
                                     : JoinSaveDirectory(checkpoint));
  return true;
}

absl::StatusOr<PretrainRun> RunPreparation::Prepare(AcceptedRun* accepted) {
  const config::PretrainConfig& config = accepted->loaded.config;
  PretrainRun run = Begin(std::move(accepted->run));
  const RunOptions& options = run.options();
  MEGATRON_ASSIGN_OR_RETURN(
      run.links, process_.Agree(OpenDeviceLinks(options, process_.launch(), process_.group())));
  run.training.speed.peak_flops = PeakFlops(options, process_.RanksHere(options));
  MEGATRON_ASSIGN_OR_RETURN(run.attention, process_.Agree(OpenAttention(*run.fs, config, options)));
  run.training.options.trainer.model.transformer.attention_kernels = run.attention.kernels;
  MEGATRON_ASSIGN_OR_RETURN(run.training.data,
                            process_.Agree(OpenData(*run.fs, options.data, *run.tokenizer)));
  MEGATRON_ASSIGN_OR_RETURN(run.training.tasks,
                            process_.Agree(OpenTasks(*run.fs, options.tasks, *run.tokenizer)));
  // What data take is in use by now, with the addresses of files that are mapped.
  RunPlan plan_of_ranks = run.plan;
  plan_of_ranks.data_bytes = 0;
  if (!shared_.recovery->goes_on()) {
    MEGATRON_RETURN_IF_ERROR(CheckLimitsHere(options, plan_of_ranks));
  }
  const std::string& fingerprint = run.training.data.fingerprint;
  const std::string instruction_set = options.device == DeviceType::kCpu ? ops::IsaName() : "";
  run.training.description.identity = RunIdentity(config, fingerprint);
  run.training.description.config_text = EffectiveConfigText(config);
  run.training.description.phase_transitions = options.loop.phase_transitions;
  run.training.description.phase_data = fingerprint;
  run.training.description.seed = options.seed;
  MEGATRON_ASSIGN_OR_RETURN(run.training.prediction,
                            Predict(*accepted, options.trainer.model.padded_vocab_size));
  shared_.events->Open(process_.one_of_several(), &run.training);
  run.training.description.instruction_set = instruction_set;
  if (options.ranks.in_process_recovery && process_.is_first())
    run.training.others_come = shared_.recovery->OthersCome();
  MEGATRON_RETURN_IF_ERROR(TakeSaveLock(run));
  if (!options.checkpoint.save.empty()) {
    run.training.keep_save_lock = [this, checkpoint = options.checkpoint](bool is_first) {
      return KeepSaveLock(checkpoint, is_first);
    };
  }
  const auto warn = [this](const std::string& warning) { process_.Warn(warning); };
  MEGATRON_ASSIGN_OR_RETURN(
      run.training.local,
      OpenLocalPlace(
          *run.fs, options.checkpoint, options.num_ranks(), process_.group(),
          [this](const absl::Status& mine) { return process_.Agree(mine); }, warn));
  if (accepted->layout) {
    run.layout = {accepted->layout->line().begin(), accepted->layout->line().end()};
    const std::string& save = options.checkpoint.save;
    const bool saves = process_.is_first() && !save.empty();
    MEGATRON_RETURN_IF_ERROR(process_.Agree(WithExitCode(
        saves ? SaveLayout(*run.fs, save, *accepted->layout) : absl::OkStatus(), kExitIo)));
  }
  run.training.options.gemms = OpenEpilogues(options, process_.launch(), process_.group());
  // The plans may lie in the directory of checkpoints, which is there now.
  MEGATRON_ASSIGN_OR_RETURN(const std::string gemm_plans,
                            process_.Agree(OpenGemmPlans(*run.fs, options)));
  std::string& kernels = run.training.description.kernels;
  run.products = DescribeProducts(options, gemm_plans);
  kernels = DescribeKernels(options, run.attention, run.products);
  MEGATRON_RETURN_IF_ERROR(FindStart(accepted->loaded, &run));
  const std::string checkpoint =
      run.start.checkpoint == nullptr ? "" : run.start.checkpoint->directory();
  MEGATRON_RETURN_IF_ERROR(
      process_.Agree(CheckSameRun({config, fingerprint, gemm_plans, run.attention.order, checkpoint,
                                   instruction_set, options.parallel.order.ToString()},
                                  process_.group())));
  MEGATRON_RETURN_IF_ERROR(
      process_.Agree(CheckSameKernels(run.start, kernels, options.deterministic, warn)));
  return run;
}

absl::Status RunPreparation::FindStart(const LoadedConfig& loaded, PretrainRun* run) const {
  RankRecovery& recovery = *shared_.recovery;
  if (recovery.goes_on()) {
    recovery.DescribeGoingOn(&run->training);
    const RegroupPlan& plan = *process_.job()->plan();
    if (plan.iteration >= 0) {
      run->state_in_memory = {plan.iteration, plan.parts};
      run->kept = &recovery.kept();
      return absl::OkStatus();
    }
    // It did not suffice, and would lie in memory beside the state from the checkpoint.
    recovery.kept().ForgetState();
  }
  const auto warn = [this](const std::string& warning) { process_.Warn(warning); };
  const CheckpointOptions& options = run->options().checkpoint;
  MEGATRON_ASSIGN_OR_RETURN(run->start, process_.Agree(OpenCheckpoint(*run->fs, options, warn)));
  MEGATRON_RETURN_IF_ERROR(PreferLocalCheckpoint(
      *run->fs, options, RunId(run->training.description.identity), run->training.local,
      process_.group(), [this](const std::string& line) { process_.Print(line); }, warn,
      &run->start));
  // A local checkpoint is in checkpoint.local_save alone.
  run->training.starts_from_saved = run->start.is_own && run->start.peer_files == nullptr;
  if (run->start.checkpoint == nullptr || BeginsRun(run->start.restore)) return absl::OkStatus();
  const std::string other = OtherInstructionSet(*run->start.checkpoint, run->training.description);
  if (!other.empty()) warn(other);
  MEGATRON_RETURN_IF_ERROR(
      process_.Agree(CheckBatches(*run->start.checkpoint, loaded.config, loaded.locations)));
  return process_.Agree(CheckSamplesLeft(*run->start.checkpoint, loaded.config,
                                         run->training.data.train->size(), warn));
}

absl::StatusOr<StepComparison> RunPreparation::Predict(const AcceptedRun& accepted,
                                                       int64_t padded_vocab_size) const {
  StepComparison mine;
  if (accepted.facts) {
    const auto predicted = PredictRun(accepted.loaded.config, padded_vocab_size, *accepted.facts);
    if (predicted.ok()) {
      mine = *predicted;
    } else {
      PrintLine(absl::StrCat("no step of this run is predicted: ", predicted.status().message()));
    }
  }
  StepComparison first;
  const std::string text = Consensus(process_.group()).OfFirst(mine.SerializeAsString());
  if (!first.ParseFromString(text)) return absl::InternalError("a prediction can't be read");
  return first;
}

}  // namespace megatron
