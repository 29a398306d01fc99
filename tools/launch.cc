// Starts the ranks of a job on this machine.
//
//   launch --ranks=4 -- program --its_flags
//
// Each rank finds in its environment who it is and where to meet the others; lines are printed with
// "[rank N]" before them. Ends with the code of the rank that failed first.

#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/launch/launcher.h"
#include "tools/tool_main.h"

ABSL_FLAG(int, ranks, 2, "Processes to start.");
ABSL_FLAG(absl::Duration, grace, absl::Seconds(4),
          "When a rank has failed, the time in which the others may end by themselves.");

int main(int argc, char** argv) {
  int code = 0;
  const auto launch = [&](const std::vector<std::string>& command) -> absl::Status {
    if (absl::GetFlag(FLAGS_ranks) < 1 || command.empty()) {
      return absl::InvalidArgumentError("usage: launch --ranks=N -- PROGRAM ARGUMENTS...");
    }
    megatron::LaunchOptions options;
    options.ranks = absl::GetFlag(FLAGS_ranks);
    options.grace = absl::GetFlag(FLAGS_grace);
    options.command = command;
    MEGATRON_ASSIGN_OR_RETURN(const megatron::LaunchResult result, megatron::LaunchRanks(options));
    code = result.exit_code;
    if (code != 0) std::fprintf(stderr, "launch: %s\n", result.Describe().c_str());
    return absl::OkStatus();
  };
  const int failed =
      megatron::RunTool(argc, argv, "Starts the ranks of a job on this machine.", launch);
  return failed != 0 ? failed : code;
}
