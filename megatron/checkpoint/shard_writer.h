// Writes one rank's shard file of a save.
#ifndef MEGATRON_CHECKPOINT_SHARD_WRITER_H_
#define MEGATRON_CHECKPOINT_SHARD_WRITER_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "megatron/base/file_system.h"
#include "megatron/checkpoint/checkpoint_state.h"
#include "megatron/checkpoint/manifest.h"

namespace megatron {

struct ShardPlace {
  int index = 0;
  int count = 1;
  int64_t chunk_bytes = 0;
};

// The part manifest of this rank's shard, complete but for the checksums: pieces follow each other
// by tensor name and offset, whatever order the state has. kInvalidArgument names what a checkpoint
// cannot hold.
absl::StatusOr<Manifest> PlanShard(const CheckpointState& state, const ShardPlace& place);

// Writes the planned shard into the directory, durably but for its name, and fills in the
// checksums, which are computed from the memory that is written. Calls `state_is_read`, if there is
// one, when it no longer needs the tensors.
absl::Status WriteShard(FileSystem& fs, const std::string& directory, const CheckpointState& state,
                        const std::function<void()>& state_is_read, Manifest* part);

}  // namespace megatron

#endif  // MEGATRON_CHECKPOINT_SHARD_WRITER_H_
