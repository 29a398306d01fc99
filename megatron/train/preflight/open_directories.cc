#include "megatron/train/preflight/open_directories.h"

#include <stdlib.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/checkpoint_reader.h"
#include "megatron/checkpoint/find_checkpoint.h"
#include "megatron/comm/launch/claim_line.h"
#include "megatron/train/failure/exit_status.h"

namespace megatron {
namespace {

// The time to wait until a run that was killed releases the lock.
constexpr absl::Duration kLockPatience = absl::Seconds(3);

absl::Status WriteAndRemoveAFile(FileSystem& fs, const std::string& directory, int process) {
  MEGATRON_RETURN_IF_ERROR(fs.CreateDirs(directory));
  const std::string probe = absl::StrCat(directory, "/.write_test_", process);
  MEGATRON_RETURN_IF_ERROR(WriteFileAtomically(fs, probe, "can this directory be written?\n"));
  return fs.Remove(probe);
}

// `field` names the directory in errors.
absl::Status CheckWritable(FileSystem& fs, const std::string& field, const std::string& directory,
                           int process) {
  const absl::Status status = WriteAndRemoveAFile(fs, directory, process);
  if (status.ok()) return status;
  return WithExitCode(
      absl::Status(status.code(), absl::StrCat(field, " = ", directory, ": ", status.message())),
      kExitIo);
}

// Checkpoints of two runs do not share a directory. Where this run continues from the directory,
// RestoreCheckpoint checks more.
absl::Status CheckThatNoOtherRunSavedThere(FileSystem& fs, const CheckpointOptions& checkpoint,
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

// kFailedPrecondition says that another run is there; any other error means `otherwise`.
absl::Status AnotherRunOr(ExitCode otherwise, const absl::Status& status) {
  return WithExitCode(
      status, status.code() == absl::StatusCode::kFailedPrecondition ? kExitConfig : otherwise);
}

// Returns who claims the directory for this run; empty: nobody does.
std::string ClaimantOfRun() {
  const char* const claimant = getenv(kClaimantVariable);
  return claimant == nullptr ? "" : claimant;
}

// While the launcher of this run has the directory no other run gets the lock, so that its holders
// are earlier ranks of this run: those of a host that was cut off or paused, for one.
absl::Status LockError(const std::string& directory, const std::string& claimant,
                       const absl::Status& status) {
  if (!claimant.empty() && absl::IsFailedPrecondition(status)) {
    const absl::StatusOr<std::string> claimed_by = RunLock::Claimant(directory);
    if (claimed_by.ok() && *claimed_by == claimant) {
      return WithExitCode(
          absl::UnavailableError(
              absl::StrCat("ranks of an earlier start of this run have not ended and still have ",
                           directory, "; another start may find it free")),
          kExitPeerLost);
    }
  }
  return AnotherRunOr(kExitIo, status);
}

absl::StatusOr<RunLock> TakeLock(const std::string& directory, const std::string& claimant,
                                 bool shared) {
  MEGATRON_ASSIGN_OR_RETURN(RunLock lock, RunLock::Take(directory, claimant, kLockPatience));
  if (shared) {
    MEGATRON_RETURN_IF_ERROR(lock.Share());
  }
  if (claimant.empty()) return lock;
  MEGATRON_ASSIGN_OR_RETURN(const std::string claimed_by, RunLock::Claimant(directory));
  if (claimed_by != claimant) AskForClaim(directory);
  return lock;
}

absl::StatusOr<RunLock> TakeClaim(const std::string& directory, const std::string& claimant) {
  // A run that is there now is told of as one that saves, before any rank is started.
  MEGATRON_ASSIGN_OR_RETURN(const RunLock lock,
                            RunLock::Take(directory, /*claimant=*/"", kLockPatience));
  return RunLock::Claim(directory, claimant, kLockPatience);
}

}  // namespace

absl::Status OpenProfileDirectory(FileSystem& fs, const ProfileOptions& profile, int process) {
  return CheckWritable(fs, "logging.profile_dir", profile.directory, process);
}

absl::StatusOr<RunLock> OpenSaveDirectory(FileSystem& fs, const CheckpointOptions& checkpoint,
                                          const std::string& run_id, int process,
                                          int num_processes) {
  if (checkpoint.save.empty()) return RunLock();
  MEGATRON_RETURN_IF_ERROR(CheckWritable(fs, "checkpoint.save", checkpoint.save, process));
  if (process > 0) return RunLock();
  absl::StatusOr<RunLock> lock = LockSaveDirectory(checkpoint, num_processes);
  if (!lock.ok()) return lock;
  const absl::Status ours = CheckThatNoOtherRunSavedThere(fs, checkpoint, run_id);
  if (!ours.ok()) return AnotherRunOr(kExitCorruptCheckpoint, ours);
  return lock;
}

absl::StatusOr<RunLock> ClaimSaveDirectory(FileSystem& fs, const CheckpointOptions& checkpoint,
                                           const std::string& program) {
  if (checkpoint.save.empty() || !ClaimantOfRun().empty()) return RunLock();
  MEGATRON_RETURN_IF_ERROR(CheckWritable(fs, "checkpoint.save", checkpoint.save, /*process=*/0));
  const std::string claimant = DescribeClaimant(program);
  absl::StatusOr<RunLock> claim = TakeClaim(checkpoint.save, claimant);
  if (!claim.ok()) return AnotherRunOr(kExitIo, claim.status());
  setenv(kClaimantVariable, claimant.c_str(), /*overwrite=*/1);
  return claim;
}

absl::StatusOr<RunLock> LockSaveDirectory(const CheckpointOptions& checkpoint, int num_processes) {
  const std::string claimant = ClaimantOfRun();
  absl::StatusOr<RunLock> lock = TakeLock(checkpoint.save, claimant, /*shared=*/num_processes > 1);
  if (!lock.ok()) return LockError(checkpoint.save, claimant, lock.status());
  return lock;
}

absl::StatusOr<RunLock> JoinSaveDirectory(const CheckpointOptions& checkpoint) {
  if (checkpoint.save.empty()) return RunLock();
  absl::StatusOr<RunLock> lock = RunLock::Join(checkpoint.save);
  if (!lock.ok()) return AnotherRunOr(kExitIo, lock.status());
  return lock;
}

}  // namespace megatron
