// Names of a checkpoint's files and directories. The iteration directories and the file that names
// the latest are those that Megatron's users know.
//
//   SAVE/latest_checkpointed_iteration.txt
//   SAVE/iter_0001000/manifest.json
//   SAVE/iter_0001000/shard_00000_of_00002.bin
//   SAVE/iter_0001000/shard_00001_of_00002.bin
//   SAVE/iter_0002000.tmp/...     being written, or being removed: never read
//   SAVE/iter_0002000.old/...     whole, while another save of the same iteration takes its place
#ifndef MEGATRON_CHECKPOINT_NAMES_H_
#define MEGATRON_CHECKPOINT_NAMES_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace megatron {

inline constexpr char kLatestFileName[] = "latest_checkpointed_iteration.txt";
inline constexpr char kManifestFileName[] = "manifest.json";

enum class DirectoryKind { kFinal, kTemporary, kReplaced };

struct IterationDirectory {
  int64_t iteration = 0;
  DirectoryKind kind = DirectoryKind::kFinal;
};

// Returns "iter_0001000", "iter_0001000.tmp" or "iter_0001000.old".
std::string DirectoryName(int64_t iteration, DirectoryKind kind = DirectoryKind::kFinal);
// Returns false unless DirectoryName gives this name.
bool ParseDirectoryName(absl::string_view name, IterationDirectory* directory);

std::string ShardFileName(int index, int count);  // "shard_00003_of_00008.bin"
std::string PartFileName(int index, int count);   // "part_00003_of_00008.json"

// Returns false unless ShardFileName(*index, any count) gives this name.
bool ParseShardFileName(absl::string_view name, int* index);
bool IsShardOrPartFileName(absl::string_view name);

// "iteration" in the latest file: decimal digits, white space around them. False for anything else.
bool ParseIteration(absl::string_view text, int64_t* iteration);

}  // namespace megatron

#endif  // MEGATRON_CHECKPOINT_NAMES_H_
