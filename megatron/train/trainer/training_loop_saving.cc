// How a training loop saves, and how it leaves.
#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/steady_now.h"
#include "megatron/checkpoint/find_checkpoint.h"
#include "megatron/checkpoint/save_checkpoint.h"
#include "megatron/tensor/trace/trace.h"
#include "megatron/train/failure/exit_status.h"
#include "megatron/train/trainer/training_loop.h"

namespace megatron {

std::optional<ExitCode> TrainingLoop::SaveOrLeave(bool stop_requested) {
  const LoopOptions& loop = options().loop;
  const int64_t iteration = trainer_->progress().iteration;
  if (Done()) return std::nullopt;  // the rest is done after the loop
  if (stop_requested) return SaveAndLeave(kExitSavedOnSignal);
  if (loop.exit_duration_minutes > 0 && consensus_.Any(SteadyNow() - run_.program_start >=
                                                       absl::Minutes(loop.exit_duration_minutes))) {
    return SaveAndLeave(kExitTimeLimit);
  }
  if (loop.exit_interval > 0 && iteration % loop.exit_interval == 0) return SaveAndLeave(kExitDone);
  if (loop.phase_transitions.contains(iteration)) return SaveAndLeave(kExitDone);
  const CheckpointOptions& checkpoint = options().checkpoint;
  if (writer_ == nullptr || checkpoint.save_interval == 0 ||
      iteration % checkpoint.save_interval != 0) {
    if (local_saver_.IsDue(iteration)) SaveLocal();
    return std::nullopt;
  }
  const absl::Status started = StartSave();
  if (!started.ok()) return FailStep(started);
  const absl::Status status = checkpoint.async_save ? absl::OkStatus() : FinishSave();
  // The last good checkpoint is still there, and the disk may have room again at the next interval.
  if (!status.ok()) {
    const int64_t next = std::min(iteration + checkpoint.save_interval, options().loop.train_iters);
    WarnOfFailedSave(status, absl::StrCat("at iteration ", next));
  }
  return std::nullopt;
}

std::string TrainingLoop::DescribeNewestCheckpoint() const {
  int64_t iteration = saved_iteration_;
  if (iteration < 0) {
    const absl::StatusOr<FoundCheckpoint> found =
        FindLatestCheckpoint(fs_, options().checkpoint.save);
    if (!found.ok()) return "no checkpoint has been saved since the start";
    iteration = found->iteration;
  }
  return absl::StrCat("the newest checkpoint is of iteration ", iteration);
}

void TrainingLoop::WarnOfFailedSave(const absl::Status& status, absl::string_view next) {
  if (!rank_.console->prints()) return;
  const std::string message = IsSaved(status)
                                  ? absl::StrCat(status.message(), "; training continues")
                                  : absl::StrCat("the checkpoint of iteration ", saving_iteration_,
                                                 " was not saved: ", status.message(),
                                                 "; training continues, the next save is ", next,
                                                 ", and ", DescribeNewestCheckpoint());
  rank_.console->Warn(message);
  Tell(RunEventKind::kSaveFailed, saving_iteration_, message);
}

absl::Status TrainingLoop::KeepSaveLock() {
  if (run_.keep_save_lock == nullptr) return absl::OkStatus();
  const bool is_first = trainer_->groups().world.rank() == 0;
  absl::StatusOr<bool> anew = false;
  if (is_first) anew = run_.keep_save_lock(/*is_first=*/true);
  absl::Status taken = absl::OkStatus();
  if (absl::IsFailedPrecondition(anew.status())) {
    taken = WithExitCode(
        absl::FailedPreconditionError(absl::StrCat(
            "iteration ", trainer_->progress().iteration, " is not saved: .lock in ",
            options().checkpoint.save, " was removed or replaced, and ", anew.status().message())),
        ExitCodeOf(anew.status()));
  }
  MEGATRON_RETURN_IF_ERROR(consensus_.FirstFailure(taken));
  // The others join a lock that the first rank has.
  if (!is_first) anew = run_.keep_save_lock(/*is_first=*/false);
  if (!anew.ok()) {
    rank_.console->WarnOwn(absl::StrCat("another run may begin in ", options().checkpoint.save,
                                        ", which can't be locked: ", anew.status().message()));
  } else if (is_first && *anew) {
    rank_.console->WarnOwn(absl::StrCat(".lock in ", options().checkpoint.save,
                                        " was removed or replaced; the directory is locked again"));
  }
  return absl::OkStatus();
}

absl::Status TrainingLoop::StartSave() {
  const TraceSpan span(trainer_->stream(), TimeCategory::kCheckpoint, "start checkpoint");
  rank_.progress->Enter(Phase::kSave);
  MEGATRON_RETURN_IF_ERROR(KeepSaveLock());
  const absl::Status status = FinishSave();
  if (!status.ok()) WarnOfFailedSave(status, "now");
  metrics_.Sync();
  writer_->Start(MakeCheckpointState(*trainer_, run_.description));
  saving_iteration_ = trainer_->progress().iteration;
  return absl::OkStatus();
}

absl::Status TrainingLoop::FinishSave() {
  if (!writer_->in_progress()) return absl::OkStatus();
  const TraceSpan span(trainer_->stream(), TimeCategory::kCheckpoint, "finish checkpoint");
  rank_.progress->Enter(Phase::kSave);
  const absl::Status status = writer_->Wait();
  rank_.progress->Enter(Phase::kUpdate);
  if (!status.ok() && !IsSaved(status)) return status;
  saved_iteration_ = saving_iteration_;
  const std::string message = absl::StrCat("saved checkpoint of iteration ", saved_iteration_,
                                           " to ", options().checkpoint.save);
  rank_.console->PrintLine(message);
  Tell(RunEventKind::kSaved, saved_iteration_, message);
  return status;
}

void TrainingLoop::SaveLocal() {
  const TraceSpan span(trainer_->stream(), TimeCategory::kCheckpoint, "local checkpoint");
  FinishLocalSave();
  rank_.progress->Enter(Phase::kSave);
  metrics_.Sync();
  local_saver_.Start(MakeCheckpointState(*trainer_, run_.description));
  if (!options().checkpoint.async_save) FinishLocalSave();
  rank_.progress->Enter(Phase::kUpdate);
}

void TrainingLoop::FinishLocalSave() {
  const absl::Status status = local_saver_.Finish();
  if (status.ok()) return;
  const std::string message = absl::StrCat(status.message(), "; training continues");
  rank_.console->Warn(message);
  Tell(RunEventKind::kSaveFailed, trainer_->progress().iteration, message);
}

ExitCode TrainingLoop::SaveAndLeave(ExitCode code) {
  rank_.console->ClearProgress();
  if (writer_ == nullptr) {
    if (code != kExitDone)
      rank_.console->Warn("leaving without a checkpoint: checkpoint.save is not set");
    return code;
  }
  const int64_t iteration = trainer_->progress().iteration;
  const bool is_being_saved = writer_->in_progress() && saving_iteration_ == iteration;
  if (saved_iteration_ != iteration && !is_being_saved) {
    const absl::Status started = StartSave();
    if (!started.ok()) return FailStep(started);
  }
  const absl::Status status = FinishSave();
  FinishLocalSave();
  if (status.ok()) {
    const absl::Status removed = local_saver_.Remove();
    if (!removed.ok())
      rank_.console->WarnOwn(absl::StrCat("local checkpoints stay: ", removed.message()));
    return code;
  }
  const std::string message = IsSaved(status)
                                  ? std::string(status.message())
                                  : absl::StrCat("the checkpoint of iteration ", iteration,
                                                 " was not saved: ", status.message());
  Tell(RunEventKind::kSaveFailed, iteration, message);
  return Fail(WithExitCode(absl::Status(status.code(), message), kExitIo));
}

ExitCode TrainingLoop::MakeRoom() {
  if (writer_ != nullptr) {
    const absl::Status status = FinishSave();
    if (!status.ok()) WarnOfFailedSave(status, "at the next interval");
  }
  FinishLocalSave();
  metrics_.Sync();
  const absl::Status copied = trainer_->CopyShards(last_evaluated_iteration_);
  return copied.ok() ? kExitDone : FailStep(copied);
}

}  // namespace megatron
