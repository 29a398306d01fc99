// RunLock keeps two runs from saving to one directory at once. It is a lock on a file there, which
// the system releases however a process ends.
//
// One process of a run takes the lock and then shares it with the others, so that the next run
// waits for the last process of this one. A launcher that may start the run again claims the
// directory besides, by the lock of another file: between two starts, when the run has no process,
// no other run gets the directory.
#ifndef MEGATRON_TRAIN_FAILURE_RUN_LOCK_H_
#define MEGATRON_TRAIN_FAILURE_RUN_LOCK_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace megatron {

class RunLock {
 public:
  // Returns kFailedPrecondition if for longer than `patience` another run holds the lock, or
  // another launcher than `claimant`, that of this run, has claimed the directory. A run that was
  // killed takes a moment to release it.
  static absl::StatusOr<RunLock> Take(const std::string& directory, const std::string& claimant,
                                      absl::Duration patience);
  // Shares the lock: from now on the other processes of the run may Join.
  absl::Status Share();
  static absl::StatusOr<RunLock> Join(const std::string& directory);

  // Claims the directory for the runs that a launcher starts. `claimant` says which one that is, in
  // a line that no other launcher has (comm/launch/claim_line.h). Returns kFailedPrecondition if
  // another one has claimed it for longer than `patience`.
  static absl::StatusOr<RunLock> Claim(const std::string& directory, const std::string& claimant,
                                       absl::Duration patience);
  // Returns whose claim there is; an empty text: nobody's.
  static absl::StatusOr<std::string> Claimant(const std::string& directory);
  // Returns whether there has been a claim on the directory, of which a file stays.
  static bool WasClaimed(const std::string& directory);

  // Returns whether the lock's file still has its name. If it was removed, or another file has
  // taken its place, this lock keeps nobody away any more.
  bool HasItsName() const;

  RunLock() = default;
  RunLock(RunLock&& other) noexcept { *this = std::move(other); }
  RunLock& operator=(RunLock&& other) noexcept;
  ~RunLock();

 private:
  RunLock(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}

  static absl::StatusOr<RunLock> Open(const std::string& path, int flags);
  static absl::Status CheckClaim(const std::string& directory, const std::string& claimant);
  // Returns whether the lock was to be had. `operation` is an operation of flock(2).
  absl::StatusOr<bool> Lock(int operation) const;
  absl::Status LockForRun(int operation, const std::string& directory) const;

  std::string path_;
  int descriptor_ = -1;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_FAILURE_RUN_LOCK_H_
