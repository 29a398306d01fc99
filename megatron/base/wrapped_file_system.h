// A base class for file systems that wrap another one and are told of every operation, before and
// after it.
#ifndef MEGATRON_BASE_WRAPPED_FILE_SYSTEM_H_
#define MEGATRON_BASE_WRAPPED_FILE_SYSTEM_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "megatron/base/file_system.h"

namespace megatron {

// The base must outlive this object, and this object must outlive its files.
class WrappedFileSystem : public FileSystem {
 public:
  explicit WrappedFileSystem(FileSystem* base) : base_(*base) {}

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) final;
  absl::StatusOr<std::unique_ptr<RandomAccessFile>> Open(const std::string& path) final;
  absl::StatusOr<std::unique_ptr<RandomAccessFile>> OpenNoFollow(const std::string& path) final;
  absl::Status CreateDirs(const std::string& path) final;
  absl::Status Rename(const std::string& from, const std::string& to) final;
  absl::Status SyncDir(const std::string& path) final;
  absl::Status Remove(const std::string& path) final;
  absl::Status RemoveTree(const std::string& path) final;
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) final;
  absl::StatusOr<FileInfo> Stat(const std::string& path) final;
  absl::StatusOr<int64_t> FreeBytes(const std::string& path) final;

 protected:
  struct Operation {
    bool writes = false;     // removing does not count as writing, as it frees space
    absl::string_view name;  // "create", "fsync", ...
    absl::string_view path;
  };

 private:
  friend class WrappedWritableFile;
  friend class WrappedRandomAccessFile;

  // Begin is called before each operation, also those of the files, on whatever thread it runs. If
  // it fails, the operation is not done (except for a part of an Append), and End is not called.
  virtual absl::Status Begin(const Operation& operation) = 0;
  virtual void End() {}
  // Returns the part of `data` that an Append writes although Begin has failed.
  virtual absl::string_view WrittenBeforeFailure(absl::string_view data) { return {}; }

  template <typename Call>
  auto Do(const Operation& operation, const Call& call) -> decltype(call()) {
    const absl::Status status = Begin(operation);
    if (!status.ok()) return status;
    auto result = call();
    End();
    return result;
  }

  FileSystem& base_;
};

}  // namespace megatron

#endif  // MEGATRON_BASE_WRAPPED_FILE_SYSTEM_H_
