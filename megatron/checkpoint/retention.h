// The rule for which checkpoints stay.
#ifndef MEGATRON_CHECKPOINT_RETENTION_H_
#define MEGATRON_CHECKPOINT_RETENTION_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "megatron/base/file_system.h"

namespace megatron {

struct Retention {
  std::string run_id;
  int64_t iteration = 0;  // iteration of the newest, which always stays
  int keep = 0;           // number of checkpoints that stay, the newest included; 0 keeps all
  int64_t interval = 0;   // iterations that it divides stay too; 0: none
};

// Removes from `save_directory`, of this run's checkpoints only: those before `iteration` but for
// the newest keep - 1 and multiples of `interval`, and what interrupted saves and removals left. A
// whole checkpoint that was being replaced, and whose successor is not there, gets its name back.
// Checkpoints of other runs, of later iterations (the run went back), directories with any foreign
// file in them and links stay. Durable in an order that leaves no half-removed checkpoint under its
// name.
absl::Status RemoveOldCheckpoints(FileSystem& fs, const std::string& save_directory,
                                  const Retention& retention);

}  // namespace megatron

#endif  // MEGATRON_CHECKPOINT_RETENTION_H_
