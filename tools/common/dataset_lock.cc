#include "tools/common/dataset_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/file_system.h"

namespace megatron {
namespace {

// Returns whether the path still names the open file: its last owner may have removed it meanwhile.
bool IsStillNamed(const std::string& path, int fd) {
  struct stat named, open_file;
  return stat(path.c_str(), &named) == 0 && fstat(fd, &open_file) == 0 &&
         named.st_dev == open_file.st_dev && named.st_ino == open_file.st_ino;
}

bool IsFolder(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

}  // namespace

absl::StatusOr<DatasetLock> DatasetLock::Take(const std::string& prefix) {
  const std::string path = prefix + ".lock";
  while (true) {
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    const int open_error = errno;
    if (fd < 0 && open_error == ENOENT && !IsFolder(ParentPath(prefix))) {
      return absl::FailedPreconditionError(
          absl::StrCat("there is no folder '", ParentPath(prefix), "' to write '", prefix, "' to"));
    }
    if (fd < 0) {
      // Any other reason, such as a name that is too long, means that the file can't be written. So
      // does ENOENT in a folder that is there, as in /proc.
      const absl::Status status = absl::ErrnoToStatus(
          open_error,
          absl::StrCat("write in '", ParentPath(prefix), "', '", path, "' to begin with"));
      return absl::FailedPreconditionError(status.message());
    }
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
      if (IsStillNamed(path, fd)) return DatasetLock(path, fd);
      close(fd);
      continue;
    }
    const int error = errno;
    // Some network file systems have no locks; there the dataset is not locked.
    if (error == ENOLCK || error == EOPNOTSUPP) return DatasetLock(path, fd);
    close(fd);
    if (error == EWOULDBLOCK) {
      return absl::FailedPreconditionError(
          absl::StrCat("another process is writing '", prefix, "' (it holds '", path, "')"));
    }
    return absl::ErrnoToStatus(error, absl::StrCat("lock '", path, "'"));
  }
}

DatasetLock::DatasetLock(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

DatasetLock::DatasetLock(DatasetLock&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

DatasetLock::~DatasetLock() {
  if (fd_ < 0) return;
  unlink(path_.c_str());  // while it is still ours
  close(fd_);
}

}  // namespace megatron
