#include "megatron/train/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

namespace megatron {

absl::StatusOr<RunLock> RunLock::Take(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/.lock");
  const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (descriptor < 0) return absl::ErrnoToStatus(errno, absl::StrCat("create '", path, "'"));
  RunLock lock(descriptor);
  if (flock(descriptor, LOCK_EX | LOCK_NB) == 0) return lock;
  if (errno != EWOULDBLOCK) return absl::ErrnoToStatus(errno, absl::StrCat("lock '", path, "'"));
  return absl::FailedPreconditionError(
      absl::StrCat("another process is saving to ", directory,
                   " now; wait for it, or give checkpoint.save a directory of its own"));
}

RunLock& RunLock::operator=(RunLock&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

RunLock::~RunLock() {
  if (descriptor_ >= 0) close(descriptor_);
}

}  // namespace megatron
