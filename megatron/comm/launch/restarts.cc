#include "megatron/comm/launch/restarts.h"

#include <signal.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "megatron/base/steady_now.h"
#include "megatron/comm/launch/launch_env.h"

namespace megatron {
namespace {

constexpr int kSignalCode = 128;  // plus the signal: the convention of shells

// Waits, and returns the signal that asked for the end meanwhile, or 0. Signals for ranks (SIGUSR1,
// SIGUSR2) have no effect, since there are none.
int WaitUnlessAsked(absl::Duration wait) {
  sigset_t mask, old_mask;
  sigemptyset(&mask);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) sigaddset(&mask, signal);
  if (IgnoresHangups()) sigdelset(&mask, SIGHUP);
  PCHECK(sigprocmask(SIG_BLOCK, &mask, &old_mask) == 0);
  int asked = 0;
  const absl::Time until = SteadyNow() + wait;
  for (absl::Duration left = wait; asked == 0 && left > absl::ZeroDuration();
       left = until - SteadyNow()) {
    const timespec time = absl::ToTimespec(left);
    const int signal = sigtimedwait(&mask, nullptr, &time);
    if (signal > 0 && IsRequestToEnd(signal)) asked = signal;
  }
  sigprocmask(SIG_SETMASK, &old_mask, nullptr);
  return asked;
}

LaunchResult AskedWhileWaiting(int signal) {
  LaunchResult result;
  result.asked = signal;
  result.signal = signal;
  result.exit_code = kSignalCode + signal;
  return result;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> StartOfJob::Environment() const {
  if (restarts == 0) return {};
  return {{kRestartCountVariable, absl::StrCat(restarts)}, {kRestartReasonVariable, reason}};
}

bool MayStartAgain(const LaunchResult& result, const RestartOptions& options) {
  if (result.exit_code == 0 || result.asked != 0) return false;
  if (absl::c_linear_search(options.codes, result.exit_code)) return true;
  return result.exit_code > kSignalCode && !IsRequestToEnd(result.exit_code - kSignalCode);
}

absl::StatusOr<LaunchResult> LaunchWithRestarts(
    const RestartOptions& options,
    absl::FunctionRef<absl::StatusOr<LaunchResult>(const StartOfJob&)> launch,
    absl::FunctionRef<void(absl::string_view)> tell) {
  StartOfJob start;
  LaunchResult last;
  absl::Duration wait = options.first_wait;
  while (true) {
    const absl::Time begin = SteadyNow();
    absl::StatusOr<LaunchResult> result = launch(start);
    const bool is_first = start.restarts == 0, is_last = start.restarts == options.restarts;
    if (!result.ok()) {
      if (is_first) return result;
      const std::string error = absl::StrCat("cannot start again: ", result.status().message());
      if (is_last) {
        tell(error);
        return last;
      }
      // What was missing, such as a port or descriptors, may be there later.
      ++start.restarts;
      tell(absl::StrCat(error, "; trying again in ", absl::FormatDuration(wait), " (",
                        start.restarts, " of ", options.restarts, ")"));
    } else {
      if (!MayStartAgain(*result, options)) return result;
      if (is_last) {
        if (options.restarts > 0)
          tell(absl::StrCat("not started again: it was ", options.restarts, " times"));
        return result;
      }
      if (SteadyNow() - begin > options.steady) wait = options.first_wait;
      start.reason = result->Describe();
      ++start.restarts;
      tell(absl::StrCat(start.reason, "; starting again in ", absl::FormatDuration(wait), " (",
                        start.restarts, " of ", options.restarts, ")"));
      last = *std::move(result);
    }
    if (const int signal = WaitUnlessAsked(wait)) return AskedWhileWaiting(signal);
    wait = std::min(2 * wait, options.longest_wait);
  }
}

}  // namespace megatron
