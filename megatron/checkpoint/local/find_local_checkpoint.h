// Finds the newest local checkpoint (save_local_checkpoint.h) of which the machines that are there
// have every shard.
#ifndef MEGATRON_CHECKPOINT_LOCAL_FIND_LOCAL_CHECKPOINT_H_
#define MEGATRON_CHECKPOINT_LOCAL_FIND_LOCAL_CHECKPOINT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/base/file_system.h"
#include "megatron/checkpoint/local/local_place.h"
#include "megatron/checkpoint/manifest.h"
#include "megatron/comm/process_group.h"

namespace megatron {

struct LocalCheckpoint {
  Manifest manifest;      // the whole checkpoint's
  std::string directory;  // the iteration's, on this rank's machine
  // The ranks that have found each shard sound on their machines, ascending: at least one.
  std::vector<std::vector<int>> holders;
};

struct FoundLocalCheckpoint {
  std::optional<LocalCheckpoint> checkpoint;  // nothing: there is none
  std::vector<std::string> warnings;          // what is wrong with newer ones
};

// Looks at those of the run whose iteration is greater than `newer_than`, the newest first. Every
// byte is checked; a shard that is damaged is as one that is not there. All ranks call it, on
// whichever machines they are, and get the same. An error is one of the group.
absl::StatusOr<FoundLocalCheckpoint> FindLocalCheckpoint(FileSystem& fs, const LocalPlace& place,
                                                         const std::string& run_id,
                                                         int64_t newer_than,
                                                         const ProcessGroup& ranks);

}  // namespace megatron

#endif  // MEGATRON_CHECKPOINT_LOCAL_FIND_LOCAL_CHECKPOINT_H_
