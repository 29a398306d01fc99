// Finds the checkpoint to continue from.
#ifndef MEGATRON_CHECKPOINT_FIND_CHECKPOINT_H_
#define MEGATRON_CHECKPOINT_FIND_CHECKPOINT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/base/file_system.h"

namespace megatron {

struct FoundCheckpoint {
  int64_t iteration = 0;
  std::string directory;  // the directory for CheckpointReader::Open
  // Lines for the log about what was wrong with the checkpoints that should have been taken
  // instead.
  std::vector<std::string> warnings;
};

enum class Check {
  kStructure,  // checks what CheckpointReader::Open checks, which is fast
  kContents,   // every byte too
};

// The checkpoint that latest_checkpointed_iteration.txt names; where that is missing, garbled or
// names one that doesn't pass the check, the newest that does, with warnings.
//
// kNotFound: the directory isn't there or holds no sign of any checkpoint, so a run begins from
// nothing. kDataLoss: there are signs but nothing to load, and beginning again would hide that;
// says what is wrong with each.
absl::StatusOr<FoundCheckpoint> FindLatestCheckpoint(FileSystem& fs,
                                                     const std::string& save_directory,
                                                     Check check = Check::kStructure);

}  // namespace megatron

#endif  // MEGATRON_CHECKPOINT_FIND_CHECKPOINT_H_
