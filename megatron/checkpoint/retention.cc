#include "megatron/checkpoint/retention.h"

#include <algorithm>
#include <vector>

#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/checkpoint_directory.h"
#include "megatron/checkpoint/checkpoint_reader.h"
#include "megatron/checkpoint/names.h"

namespace megatron {
namespace {

bool BelongsTo(FileSystem& fs, const std::string& directory, const std::string& run_id) {
  if (!HoldsOnlyCheckpointFiles(fs, directory)) return false;
  const absl::StatusOr<std::string> found = ReadRunId(fs, directory);
  return found.ok() && *found == run_id;
}

// A save that was killed before its first file.
bool IsEmptyDirectory(FileSystem& fs, const std::string& directory) {
  const auto names = fs.List(directory);
  return HoldsOnlyCheckpointFiles(fs, directory) && names.ok() && names->empty();
}

// A save that was killed between its two renames leaves the only checkpoint of its iteration as one
// that is replaced.
absl::Status NameReplacedAgain(FileSystem& fs, const std::string& save_directory,
                               const std::string& run_id) {
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(save_directory));
  bool any = false;
  for (const std::string& name : names) {
    IterationDirectory parsed;
    if (!ParseDirectoryName(name, &parsed) || parsed.kind != DirectoryKind::kReplaced) continue;
    const std::string final_name = DirectoryName(parsed.iteration);
    if (std::binary_search(names.begin(), names.end(), final_name)) continue;
    const std::string path = JoinPath(save_directory, name);
    if (!BelongsTo(fs, path, run_id) || !CheckpointReader::Open(fs, path).ok()) continue;
    MEGATRON_RETURN_IF_ERROR(fs.Rename(path, JoinPath(save_directory, final_name)));
    any = true;
  }
  return any ? fs.SyncDir(save_directory) : absl::OkStatus();
}

struct Found {
  std::vector<int64_t> checkpoints;    // this run's, before the newest, ascending
  std::vector<std::string> leftovers;  // paths
};

absl::StatusOr<Found> Look(FileSystem& fs, const std::string& save_directory,
                           const Retention& retention) {
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(save_directory));
  Found found;
  for (const std::string& name : names) {
    IterationDirectory parsed;
    if (!ParseDirectoryName(name, &parsed)) continue;
    const std::string path = JoinPath(save_directory, name);
    const bool is_final = parsed.kind == DirectoryKind::kFinal;
    if (is_final && (retention.keep == 0 || parsed.iteration >= retention.iteration)) continue;
    const bool ours = BelongsTo(fs, path, retention.run_id);
    if (is_final && ours) found.checkpoints.push_back(parsed.iteration);
    if (!is_final && (ours || IsEmptyDirectory(fs, path))) found.leftovers.push_back(path);
  }
  std::sort(found.checkpoints.begin(), found.checkpoints.end());
  return found;
}

}  // namespace

absl::Status RemoveOldCheckpoints(FileSystem& fs, const std::string& save_directory,
                                  const Retention& retention) {
  MEGATRON_RETURN_IF_ERROR(NameReplacedAgain(fs, save_directory, retention.run_id));
  MEGATRON_ASSIGN_OR_RETURN(Found found, Look(fs, save_directory, retention));
  for (const std::string& path : found.leftovers) {
    MEGATRON_RETURN_IF_ERROR(RemoveCheckpointDirectory(fs, path));
  }
  const int64_t spare = static_cast<int64_t>(found.checkpoints.size()) - (retention.keep - 1);
  if (retention.keep == 0 || spare <= 0) return absl::OkStatus();

  // A name that readers skip comes first, durably, so that none ever meets a checkpoint with half
  // of its files.
  std::vector<std::string> doomed;
  for (int64_t i = 0; i < spare; ++i) {
    const int64_t iteration = found.checkpoints[i];
    if (retention.interval > 0 && iteration % retention.interval == 0) continue;
    doomed.push_back(JoinPath(save_directory, DirectoryName(iteration, DirectoryKind::kTemporary)));
    MEGATRON_RETURN_IF_ERROR(
        fs.Rename(JoinPath(save_directory, DirectoryName(iteration)), doomed.back()));
  }
  MEGATRON_RETURN_IF_ERROR(fs.SyncDir(save_directory));
  for (const std::string& path : doomed) {
    MEGATRON_RETURN_IF_ERROR(RemoveCheckpointDirectory(fs, path));
  }
  return absl::OkStatus();
}

}  // namespace megatron
