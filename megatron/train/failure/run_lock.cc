#include "megatron/train/failure/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/steady_now.h"

namespace megatron {

absl::StatusOr<RunLock> RunLock::Open(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/.lock");
  const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (descriptor < 0) return absl::ErrnoToStatus(errno, absl::StrCat("create '", path, "'"));
  return RunLock(directory, descriptor);
}

absl::Status RunLock::Lock(int operation) const {
  if (flock(descriptor_, operation | LOCK_NB) == 0) return absl::OkStatus();
  if (errno != EWOULDBLOCK)
    return absl::ErrnoToStatus(errno, absl::StrCat("lock '", directory_, "/.lock'"));
  return absl::FailedPreconditionError(
      absl::StrCat("another process is saving to ", directory_,
                   " now; wait for it, or give checkpoint.save a directory of its own"));
}

absl::StatusOr<RunLock> RunLock::Take(const std::string& directory, absl::Duration patience) {
  MEGATRON_ASSIGN_OR_RETURN(RunLock lock, Open(directory));
  const absl::Time until = SteadyNow() + patience;
  absl::Status status = lock.Lock(LOCK_EX);
  while (status.code() == absl::StatusCode::kFailedPrecondition && SteadyNow() < until) {
    absl::SleepFor(absl::Milliseconds(20));
    status = lock.Lock(LOCK_EX);
  }
  MEGATRON_RETURN_IF_ERROR(status);
  return lock;
}

absl::StatusOr<RunLock> RunLock::Join(const std::string& directory) {
  MEGATRON_ASSIGN_OR_RETURN(RunLock lock, Open(directory));
  MEGATRON_RETURN_IF_ERROR(lock.Share());
  return lock;
}

absl::Status RunLock::Share() { return Lock(LOCK_SH); }

RunLock& RunLock::operator=(RunLock&& other) noexcept {
  std::swap(directory_, other.directory_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

RunLock::~RunLock() {
  if (descriptor_ >= 0) close(descriptor_);
}

}  // namespace megatron
