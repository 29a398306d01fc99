// One checkpoint's directory as files: its manifest, whose it is, and its removal, which removes
// nothing else.
#ifndef MEGATRON_CHECKPOINT_CHECKPOINT_DIRECTORY_H_
#define MEGATRON_CHECKPOINT_CHECKPOINT_DIRECTORY_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/base/file_system.h"
#include "megatron/checkpoint/manifest.h"

namespace megatron {

// Reads a manifest or a part. kDataLoss with the path where it is missing or damaged.
absl::StatusOr<Manifest> ReadManifest(FileSystem& fs, const std::string& path);

// The id of the run that wrote the directory, from its manifest or, where that can't be read, from
// a shard's header. kNotFound where neither tells.
absl::StatusOr<std::string> ReadRunId(FileSystem& fs, const std::string& directory);

// Returns whether `directory` is one, not a link, that holds files of a checkpoint only, by their
// names, or nothing.
bool HoldsOnlyCheckpointFiles(FileSystem& fs, const std::string& directory);

// Removes a directory that HoldsOnlyCheckpointFiles; of any other removes nothing and fails.
// Follows no link. What tells the run's id goes last, so that an interrupted removal can be taken
// up again.
absl::Status RemoveCheckpointDirectory(FileSystem& fs, const std::string& directory);

// Creates the file, which nobody may be reading, and makes its data durable. Its name needs a
// SyncDir.
absl::Status WriteAndSync(FileSystem& fs, const std::string& path, absl::string_view contents);

// Creates directories as FileSystem::CreateDirs does, and makes the new names durable.
absl::Status CreateDirsDurably(FileSystem& fs, const std::string& path);

}  // namespace megatron

#endif  // MEGATRON_CHECKPOINT_CHECKPOINT_DIRECTORY_H_
