// Saving a local checkpoint: every rank writes its shard into its machine's own directory, and
// sends it to the machines that keep copies. It is made for the loss of processes and machines: a
// checkpoint that a crash leaves torn is recognized by its checksums (find_local_checkpoint.h).
//
//   DIRECTORY/iter_0000012/shard_00003_of_00008.bin    as in other checkpoints
//   DIRECTORY/iter_0000012/part_00003_of_00008.json    the manifest of that shard
//
// A machine has the files of its own ranks and of those whose copies it keeps. No file of the whole
// is written.
#ifndef MEGATRON_CHECKPOINT_LOCAL_SAVE_LOCAL_CHECKPOINT_H_
#define MEGATRON_CHECKPOINT_LOCAL_SAVE_LOCAL_CHECKPOINT_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "megatron/base/file_system.h"
#include "megatron/checkpoint/checkpoint_state.h"
#include "megatron/checkpoint/local/local_place.h"
#include "megatron/comm/process_group.h"

namespace megatron {

// Number of checkpoints that a directory holds at most: those that are whole, and the one that is
// being written.
inline constexpr int kLocalCheckpoints = 2;

// The string of a part that holds LocalPlace::start.
inline constexpr char kLocalStart[] = "local_start";

struct LocalSaveOptions {
  LocalPlace place;
  int peer_copies = 0;  // less than the number of machines
  ProcessGroup ranks;   // all, for this alone
  Agreement agree;
  int64_t chunk_bytes = int64_t{4} << 20;  // as SaveOptions::chunk_bytes
};

// All ranks call it. Of the checkpoints before, the one that most machines have stays, the newest
// of several such; the others, and those of later iterations, which an earlier start has left, are
// removed first. After an error nothing of the new one is left.
//
// The state's tensors must not change until `state_is_read` is called (at most once, by this
// thread, not after an error) or this returns.
absl::Status SaveLocalCheckpoint(FileSystem& fs, const LocalSaveOptions& options,
                                 const CheckpointState& state,
                                 const std::function<void()>& state_is_read = nullptr);

// Removes the run's local checkpoints of this machine, and its directory.
absl::Status RemoveLocalCheckpoints(FileSystem& fs, const std::string& directory);

}  // namespace megatron

#endif  // MEGATRON_CHECKPOINT_LOCAL_SAVE_LOCAL_CHECKPOINT_H_
