#include "megatron/base/memory_file_system.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

constexpr size_t kSectorBytes = 512;

std::string BaseName(const std::string& path) {
  const std::vector<std::string> parts = absl::StrSplit(path, '/', absl::SkipEmpty());
  return parts.empty() ? "" : parts.back();
}

absl::Status Error(int error_number, absl::string_view operation, absl::string_view path) {
  return absl::ErrnoToStatus(error_number, absl::StrCat(operation, " '", path, "'"));
}

// Returns what a power cut leaves of `data` if only `durable` was synced.
std::string Tear(const std::string& data, const std::string& durable, std::mt19937_64* random) {
  if (!absl::StartsWith(data, durable) && (*random)() % 2 == 0) return durable;
  const size_t kept = absl::StartsWith(data, durable) ? durable.size() : 0;
  const size_t sectors = (data.size() - kept + kSectorBytes - 1) / kSectorBytes;
  const size_t written = (*random)() % (sectors + 1);
  std::string torn = data.substr(0, std::min(data.size(), kept + written * kSectorBytes));
  for (size_t start = kept; start < torn.size(); start += kSectorBytes) {
    if ((*random)() % 2 == 0) continue;
    const size_t end = std::min(torn.size(), start + kSectorBytes);
    std::fill(torn.begin() + start, torn.begin() + end, '\0');
  }
  return torn;
}

}  // namespace

class MemoryWritableFile : public WritableFile {
 public:
  MemoryWritableFile(MemoryFileSystem* fs, std::string path, int inode)
      : fs_(fs), path_(std::move(path)), inode_(inode) {}

  absl::Status Append(absl::string_view data) override {
    const std::lock_guard<std::mutex> lock(fs_->mutex_);
    fs_->Do({MemoryFileSystem::Operation::kAppend, path_, "", inode_, std::string(data)});
    return absl::OkStatus();
  }
  absl::Status Sync() override {
    const std::lock_guard<std::mutex> lock(fs_->mutex_);
    fs_->Do({MemoryFileSystem::Operation::kSync, path_, "", inode_, ""});
    return absl::OkStatus();
  }
  absl::Status Close() override { return absl::OkStatus(); }

 private:
  MemoryFileSystem* const fs_;
  const std::string path_;
  const int inode_;
};

class MemoryRandomAccessFile : public RandomAccessFile {
 public:
  // The caller holds the mutex.
  MemoryRandomAccessFile(const MemoryFileSystem* fs, std::string path, int inode)
      : fs_(fs),
        path_(std::move(path)),
        inode_(inode),
        size_(static_cast<int64_t>(fs->inodes_[inode].data.size())) {}

  int64_t size() const override { return size_; }
  absl::Status ReadAt(int64_t offset, absl::Span<char> buffer) const override {
    const std::lock_guard<std::mutex> lock(fs_->mutex_);
    const std::string& data = fs_->inodes_[inode_].data;
    if (offset < 0 || static_cast<size_t>(offset) + buffer.size() > data.size()) {
      return absl::OutOfRangeError(absl::StrCat("read '", path_, "': the file ends too early"));
    }
    data.copy(buffer.data(), buffer.size(), static_cast<size_t>(offset));
    return absl::OkStatus();
  }

 private:
  const MemoryFileSystem* const fs_;
  const std::string path_;
  const int inode_;
  const int64_t size_;
};

MemoryFileSystem::MemoryFileSystem() {
  inodes_.emplace_back();
  inodes_[0].is_directory = true;
}

absl::StatusOr<std::unique_ptr<WritableFile>> MemoryFileSystem::Create(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  MEGATRON_RETURN_IF_ERROR(FindDirectory(ParentPath(path)).status());
  const int existing = Find(path);
  if (existing >= 0 && inodes_[existing].is_directory) return Error(EISDIR, "create", path);
  Do({Operation::kCreate, path, "", -1, ""});
  return std::make_unique<MemoryWritableFile>(this, path, Find(path));
}

absl::StatusOr<std::unique_ptr<RandomAccessFile>> MemoryFileSystem::Open(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int inode = Find(path);
  if (inode < 0) return Error(ENOENT, "open", path);
  if (inodes_[inode].is_directory) {
    return absl::FailedPreconditionError(absl::StrCat("open '", path, "': it is a directory"));
  }
  return std::make_unique<MemoryRandomAccessFile>(this, path, inode);
}

absl::StatusOr<std::unique_ptr<RandomAccessFile>> MemoryFileSystem::OpenNoFollow(
    const std::string& path) {
  return Open(path);  // this file system has no links
}

absl::Status MemoryFileSystem::CreateDirs(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::string prefix;
  for (absl::string_view part : absl::StrSplit(path, '/', absl::SkipEmpty())) {
    absl::StrAppend(&prefix, "/", part);
    const int inode = Find(prefix);
    if (inode >= 0 && !inodes_[inode].is_directory) {
      return Error(EEXIST, "create directory", path);
    }
    if (inode < 0) Do({Operation::kMakeDir, prefix, "", -1, ""});
  }
  return absl::OkStatus();
}

absl::Status MemoryFileSystem::Rename(const std::string& from, const std::string& to) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::string operation = absl::StrCat("rename '", from, "' to");
  if (Find(from) < 0) return Error(ENOENT, operation, to);
  MEGATRON_RETURN_IF_ERROR(FindDirectory(ParentPath(to)).status());
  const int target = Find(to);
  if (target >= 0 && inodes_[target].is_directory && !inodes_[target].names.empty()) {
    return Error(ENOTEMPTY, operation, to);
  }
  Do({Operation::kRename, from, to, -1, ""});
  return absl::OkStatus();
}

absl::Status MemoryFileSystem::SyncDir(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  MEGATRON_RETURN_IF_ERROR(FindDirectory(path).status());
  Do({Operation::kSyncDir, path, "", -1, ""});
  return absl::OkStatus();
}

absl::Status MemoryFileSystem::Remove(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return RemoveLocked(path);
}

absl::Status MemoryFileSystem::RemoveLocked(const std::string& path) {
  const int inode = Find(path);
  if (inode < 0) return Error(ENOENT, "remove", path);
  if (!inodes_[inode].names.empty()) return Error(ENOTEMPTY, "remove", path);
  Do({Operation::kRemove, path, "", -1, ""});
  return absl::OkStatus();
}

absl::Status MemoryFileSystem::RemoveTree(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return Find(path) < 0 ? absl::OkStatus() : RemoveTreeLocked(path);
}

absl::Status MemoryFileSystem::RemoveTreeLocked(const std::string& path) {
  const std::map<std::string, int> names = inodes_[Find(path)].names;
  for (const auto& entry : names) {
    MEGATRON_RETURN_IF_ERROR(RemoveTreeLocked(JoinPath(path, entry.first)));
  }
  return RemoveLocked(path);
}

absl::StatusOr<std::vector<std::string>> MemoryFileSystem::List(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  MEGATRON_ASSIGN_OR_RETURN(const int inode, FindDirectory(path));
  std::vector<std::string> names;
  for (const auto& entry : inodes_[inode].names) names.push_back(entry.first);
  return names;
}

absl::StatusOr<FileInfo> MemoryFileSystem::Stat(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int inode = Find(path);
  if (inode < 0) return Error(ENOENT, "stat", path);
  FileInfo info;
  info.type = inodes_[inode].is_directory ? FileType::kDirectory : FileType::kRegular;
  info.size = static_cast<int64_t>(inodes_[inode].data.size());
  return info;
}

absl::StatusOr<int64_t> MemoryFileSystem::FreeBytes(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (Find(path) < 0) return Error(ENOENT, "statvfs", path);
  return free_bytes_;
}

int MemoryFileSystem::operation_count() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int>(log_.size());
}

std::string MemoryFileSystem::Describe(int operation) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (operation < 0) return "nothing";
  static constexpr const char* kVerbs[] = {"create", "append to",      "sync",  "make directory",
                                           "rename", "sync directory", "remove"};
  const Operation& op = log_[operation];
  std::string text = absl::StrCat(kVerbs[op.kind], " '", op.path, "'");
  if (op.kind == Operation::kRename) absl::StrAppend(&text, " to '", op.to, "'");
  if (op.kind == Operation::kAppend) absl::StrAppend(&text, " ", op.data.size(), " bytes");
  return text;
}

std::unique_ptr<MemoryFileSystem> MemoryFileSystem::CrashImage(int operations, CrashModel model,
                                                               uint64_t seed) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto image = std::make_unique<MemoryFileSystem>();
  for (int i = 0; i < operations; ++i) image->Apply(log_[i]);
  std::mt19937_64 random(seed);
  image->Crash(model, &random);
  return image;
}

std::string* MemoryFileSystem::MutableContents(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int inode = Find(path);
  CHECK_GE(inode, 0) << path;
  return &inodes_[inode].data;
}

int MemoryFileSystem::Find(const std::string& path) const {
  int inode = 0;
  for (absl::string_view part : absl::StrSplit(path, '/', absl::SkipEmpty())) {
    if (part == ".") continue;
    const auto& names = inodes_[inode].names;
    const auto entry = names.find(std::string(part));
    if (entry == names.end()) return -1;
    inode = entry->second;
  }
  return inode;
}

absl::StatusOr<int> MemoryFileSystem::FindDirectory(const std::string& path) const {
  const int inode = Find(path);
  if (inode < 0) return Error(ENOENT, "open directory", path);
  if (!inodes_[inode].is_directory) return Error(ENOTDIR, "open directory", path);
  return inode;
}

void MemoryFileSystem::ChangeName(int directory, const NameChange& change) {
  std::map<std::string, int>& names = inodes_[directory].names;
  names.erase(change.old_name);
  if (change.inode < 0) {
    names.erase(change.name);
  } else {
    names[change.name] = change.inode;
  }
  inodes_[directory].unsynced_names.push_back(change);
}

void MemoryFileSystem::Do(Operation operation) {
  Apply(operation);
  log_.push_back(std::move(operation));
}

void MemoryFileSystem::Apply(const Operation& operation) {
  const std::string name = BaseName(operation.path);
  const int parent = Find(ParentPath(operation.path));
  switch (operation.kind) {
    case Operation::kCreate:
      if (const int existing = Find(operation.path); existing >= 0) {
        inodes_[existing].data.clear();
        return;
      }
      inodes_.emplace_back();
      return ChangeName(parent, {name, static_cast<int>(inodes_.size()) - 1, ""});
    case Operation::kMakeDir:
      inodes_.emplace_back();
      inodes_.back().is_directory = true;
      return ChangeName(parent, {name, static_cast<int>(inodes_.size()) - 1, ""});
    case Operation::kAppend:
      inodes_[operation.inode].data += operation.data;
      return;
    case Operation::kSync:
      inodes_[operation.inode].durable_data = inodes_[operation.inode].data;
      return;
    case Operation::kRename: {
      const int inode = Find(operation.path);
      const int target = Find(ParentPath(operation.to));
      if (target == parent) return ChangeName(parent, {BaseName(operation.to), inode, name});
      ChangeName(target, {BaseName(operation.to), inode, ""});
      return ChangeName(parent, {name, -1, ""});
    }
    case Operation::kSyncDir: {
      Inode& directory = inodes_[Find(operation.path)];
      directory.durable_names = directory.names;
      directory.unsynced_names.clear();
      return;
    }
    case Operation::kRemove:
      return ChangeName(parent, {name, -1, ""});
  }
}

void MemoryFileSystem::Crash(CrashModel model, std::mt19937_64* random) {
  for (size_t i = 0; i < inodes_.size(); ++i) {
    Inode& inode = inodes_[i];
    if (model == CrashModel::kLoseUnsynced) {
      inode.names = inode.durable_names;
      inode.data = inode.durable_data;
    } else if (model != CrashModel::kKillProcess && inode.data != inode.durable_data) {
      inode.data = Tear(inode.data, inode.durable_data, random);
    }
    if (model == CrashModel::kShuffleNames) {
      inode.names = inode.durable_names;
      const std::vector<NameChange> changes = std::move(inode.unsynced_names);
      for (const NameChange& change : changes) {
        if ((*random)() % 2 == 0) ChangeName(static_cast<int>(i), change);
      }
    }
    inode.unsynced_names.clear();
    inode.durable_names = inode.names;
    inode.durable_data = inode.data;
  }
}

}  // namespace megatron
