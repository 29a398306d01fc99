#include "megatron/train/launch/rank_processes.h"

#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/launch/claim_line.h"
#include "megatron/comm/launch/launcher.h"
#include "megatron/comm/launch/own_program.h"
#include "megatron/comm/launch/rank_slots.h"
#include "megatron/comm/launch/restarts.h"
#include "megatron/train/failure/exit_status.h"

namespace megatron {
namespace {

// Whoever asks a program to end expects the code that says so; any other signal has taken a rank
// away from the others.
ExitCode CodeOf(const LaunchResult& result) {
  const bool asked = result.signal == SIGTERM || result.signal == SIGINT || result.signal == SIGHUP;
  if (result.signal != 0 && !asked) return kExitPeerLost;
  return static_cast<ExitCode>(result.exit_code);
}

// The time for ranks that have met to find that one of them is stopped, and to report what all were
// doing.
constexpr absl::Duration kReportTime = absl::Seconds(8);

// Returns the greatest data_parallel_size up to `most` that fits; all of `data_size` if none does.
int64_t DataSizeFor(int64_t most, int64_t data_size, const RanksOptions& options,
                    absl::FunctionRef<bool(int64_t)> fits) {
  if (most >= data_size) return data_size;
  for (int64_t size = most; size >= options.min_data_size; --size) {
    if (fits(size)) return size;
  }
  return data_size;
}

}  // namespace

int StartRanks(int ranks, int64_t data_size, const std::vector<std::string>& arguments,
               const RanksOptions& ranks_options, absl::FunctionRef<bool(int64_t data_size)> fits) {
  LaunchOptions options;
  options.children.orderly_codes = {kExitSavedOnSignal, kExitTimeLimit};
  options.children.consequence_code = kExitPeerLost;
  options.children.hang_code = kExitHang;
  options.children.idle_limit = ranks_options.stuck_timeout;
  options.children.stop_limit = ranks_options.heartbeat_timeout + kReportTime;
  options.children.goes_on = ranks_options.in_process_recovery;
  options.children.replacements = ranks_options.replacements;
  options.serves_store = ranks_options.in_process_recovery;
  RestartOptions restarts;
  restarts.restarts = ranks_options.restarts;
  restarts.codes = {kExitPeerLost, kExitHang};
  const std::string program = OwnProgram();  // the path before an upgrade, at which the new one is
  const int64_t ranks_of_model = ranks / data_size;
  RankSlots slots(ranks);
  const auto tell = [](absl::string_view line) {
    std::fprintf(stderr, "error: %s\n", std::string(line).c_str());
  };
  options.children.tell = tell;
  options.children.takes_line = PassClaimLineOn;  // for a launcher that has started this process
  const auto launch = [&](const StartOfJob& start) -> absl::StatusOr<LaunchResult> {
    int64_t size = data_size;
    if (ranks_options.min_data_size > 0)
      size = DataSizeFor(slots.sound() / ranks_of_model, data_size, ranks_options, fits);
    options.ranks = static_cast<int>(size * ranks_of_model);
    options.command = {program};
    options.command.insert(options.command.end(), arguments.begin(), arguments.end());
    if (size < data_size) {
      options.command.push_back(absl::StrCat("--set=parallel.data_parallel_size=", size));
      tell(absl::StrCat("going on with parallel.data_parallel_size = ", size, " of ", data_size,
                        ", without the places of ranks that failed twice"));
    }
    slots.Take(options.ranks);
    options.environment = start.Environment();
    for (auto& variable : slots.Environment(ProcessEnvironment()))
      options.environment.push_back(std::move(variable));
    MEGATRON_ASSIGN_OR_RETURN(LaunchResult result, LaunchRanks(options));
    slots.Fail(result);
    return result;
  };
  std::fflush(stdout);
  const absl::StatusOr<LaunchResult> result = LaunchWithRestarts(restarts, launch, tell);
  if (!result.ok()) {
    std::fprintf(stderr, "error: %s\n", std::string(result.status().message()).c_str());
    return kExitPeerLost;
  }
  const ExitCode code = CodeOf(*result);
  if (result->errors_wait) return code;
  if (result->signal != 0 || !result->killed.empty() || !result->hang.empty()) {
    std::fprintf(stderr, "error: %s\n", result->Describe().c_str());
  }
  // A reader that has gone away is no error, as for ranks that are threads.
  if (result->output_error == 0 || result->output_error == EPIPE) return code;
  std::fprintf(stderr, "error: the output could not be written: %s\n",
               std::strerror(result->output_error));
  return code == kExitDone ? kExitIo : code;
}

}  // namespace megatron
