#include "megatron/base/wrapped_file_system.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"

namespace megatron {

class WrappedWritableFile : public WritableFile {
 public:
  WrappedWritableFile(WrappedFileSystem* fs, std::string path, std::unique_ptr<WritableFile> base)
      : fs_(*fs), path_(std::move(path)), base_(std::move(base)) {}

  absl::Status Append(absl::string_view data) override {
    const absl::Status status = fs_.Begin({true, "write", path_});
    if (!status.ok()) {
      const absl::string_view part = fs_.WrittenBeforeFailure(data);
      const absl::Status torn = part.empty() ? absl::OkStatus() : base_->Append(part);
      return torn.ok() ? status : torn;
    }
    const absl::Status appended = base_->Append(data);
    fs_.End();
    return appended;
  }
  absl::Status Sync() override {
    return fs_.Do({true, "fsync", path_}, [&] { return base_->Sync(); });
  }
  absl::Status Close() override {
    return fs_.Do({true, "close", path_}, [&] { return base_->Close(); });
  }

 private:
  WrappedFileSystem& fs_;
  const std::string path_;
  const std::unique_ptr<WritableFile> base_;
};

class WrappedRandomAccessFile : public RandomAccessFile {
 public:
  WrappedRandomAccessFile(WrappedFileSystem* fs, std::string path,
                          std::unique_ptr<RandomAccessFile> base)
      : fs_(*fs), path_(std::move(path)), base_(std::move(base)) {}

  int64_t size() const override { return base_->size(); }
  absl::Status ReadAt(int64_t offset, absl::Span<char> buffer) const override {
    return fs_.Do({false, "read", path_}, [&] { return base_->ReadAt(offset, buffer); });
  }

 private:
  WrappedFileSystem& fs_;
  const std::string path_;
  const std::unique_ptr<RandomAccessFile> base_;
};

absl::StatusOr<std::unique_ptr<WritableFile>> WrappedFileSystem::Create(const std::string& path) {
  MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file,
                            Do({true, "create", path}, [&] { return base_.Create(path); }));
  return std::make_unique<WrappedWritableFile>(this, path, std::move(file));
}

absl::StatusOr<std::unique_ptr<RandomAccessFile>> WrappedFileSystem::Open(const std::string& path) {
  MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<RandomAccessFile> file,
                            Do({false, "open", path}, [&] { return base_.Open(path); }));
  return std::make_unique<WrappedRandomAccessFile>(this, path, std::move(file));
}

absl::StatusOr<std::unique_ptr<RandomAccessFile>> WrappedFileSystem::OpenNoFollow(
    const std::string& path) {
  MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<RandomAccessFile> file,
                            Do({false, "open", path}, [&] { return base_.OpenNoFollow(path); }));
  return std::make_unique<WrappedRandomAccessFile>(this, path, std::move(file));
}

absl::Status WrappedFileSystem::CreateDirs(const std::string& path) {
  return Do({true, "create directory", path}, [&] { return base_.CreateDirs(path); });
}

absl::Status WrappedFileSystem::Rename(const std::string& from, const std::string& to) {
  return Do({true, absl::StrCat("rename '", from, "' to"), to},
            [&] { return base_.Rename(from, to); });
}

absl::Status WrappedFileSystem::SyncDir(const std::string& path) {
  return Do({true, "fsync directory", path}, [&] { return base_.SyncDir(path); });
}

absl::Status WrappedFileSystem::Remove(const std::string& path) {
  return Do({false, "remove", path}, [&] { return base_.Remove(path); });
}

absl::Status WrappedFileSystem::RemoveTree(const std::string& path) {
  return Do({false, "remove", path}, [&] { return base_.RemoveTree(path); });
}

absl::StatusOr<std::vector<std::string>> WrappedFileSystem::List(const std::string& path) {
  return Do({false, "list", path}, [&] { return base_.List(path); });
}

absl::StatusOr<FileInfo> WrappedFileSystem::Stat(const std::string& path) {
  return Do({false, "stat", path}, [&] { return base_.Stat(path); });
}

absl::StatusOr<int64_t> WrappedFileSystem::FreeBytes(const std::string& path) {
  return Do({false, "statvfs", path}, [&] { return base_.FreeBytes(path); });
}

}  // namespace megatron
