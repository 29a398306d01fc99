// Saving a checkpoint: every rank writes its shard, rank 0 commits the whole. A crash or a power
// cut at any instant leaves the previous checkpoint or the new one, never a mixture and never
// nothing (docs/checkpoint_format.md says how).
//
// The same state gives the same bytes: no clock, host name or process id gets into a file.
#ifndef MEGATRON_CHECKPOINT_SAVE_CHECKPOINT_H_
#define MEGATRON_CHECKPOINT_SAVE_CHECKPOINT_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "megatron/base/file_system.h"
#include "megatron/checkpoint/checkpoint_state.h"
#include "megatron/checkpoint/manifest.h"

namespace megatron {

struct SaveOptions {
  std::string
      directory;  // folder of all the run's checkpoints, seen by all ranks; created where missing
  // Number of this run's newest checkpoints to keep, the new one included; older ones are removed
  // after the commit. 0 removes none.
  int keep = 0;
  // Checkpoints of iterations that this number divides are never removed; 0: `keep` alone decides.
  int64_t retain_interval = 0;

  int rank = 0;
  int world_size = 1;
  // The function by which ranks agree: each gives its status and gets the first error of any of
  // them, after all have called. Every rank calls it equally often. Needed where world_size > 1.
  std::function<absl::Status(absl::Status)> agree;

  // The least that is read at once, which is what one checksum covers. Smaller chunks give finer
  // reads when resharding, and a longer manifest.
  int64_t chunk_bytes = int64_t{4} << 20;
  // The most bytes of a manifest; readers refuse more than kMaxManifestBytes.
  int64_t max_manifest_bytes = kMaxManifestBytes;
};

// Returns the most bytes that manifests have of so many pieces, whose values have `bytes` bytes in
// all; each part names a tensor anew. Saving asks for room for them besides the shards.
int64_t ManifestRoom(int64_t tensors, int64_t pieces, int64_t bytes, int64_t chunk_bytes);

// Writes DIRECTORY/iter_XXXXXXX and then names it in latest_checkpointed_iteration.txt. Replaces a
// checkpoint of the same run and iteration; refuses (kFailedPrecondition) to replace anything else.
// A full disk is found before writing where the file system tells its free bytes
// (kResourceExhausted), and a manifest that is too long before the commit (kOutOfRange). After an
// error what was there before is still there and nothing else, except that after the commit
// removing old checkpoints may fail, and so may writing latest_checkpointed_iteration.txt where a
// directory has its name: IsSaved tells these errors.
//
// The state's tensors must not change until `state_is_read` is called (at most once, by this
// thread, not after an error) or this returns.
absl::Status SaveCheckpoint(FileSystem& fs, const SaveOptions& options,
                            const CheckpointState& state,
                            const std::function<void()>& state_is_read = nullptr);

// Returns whether this error of SaveCheckpoint, or its text that another rank got, says that the
// new checkpoint is saved all the same.
bool IsSaved(const absl::Status& error);

}  // namespace megatron

#endif  // MEGATRON_CHECKPOINT_SAVE_CHECKPOINT_H_
