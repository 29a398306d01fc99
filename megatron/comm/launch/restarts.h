// Starts a job again when another start may go better.
//
// A job is started again when a rank or host was lost, hangs, or was ended by a signal, unless the
// signal asked for the end. It is not after other codes, such as that of a wrong configuration.
#ifndef MEGATRON_COMM_LAUNCH_RESTARTS_H_
#define MEGATRON_COMM_LAUNCH_RESTARTS_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "megatron/comm/launch/children.h"

namespace megatron {

struct RestartOptions {
  int restarts = 0;  // the most times that the job is started again
  // The wait before a start doubles with each failure in a row. A start that ran for longer than
  // `steady` ends the row.
  absl::Duration first_wait = absl::Seconds(1), longest_wait = absl::Minutes(1);
  absl::Duration steady = absl::Minutes(10);
  // Codes of ranks that missed another one, or hang.
  std::vector<int> codes = {30, 31};
};

// What is known before a start.
struct StartOfJob {
  int restarts = 0;    // starts before this one
  std::string reason;  // why the last one failed; empty at the first start
  // The variables that tell ranks so (launch_env.h); none at the first start.
  std::vector<std::pair<std::string, std::string>> Environment() const;
};

// Returns whether such an end is one after which a job is started again.
bool MayStartAgain(const LaunchResult& result, const RestartOptions& options);

// Calls launch(start) until it ends well, must not be tried again, or has been started again
// `restarts` times, and returns the last result. An error of `launch` ends it at the first start;
// at a later one it is told and counts as a failure, and the result before is returned if it was
// the last. tell(line) gets a line for people about each failure after which the job may start
// again. A signal that asks for the end ends a wait.
//
// Call it from the main thread of a program that has no other thread.
absl::StatusOr<LaunchResult> LaunchWithRestarts(
    const RestartOptions& options,
    absl::FunctionRef<absl::StatusOr<LaunchResult>(const StartOfJob&)> launch,
    absl::FunctionRef<void(absl::string_view)> tell);

}  // namespace megatron

#endif  // MEGATRON_COMM_LAUNCH_RESTARTS_H_
