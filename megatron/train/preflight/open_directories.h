// The directories that a run writes to. What can't be written is found before the start, not at the
// first checkpoint.
#ifndef MEGATRON_TRAIN_PREFLIGHT_OPEN_DIRECTORIES_H_
#define MEGATRON_TRAIN_PREFLIGHT_OPEN_DIRECTORIES_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "megatron/base/file_system.h"
#include "megatron/train/failure/run_lock.h"
#include "megatron/train/profile/profile_options.h"
#include "megatron/train/trainer/run_options.h"

namespace megatron {

// Makes the profile's directory and checks that this process, one of several, can write to it. The
// error carries kExitIo.
absl::Status OpenProfileDirectory(FileSystem& fs, const ProfileOptions& profile, int process);

// Makes the directory of checkpoints and checks that this process, one of `num_processes`, can
// write to it. The first process takes the lock on it as well, lets the others join, and sees that
// no other run has saved there. If a launcher that claims directories (comm/launch/claim_line.h)
// has started the run, it is asked to. Without checkpoint.save nothing happens, and nothing is
// locked.
//
// Errors carry kExitIo where the directory can't be written, kExitConfig where another run has it,
// kExitPeerLost where ranks of an earlier start of this run still have it, while its launcher has
// claimed it, and kExitCorruptCheckpoint where the checkpoint in it can't be read.
absl::StatusOr<RunLock> OpenSaveDirectory(FileSystem& fs, const CheckpointOptions& checkpoint,
                                          const std::string& run_id, int process,
                                          int num_processes);

// Claims the directory for the ranks that this process, which is `program`, starts: no other run
// gets it while they are started again. They learn of it by a variable that this sets. It makes and
// checks the directory first, as OpenSaveDirectory does. If a launcher that claims directories has
// started this process, nothing is claimed here.
absl::StatusOr<RunLock> ClaimSaveDirectory(FileSystem& fs, const CheckpointOptions& checkpoint,
                                           const std::string& program);

// Takes the lock of the first process alone, as OpenSaveDirectory does: after its file was removed
// or replaced.
absl::StatusOr<RunLock> LockSaveDirectory(const CheckpointOptions& checkpoint, int num_processes);

// Joins the lock of the first process, after that has opened the directory.
absl::StatusOr<RunLock> JoinSaveDirectory(const CheckpointOptions& checkpoint);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PREFLIGHT_OPEN_DIRECTORIES_H_
