#include "megatron/base/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

absl::Status ErrnoStatus(absl::string_view operation, absl::string_view path) {
  const int error = errno;
  return absl::ErrnoToStatus(error, absl::StrCat(operation, " '", path, "'"));
}

// Repeats a system call that a signal interrupted.
template <typename Call>
auto Retry(Call call) {
  decltype(call()) result;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.Release()) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }

  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

class PosixWritableFile : public WritableFile {
 public:
  PosixWritableFile(std::string path, FileDescriptor fd)
      : path_(std::move(path)), fd_(std::move(fd)) {}

  absl::Status Append(absl::string_view data) override {
    while (!data.empty()) {
      const ssize_t written = Retry([&] { return write(fd_.get(), data.data(), data.size()); });
      if (written < 0) return ErrnoStatus("write", path_);
      data.remove_prefix(static_cast<size_t>(written));
    }
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    if (Retry([&] { return fsync(fd_.get()); }) != 0) return ErrnoStatus("fsync", path_);
    return absl::OkStatus();
  }

  absl::Status Close() override {
    // Linux frees the descriptor even when close() is interrupted, so it is never repeated.
    if (close(fd_.Release()) != 0 && errno != EINTR) return ErrnoStatus("close", path_);
    return absl::OkStatus();
  }

 private:
  const std::string path_;
  FileDescriptor fd_;
};

class PosixRandomAccessFile : public RandomAccessFile {
 public:
  PosixRandomAccessFile(std::string path, FileDescriptor fd, int64_t size)
      : path_(std::move(path)), fd_(std::move(fd)), size_(size) {}

  int64_t size() const override { return size_; }

  absl::Status ReadAt(int64_t offset, absl::Span<char> buffer) const override {
    while (!buffer.empty()) {
      const ssize_t count =
          Retry([&] { return pread(fd_.get(), buffer.data(), buffer.size(), offset); });
      if (count < 0) return ErrnoStatus("read", path_);
      if (count == 0) {
        return absl::OutOfRangeError(absl::StrCat("read '", path_, "': the file ends at byte ",
                                                  offset, ", ", buffer.size(),
                                                  " more bytes were expected"));
      }
      offset += count;
      buffer.remove_prefix(static_cast<size_t>(count));
    }
    return absl::OkStatus();
  }

 private:
  const std::string path_;
  const FileDescriptor fd_;
  const int64_t size_;
};

absl::StatusOr<std::unique_ptr<RandomAccessFile>> OpenRegular(const std::string& path,
                                                              int extra_flags) {
  // O_NONBLOCK keeps open() of a FIFO from waiting for a writer; it has no effect on a regular
  // file.
  const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | extra_flags;
  FileDescriptor fd(Retry([&] { return open(path.c_str(), flags); }));
  if (fd.get() < 0) return ErrnoStatus("open", path);
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus("stat", path);
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "open '", path,
        "': ", S_ISDIR(info.st_mode) ? "it is a directory" : "it is not a regular file"));
  }
  const int64_t size = info.st_size;
  return std::make_unique<PosixRandomAccessFile>(path, std::move(fd), size);
}

// Removes everything below the open directory `directory_fd`. `path` serves messages only.
absl::Status RemoveContents(FileDescriptor directory_fd, const std::string& path) {
  DIR* const directory = fdopendir(directory_fd.get());
  if (directory == nullptr) return ErrnoStatus("list", path);
  const std::unique_ptr<DIR, int (*)(DIR*)> closer(directory, closedir);
  const int fd = directory_fd.Release();  // closedir closes it.
  while (true) {
    errno = 0;
    const dirent* const entry = readdir(directory);
    if (entry == nullptr) break;
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    const std::string child = JoinPath(path, name);
    FileDescriptor child_fd(
        openat(fd, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    const bool is_directory = child_fd.get() >= 0;
    if (is_directory) {
      MEGATRON_RETURN_IF_ERROR(RemoveContents(std::move(child_fd), child));
    }
    if (unlinkat(fd, name.c_str(), is_directory ? AT_REMOVEDIR : 0) != 0) {
      return ErrnoStatus("remove", child);
    }
  }
  if (errno != 0) return ErrnoStatus("list", path);
  return absl::OkStatus();
}

class PosixFileSystemImpl : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
    FileDescriptor fd(Retry([&] { return open(path.c_str(), flags, 0666); }));
    if (fd.get() < 0) return ErrnoStatus("create", path);
    return std::make_unique<PosixWritableFile>(path, std::move(fd));
  }

  absl::StatusOr<std::unique_ptr<RandomAccessFile>> Open(const std::string& path) override {
    return OpenRegular(path, 0);
  }

  absl::StatusOr<std::unique_ptr<RandomAccessFile>> OpenNoFollow(const std::string& path) override {
    return OpenRegular(path, O_NOFOLLOW);
  }

  absl::Status CreateDirs(const std::string& path) override {
    if (mkdir(path.c_str(), 0777) == 0) return absl::OkStatus();
    if (errno == ENOENT && ParentPath(path) != path) {
      MEGATRON_RETURN_IF_ERROR(CreateDirs(ParentPath(path)));
      if (mkdir(path.c_str(), 0777) == 0) return absl::OkStatus();
    }
    struct stat info;
    const int mkdir_error = errno;
    if (stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) return absl::OkStatus();
    errno = mkdir_error;
    return ErrnoStatus("create directory", path);
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (rename(from.c_str(), to.c_str()) != 0) {
      return ErrnoStatus(absl::StrCat("rename '", from, "' to"), to);
    }
    return absl::OkStatus();
  }

  absl::Status SyncDir(const std::string& path) override {
    FileDescriptor fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd.get() < 0) return ErrnoStatus("open directory", path);
    if (Retry([&] { return fsync(fd.get()); }) != 0) return ErrnoStatus("fsync directory", path);
    return absl::OkStatus();
  }

  absl::Status Remove(const std::string& path) override {
    if (remove(path.c_str()) != 0) return ErrnoStatus("remove", path);
    return absl::OkStatus();
  }

  absl::Status RemoveTree(const std::string& path) override {
    FileDescriptor fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (fd.get() < 0 && errno == ENOENT) return absl::OkStatus();
    if (fd.get() < 0) return ErrnoStatus("open directory", path);
    MEGATRON_RETURN_IF_ERROR(RemoveContents(std::move(fd), path));
    return Remove(path);
  }

  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(path.c_str()), closedir);
    if (directory == nullptr) return ErrnoStatus("list", path);
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* const entry = readdir(directory.get())) {
      const absl::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
      errno = 0;
    }
    if (errno != 0) return ErrnoStatus("list", path);
    std::sort(names.begin(), names.end());
    return names;
  }

  absl::StatusOr<FileInfo> Stat(const std::string& path) override {
    struct stat info;
    if (lstat(path.c_str(), &info) != 0) return ErrnoStatus("stat", path);
    FileInfo result;
    result.size = info.st_size;
    if (S_ISREG(info.st_mode)) result.type = FileType::kRegular;
    if (S_ISDIR(info.st_mode)) result.type = FileType::kDirectory;
    if (S_ISLNK(info.st_mode)) result.type = FileType::kSymbolicLink;
    return result;
  }

  absl::StatusOr<int64_t> FreeBytes(const std::string& path) override {
    struct statvfs info;
    if (Retry([&] { return statvfs(path.c_str(), &info); }) != 0) {
      return ErrnoStatus("statvfs", path);
    }
    const unsigned __int128 bytes = static_cast<unsigned __int128>(info.f_bavail) * info.f_frsize;
    constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
    return bytes > static_cast<unsigned __int128>(kMax) ? kMax : static_cast<int64_t>(bytes);
  }
};

absl::Status WriteDurably(FileSystem& fs, const std::string& path, absl::string_view contents) {
  MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, fs.Create(path));
  MEGATRON_RETURN_IF_ERROR(file->Append(contents));
  MEGATRON_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

}  // namespace

FileSystem& PosixFileSystem() {
  static FileSystem* const fs = new PosixFileSystemImpl;
  return *fs;
}

std::string JoinPath(absl::string_view directory, absl::string_view name) {
  if (directory.empty()) return std::string(name);
  const bool slash = directory.back() == '/';
  return absl::StrCat(directory, slash ? "" : "/", name);
}

std::string ParentPath(absl::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  const size_t slash = path.rfind('/');
  if (slash == absl::string_view::npos) return ".";
  return std::string(path.substr(0, std::max<size_t>(slash, 1)));
}

absl::StatusOr<std::string> ReadFileToString(FileSystem& fs, const std::string& path,
                                             int64_t max_bytes) {
  MEGATRON_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> file, fs.Open(path));
  if (file->size() > max_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("read '", path, "': it has ", file->size(),
                                                     " bytes, at most ", max_bytes,
                                                     " are accepted"));
  }
  std::string contents(static_cast<size_t>(file->size()), '\0');
  MEGATRON_RETURN_IF_ERROR(file->ReadAt(0, absl::MakeSpan(contents)));
  return contents;
}

absl::Status CheckReplaceable(FileSystem& fs, const std::string& path) {
  if (path.empty()) return absl::InvalidArgumentError("a file to write has no name");
  const absl::StatusOr<FileInfo> there = fs.Stat(path);
  if (there.status().code() == absl::StatusCode::kNotFound) return absl::OkStatus();
  MEGATRON_RETURN_IF_ERROR(there.status());
  if (there->type == FileType::kRegular) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("'", path, "' is no regular file, and a new file would take its place"));
}

absl::Status WriteFileAtomically(FileSystem& fs, const std::string& path,
                                 absl::string_view contents) {
  MEGATRON_RETURN_IF_ERROR(CheckReplaceable(fs, path));
  const std::string temporary = absl::StrCat(path, ".tmp");
  absl::Status status = WriteDurably(fs, temporary, contents);
  if (status.ok()) status = fs.Rename(temporary, path);
  if (!status.ok()) {
    fs.Remove(temporary).IgnoreError();  // the first error is the one to report
    return status;
  }
  return fs.SyncDir(ParentPath(path));
}

}  // namespace megatron
