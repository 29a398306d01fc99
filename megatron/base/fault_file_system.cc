#include "megatron/base/fault_file_system.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"

namespace megatron {

class FaultWritableFile : public WritableFile {
 public:
  FaultWritableFile(FaultFileSystem* fs, std::string path, std::unique_ptr<WritableFile> base)
      : fs_(fs), path_(std::move(path)), base_(std::move(base)) {}

  absl::Status Append(absl::string_view data) override {
    absl::Status fault = fs_->Count(true, "write", path_);
    if (!fault.ok()) data = data.substr(0, data.size() / 2);
    MEGATRON_RETURN_IF_ERROR(base_->Append(data));
    return fault;
  }
  absl::Status Sync() override {
    MEGATRON_RETURN_IF_ERROR(fs_->Count(true, "fsync", path_));
    return base_->Sync();
  }
  absl::Status Close() override {
    MEGATRON_RETURN_IF_ERROR(fs_->Count(true, "close", path_));
    return base_->Close();
  }

 private:
  FaultFileSystem* const fs_;
  const std::string path_;
  const std::unique_ptr<WritableFile> base_;
};

class FaultRandomAccessFile : public RandomAccessFile {
 public:
  FaultRandomAccessFile(FaultFileSystem* fs, std::string path,
                        std::unique_ptr<RandomAccessFile> base)
      : fs_(fs), path_(std::move(path)), base_(std::move(base)) {}

  int64_t size() const override { return base_->size(); }
  absl::Status ReadAt(int64_t offset, absl::Span<char> buffer) const override {
    MEGATRON_RETURN_IF_ERROR(fs_->Count(false, "read", path_));
    return base_->ReadAt(offset, buffer);
  }

 private:
  FaultFileSystem* const fs_;
  const std::string path_;
  const std::unique_ptr<RandomAccessFile> base_;
};

void FaultFileSystem::FailAt(int operation, int error_number, bool lasting) {
  count_ = 0;
  struck_ = false;
  fail_at_ = operation;
  error_number_ = error_number;
  lasting_ = lasting;
}

absl::Status FaultFileSystem::Count(bool writes, absl::string_view operation,
                                    const std::string& path) {
  const int number = count_++;
  const bool fails = number == fail_at_ || (struck_ && lasting_ && writes);
  if (!fails) return absl::OkStatus();
  struck_ = true;
  return absl::ErrnoToStatus(error_number_, absl::StrCat(operation, " '", path, "'"));
}

absl::StatusOr<std::unique_ptr<WritableFile>> FaultFileSystem::Create(const std::string& path) {
  MEGATRON_RETURN_IF_ERROR(Count(true, "create", path));
  MEGATRON_ASSIGN_OR_RETURN(auto file, base_->Create(path));
  return std::make_unique<FaultWritableFile>(this, path, std::move(file));
}

absl::StatusOr<std::unique_ptr<RandomAccessFile>> FaultFileSystem::Open(const std::string& path) {
  MEGATRON_RETURN_IF_ERROR(Count(false, "open", path));
  MEGATRON_ASSIGN_OR_RETURN(auto file, base_->Open(path));
  return std::make_unique<FaultRandomAccessFile>(this, path, std::move(file));
}

absl::StatusOr<std::unique_ptr<RandomAccessFile>> FaultFileSystem::OpenNoFollow(
    const std::string& path) {
  MEGATRON_RETURN_IF_ERROR(Count(false, "open", path));
  MEGATRON_ASSIGN_OR_RETURN(auto file, base_->OpenNoFollow(path));
  return std::make_unique<FaultRandomAccessFile>(this, path, std::move(file));
}

absl::Status FaultFileSystem::CreateDirs(const std::string& path) {
  MEGATRON_RETURN_IF_ERROR(Count(true, "create directory", path));
  return base_->CreateDirs(path);
}

absl::Status FaultFileSystem::Rename(const std::string& from, const std::string& to) {
  MEGATRON_RETURN_IF_ERROR(Count(true, absl::StrCat("rename '", from, "' to"), to));
  return base_->Rename(from, to);
}

absl::Status FaultFileSystem::SyncDir(const std::string& path) {
  MEGATRON_RETURN_IF_ERROR(Count(true, "fsync directory", path));
  return base_->SyncDir(path);
}

absl::Status FaultFileSystem::Remove(const std::string& path) {
  MEGATRON_RETURN_IF_ERROR(Count(false, "remove", path));
  return base_->Remove(path);
}

absl::Status FaultFileSystem::RemoveTree(const std::string& path) {
  MEGATRON_RETURN_IF_ERROR(Count(false, "remove", path));
  return base_->RemoveTree(path);
}

absl::StatusOr<std::vector<std::string>> FaultFileSystem::List(const std::string& path) {
  MEGATRON_RETURN_IF_ERROR(Count(false, "list", path));
  return base_->List(path);
}

absl::StatusOr<FileInfo> FaultFileSystem::Stat(const std::string& path) {
  MEGATRON_RETURN_IF_ERROR(Count(false, "stat", path));
  return base_->Stat(path);
}

absl::StatusOr<int64_t> FaultFileSystem::FreeBytes(const std::string& path) {
  MEGATRON_RETURN_IF_ERROR(Count(false, "statvfs", path));
  return base_->FreeBytes(path);
}

}  // namespace megatron
