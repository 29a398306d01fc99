// A rank's file system: whoever watches the rank sees when it is at a file, which may take as long
// as a disk takes, and when it has done with it.
#ifndef MEGATRON_TRAIN_FAILURE_REPORTING_FILE_SYSTEM_H_
#define MEGATRON_TRAIN_FAILURE_REPORTING_FILE_SYSTEM_H_

#include <memory>
#include <string>
#include <vector>

#include "megatron/base/file_system.h"
#include "megatron/train/failure/rank_progress.h"

namespace megatron {

// Both arguments must outlive it and its files.
class ReportingFileSystem : public FileSystem {
 public:
  ReportingFileSystem(FileSystem* base, RankProgress* progress)
      : base_(*base), progress_(*progress) {}

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<RandomAccessFile>> Open(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<RandomAccessFile>> OpenNoFollow(const std::string& path) override;
  absl::Status CreateDirs(const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status SyncDir(const std::string& path) override;
  absl::Status Remove(const std::string& path) override;
  absl::Status RemoveTree(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override;
  absl::StatusOr<FileInfo> Stat(const std::string& path) override;
  absl::StatusOr<int64_t> FreeBytes(const std::string& path) override;

 private:
  FileSystem& base_;
  RankProgress& progress_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_FAILURE_REPORTING_FILE_SYSTEM_H_
