#include "megatron/checkpoint/checkpoint_directory.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/names.h"
#include "megatron/checkpoint/shard_header.h"

namespace megatron {
namespace {

absl::StatusOr<std::string> ReadRunIdOfShard(FileSystem& fs, const std::string& path) {
  MEGATRON_ASSIGN_OR_RETURN(const auto file, fs.OpenNoFollow(path));
  std::string bytes(kShardHeaderBytes, '\0');
  MEGATRON_RETURN_IF_ERROR(file->ReadAt(0, absl::MakeSpan(bytes)));
  MEGATRON_ASSIGN_OR_RETURN(const ShardHeader header, DecodeShardHeader(bytes));
  return header.run_id;
}

bool IsCheckpointFileName(const std::string& name) {
  return name == kManifestFileName || IsShardOrPartFileName(name);
}

}  // namespace

absl::StatusOr<Manifest> ReadManifest(FileSystem& fs, const std::string& path) {
  auto file = fs.OpenNoFollow(path);
  if (absl::IsNotFound(file.status())) {
    return absl::DataLossError(absl::StrCat("'", path, "' is missing: this is no checkpoint"));
  }
  MEGATRON_RETURN_IF_ERROR(file.status());
  if ((*file)->size() > kMaxManifestBytes) {
    return absl::DataLossError(
        absl::StrCat("'", path, "' has ", (*file)->size(), " bytes, too many for a manifest"));
  }
  std::string text(static_cast<size_t>((*file)->size()), '\0');
  MEGATRON_RETURN_IF_ERROR((*file)->ReadAt(0, absl::MakeSpan(text)));
  MEGATRON_ASSIGN_OR_RETURN(Manifest manifest, ParseManifest(text),
                            _.SetPrepend() << "'" << path << "': ");
  return manifest;
}

absl::StatusOr<std::string> ReadRunId(FileSystem& fs, const std::string& directory) {
  const auto manifest = ReadManifest(fs, JoinPath(directory, kManifestFileName));
  if (manifest.ok()) return manifest->run_id;
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(directory));
  for (const std::string& name : names) {
    int index = 0;
    if (!ParseShardFileName(name, &index)) continue;
    auto run_id = ReadRunIdOfShard(fs, JoinPath(directory, name));
    if (run_id.ok()) return run_id;
  }
  return absl::NotFoundError(absl::StrCat("nothing in '", directory, "' tells its run"));
}

bool HoldsOnlyCheckpointFiles(FileSystem& fs, const std::string& directory) {
  const absl::StatusOr<FileInfo> info = fs.Stat(directory);
  if (!info.ok() || info->type != FileType::kDirectory) return false;
  const absl::StatusOr<std::vector<std::string>> names = fs.List(directory);
  return names.ok() && std::all_of(names->begin(), names->end(), IsCheckpointFileName);
}

absl::Status RemoveCheckpointDirectory(FileSystem& fs, const std::string& directory) {
  if (!HoldsOnlyCheckpointFiles(fs, directory)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "'", directory, "' is left alone: it is no directory, or holds more than a checkpoint"));
  }
  MEGATRON_ASSIGN_OR_RETURN(std::vector<std::string> names, fs.List(directory));
  std::stable_partition(names.begin(), names.end(),
                        [](const std::string& name) { return name != kManifestFileName; });
  for (const std::string& name : names) {
    MEGATRON_RETURN_IF_ERROR(fs.Remove(JoinPath(directory, name)));
  }
  return fs.Remove(directory);
}

absl::Status WriteAndSync(FileSystem& fs, const std::string& path, absl::string_view contents) {
  MEGATRON_ASSIGN_OR_RETURN(const auto file, fs.Create(path));
  MEGATRON_RETURN_IF_ERROR(file->Append(contents));
  MEGATRON_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

absl::Status CreateDirsDurably(FileSystem& fs, const std::string& path) {
  if (fs.Stat(path).ok()) return fs.CreateDirs(path);  // Fails on a file.
  const std::string parent = ParentPath(path);
  if (parent != path) {
    MEGATRON_RETURN_IF_ERROR(CreateDirsDurably(fs, parent));
  }
  MEGATRON_RETURN_IF_ERROR(fs.CreateDirs(path));
  return fs.SyncDir(parent);
}

}  // namespace megatron
