// The exit code of an error travels with its absl::Status, so that it is chosen where the error is
// understood and read where the program ends.
#ifndef MEGATRON_TRAIN_FAILURE_EXIT_STATUS_H_
#define MEGATRON_TRAIN_FAILURE_EXIT_STATUS_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "megatron/train/failure/exit_code.h"

namespace megatron {

// The error with this code, in place of any that it had. OK stays OK.
absl::Status WithExitCode(absl::Status status, ExitCode code);
template <typename T>
absl::StatusOr<T> WithExitCode(absl::StatusOr<T> value, ExitCode code) {
  if (value.ok()) return value;
  return WithExitCode(value.status(), code);
}

// The same for what a rank does together with others: an error that says that others have gone or
// do not come (kUnavailable, kAborted; kDeadlineExceeded) means kExitPeerLost or kExitHang,
// whatever this rank was doing. Others mean `own`.
absl::Status WithExitCodeOfRank(const absl::Status& status, ExitCode own);

// The code that the error carries, or else that of its kind:
//   OK 0, kInvalidArgument 20, kDataLoss 21, kUnavailable 30, kDeadlineExceeded 31, kCancelled 130,
//   and 23, which is files, for all others.
ExitCode ExitCodeOf(const absl::Status& status);

// Returns whether the error carries a code.
bool HasExitCode(const absl::Status& status);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_FAILURE_EXIT_STATUS_H_
