#include "megatron/train/failure/reporting_file_system.h"

#include <utility>

#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

using Outside = RankProgress::Outside;

class ReportingWritableFile : public WritableFile {
 public:
  ReportingWritableFile(std::unique_ptr<WritableFile> base, RankProgress* progress)
      : base_(std::move(base)), progress_(*progress) {}

  absl::Status Append(absl::string_view data) override {
    const Outside at_file(&progress_);
    return base_->Append(data);
  }
  absl::Status Sync() override {
    const Outside at_file(&progress_);
    return base_->Sync();
  }
  absl::Status Close() override {
    const Outside at_file(&progress_);
    return base_->Close();
  }

 private:
  const std::unique_ptr<WritableFile> base_;
  RankProgress& progress_;
};

class ReportingRandomAccessFile : public RandomAccessFile {
 public:
  ReportingRandomAccessFile(std::unique_ptr<RandomAccessFile> base, RankProgress* progress)
      : base_(std::move(base)), progress_(*progress) {}

  int64_t size() const override { return base_->size(); }
  absl::Status ReadAt(int64_t offset, absl::Span<char> buffer) const override {
    const Outside at_file(&progress_);
    return base_->ReadAt(offset, buffer);
  }

 private:
  const std::unique_ptr<RandomAccessFile> base_;
  RankProgress& progress_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<WritableFile>> ReportingFileSystem::Create(const std::string& path) {
  const Outside at_file(&progress_);
  MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, base_.Create(path));
  return std::make_unique<ReportingWritableFile>(std::move(file), &progress_);
}

absl::StatusOr<std::unique_ptr<RandomAccessFile>> ReportingFileSystem::Open(
    const std::string& path) {
  const Outside at_file(&progress_);
  MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<RandomAccessFile> file, base_.Open(path));
  return std::make_unique<ReportingRandomAccessFile>(std::move(file), &progress_);
}

absl::StatusOr<std::unique_ptr<RandomAccessFile>> ReportingFileSystem::OpenNoFollow(
    const std::string& path) {
  const Outside at_file(&progress_);
  MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<RandomAccessFile> file, base_.OpenNoFollow(path));
  return std::make_unique<ReportingRandomAccessFile>(std::move(file), &progress_);
}

absl::Status ReportingFileSystem::CreateDirs(const std::string& path) {
  const Outside at_file(&progress_);
  return base_.CreateDirs(path);
}

absl::Status ReportingFileSystem::Rename(const std::string& from, const std::string& to) {
  const Outside at_file(&progress_);
  return base_.Rename(from, to);
}

absl::Status ReportingFileSystem::SyncDir(const std::string& path) {
  const Outside at_file(&progress_);
  return base_.SyncDir(path);
}

absl::Status ReportingFileSystem::Remove(const std::string& path) {
  const Outside at_file(&progress_);
  return base_.Remove(path);
}

absl::Status ReportingFileSystem::RemoveTree(const std::string& path) {
  const Outside at_file(&progress_);
  return base_.RemoveTree(path);
}

absl::StatusOr<std::vector<std::string>> ReportingFileSystem::List(const std::string& path) {
  const Outside at_file(&progress_);
  return base_.List(path);
}

absl::StatusOr<FileInfo> ReportingFileSystem::Stat(const std::string& path) {
  const Outside at_file(&progress_);
  return base_.Stat(path);
}

absl::StatusOr<int64_t> ReportingFileSystem::FreeBytes(const std::string& path) {
  const Outside at_file(&progress_);
  return base_.FreeBytes(path);
}

}  // namespace megatron
