// The local checkpoints of a run (checkpoint/local): where they lie on this machine, and whether
// the run starts from one of them.
#ifndef MEGATRON_TRAIN_PREFLIGHT_OPEN_LOCAL_CHECKPOINTS_H_
#define MEGATRON_TRAIN_PREFLIGHT_OPEN_LOCAL_CHECKPOINTS_H_

#include <map>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "megatron/base/file_system.h"
#include "megatron/checkpoint/local/local_place.h"
#include "megatron/comm/process_group.h"
#include "megatron/train/preflight/open_checkpoint.h"
#include "megatron/train/trainer/run_options.h"

namespace megatron {

// The file in checkpoint.save that names the run's local checkpoints. Without it, or with another,
// those that are there are not the run's.
inline constexpr char kLocalNameFile[] = "local_checkpoints.txt";

// Returns checkpoint.local_save with the variables' values in the place of $NAME and ${NAME}, from
// where the user stands. kInvalidArgument names a variable that is not set.
absl::StatusOr<std::string> LocalDirectory(const std::string& local_save,
                                           const std::map<std::string, std::string>& variables);

// Returns it with the variables of this process; empty without checkpoint.local_save, and where a
// variable is not set.
std::string LocalDirectoryHere(const CheckpointOptions& options);

// Returns where this process's ranks save local checkpoints; nothing without checkpoint.local_save.
// All processes of the run call it, after checkpoint.save is there. `agree` returns the error that
// counts, of those of all processes: one that begins with kExitConfig or kExitIo. Later errors
// carry kExitPeerLost. A process alone has all `ranks`. `warn` hears that there are too few
// machines for checkpoint.peer_copies, and that the directory of a process can't be written: then
// there is no place for any of them.
absl::StatusOr<LocalPlace> OpenLocalPlace(
    FileSystem& fs, const CheckpointOptions& options, int ranks, const ProcessGroup& processes,
    absl::FunctionRef<absl::Status(const absl::Status&)> agree,
    absl::FunctionRef<void(const std::string&)> warn);

// Lets the run start from its newest local checkpoint, if that is newer than its own checkpoint in
// `start`. All processes call it. `tell` gets a line about what is taken, `warn` what is wrong with
// newer ones.
absl::Status PreferLocalCheckpoint(FileSystem& fs, const CheckpointOptions& options,
                                   const std::string& run_id, const LocalPlace& place,
                                   const ProcessGroup& processes,
                                   absl::FunctionRef<void(const std::string&)> tell,
                                   absl::FunctionRef<void(const std::string&)> warn,
                                   StartingPoint* start);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PREFLIGHT_OPEN_LOCAL_CHECKPOINTS_H_
