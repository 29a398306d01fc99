#include "megatron/train/failure/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "megatron/base/file_identity.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/steady_now.h"

namespace megatron {
namespace {

constexpr size_t kLongestClaimant = 1024;

std::string LockPath(const std::string& directory) { return absl::StrCat(directory, "/.lock"); }
std::string ClaimPath(const std::string& directory) {
  return absl::StrCat(directory, "/.launcher");
}

absl::Status ClaimedError(const std::string& directory, const std::string& claimant) {
  return absl::FailedPreconditionError(
      absl::StrCat("another run has ", directory, ": that of ", claimant,
                   ", which may start it again; wait for its end, end it there, or give "
                   "checkpoint.save a directory of its own"));
}

// Tries until there is another result than kFailedPrecondition, or for so long.
absl::Status TryFor(absl::Duration patience, absl::FunctionRef<absl::Status()> try_once) {
  const absl::Time until = SteadyNow() + patience;
  absl::Status status = try_once();
  while (status.code() == absl::StatusCode::kFailedPrecondition && SteadyNow() < until) {
    absl::SleepFor(absl::Milliseconds(20));
    status = try_once();
  }
  return status;
}

}  // namespace

absl::StatusOr<RunLock> RunLock::Open(const std::string& path, int flags) {
  // O_NONBLOCK: a FIFO of this name, which has no writer, is not waited for.
  const int descriptor = open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
  if (descriptor >= 0) return RunLock(path, descriptor);
  const absl::Status error = absl::ErrnoToStatus(errno, absl::StrCat("open '", path, "'"));
  // As where the path leads through a file. kFailedPrecondition is kept for other runs.
  if (absl::IsFailedPrecondition(error)) return absl::InvalidArgumentError(error.message());
  return error;
}

absl::StatusOr<bool> RunLock::Lock(int operation) const {
  if (flock(descriptor_, operation | LOCK_NB) == 0) return true;
  if (errno == EWOULDBLOCK) return false;
  return absl::ErrnoToStatus(errno, absl::StrCat("lock '", path_, "'"));
}

absl::Status RunLock::LockForRun(int operation, const std::string& directory) const {
  MEGATRON_ASSIGN_OR_RETURN(const bool is_ours, Lock(operation));
  if (is_ours) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("another process is saving to ", directory,
                   " now; wait for it, or give checkpoint.save a directory of its own"));
}

absl::Status RunLock::CheckClaim(const std::string& directory, const std::string& claimant) {
  MEGATRON_ASSIGN_OR_RETURN(const std::string other, Claimant(directory));
  if (other.empty() || other == claimant) return absl::OkStatus();
  return ClaimedError(directory, other);
}

absl::StatusOr<RunLock> RunLock::Take(const std::string& directory, const std::string& claimant,
                                      absl::Duration patience) {
  MEGATRON_ASSIGN_OR_RETURN(RunLock lock, Open(LockPath(directory), O_RDWR | O_CREAT));
  MEGATRON_RETURN_IF_ERROR(TryFor(patience, [&]() -> absl::Status {
    // The lock of a directory that is claimed is not even tried: its run may want it just now.
    MEGATRON_RETURN_IF_ERROR(CheckClaim(directory, claimant));
    MEGATRON_RETURN_IF_ERROR(lock.LockForRun(LOCK_EX, directory));
    // A launcher whose run has just ended may have claimed it between these two.
    const absl::Status claim = CheckClaim(directory, claimant);
    if (!claim.ok()) lock.Lock(LOCK_UN).IgnoreError();
    return claim;
  }));
  return lock;
}

absl::StatusOr<RunLock> RunLock::Join(const std::string& directory) {
  MEGATRON_ASSIGN_OR_RETURN(RunLock lock, Open(LockPath(directory), O_RDWR | O_CREAT));
  MEGATRON_RETURN_IF_ERROR(lock.LockForRun(LOCK_SH, directory));
  return lock;
}

absl::Status RunLock::Share() {
  MEGATRON_ASSIGN_OR_RETURN(const bool is_ours, Lock(LOCK_SH));
  if (is_ours) return absl::OkStatus();
  // The system gives up the one kind of lock before it gives the other.
  return absl::FailedPreconditionError(
      absl::StrCat("another process has taken '", path_, "' just now; start this one again"));
}

absl::StatusOr<RunLock> RunLock::Claim(const std::string& directory, const std::string& claimant,
                                       absl::Duration patience) {
  MEGATRON_ASSIGN_OR_RETURN(RunLock claim, Open(ClaimPath(directory), O_RDWR | O_CREAT));
  MEGATRON_RETURN_IF_ERROR(TryFor(patience, [&]() -> absl::Status {
    MEGATRON_ASSIGN_OR_RETURN(const bool is_ours, claim.Lock(LOCK_EX));
    if (is_ours) return absl::OkStatus();
    MEGATRON_ASSIGN_OR_RETURN(const std::string other, Claimant(directory));
    return ClaimedError(directory, other.empty() ? "another launcher" : other);
  }));
  const std::string text = absl::StrCat(claimant, "\n");
  if (ftruncate(claim.descriptor_, 0) != 0 ||
      pwrite(claim.descriptor_, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()))
    return absl::ErrnoToStatus(errno, absl::StrCat("write '", claim.path_, "'"));
  return claim;
}

absl::StatusOr<std::string> RunLock::Claimant(const std::string& directory) {
  const absl::StatusOr<RunLock> claim = Open(ClaimPath(directory), O_RDONLY);
  if (absl::IsNotFound(claim.status())) return "";
  MEGATRON_RETURN_IF_ERROR(claim.status());
  MEGATRON_ASSIGN_OR_RETURN(const bool is_free, claim->Lock(LOCK_SH));
  if (is_free) return "";
  std::string text(kLongestClaimant, '\0');
  const ssize_t size = pread(claim->descriptor_, &text[0], text.size(), 0);
  if (size < 0) return absl::ErrnoToStatus(errno, absl::StrCat("read '", claim->path_, "'"));
  text.resize(static_cast<size_t>(size));
  text = text.substr(0, text.find('\n'));
  return text.empty() ? "another launcher" : text;  // which has not written yet
}

bool RunLock::WasClaimed(const std::string& directory) {
  return access(ClaimPath(directory).c_str(), F_OK) == 0;
}

bool RunLock::HasItsName() const { return IdentityOf(path_) == IdentityOf(descriptor_); }

RunLock& RunLock::operator=(RunLock&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

RunLock::~RunLock() {
  if (descriptor_ >= 0) close(descriptor_);
}

}  // namespace megatron
