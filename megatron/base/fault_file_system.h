// A file system that fails on request, around another one: "what if the n-th operation meets a full
// disk?", for every n.
//
//   FaultFileSystem fs(&base);
//   Save(fs);                                       // counts
//   const int n = fs.operation_count();
//   for (int i = 0; i < n; ++i) {
//     fs.FailAt(i, ENOSPC, /*lasting=*/true);
//     EXPECT_FALSE(Save(fs).ok());
//   }
#ifndef MEGATRON_BASE_FAULT_FILE_SYSTEM_H_
#define MEGATRON_BASE_FAULT_FILE_SYSTEM_H_

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "megatron/base/file_system.h"

namespace megatron {

class FaultFileSystem : public FileSystem {
 public:
  explicit FaultFileSystem(FileSystem* base) : base_(base) {}

  // Restarts the count; operation `operation` (from 0, reads included) fails with `error_number`. A
  // failing Append has written half of its data. `lasting`: so does every later operation that
  // writes; removing and reading work again.
  void FailAt(int operation, int error_number, bool lasting);
  // Restarts the count, and nothing fails.
  void Heal() { FailAt(-1, 0, false); }

  // Operations since the last FailAt or Heal.
  int operation_count() const { return count_; }
  // Whether a fault has struck since then.
  bool struck() const { return struck_; }

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
  friend class FaultWritableFile;
  friend class FaultRandomAccessFile;

  // Counts one operation and says whether it fails.
  absl::Status Count(bool writes, absl::string_view operation, const std::string& path);

  FileSystem* const base_;
  std::atomic<int> count_{0};
  std::atomic<bool> struck_{false};
  int fail_at_ = -1;
  int error_number_ = 0;
  bool lasting_ = false;
};

}  // namespace megatron

#endif  // MEGATRON_BASE_FAULT_FILE_SYSTEM_H_
