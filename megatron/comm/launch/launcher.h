// Starts the ranks of a job as processes of this machine, and sees them to their end.
//
// Each rank gets the variables that ReadLaunchEnvironment and TcpJob read, with a fresh secret; its
// lines are printed with "[rank N] " before them. SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are
// passed on. When a rank fails, the others have `grace` to end by themselves, as they will when
// they miss it, and are killed then. Ranks, and what they started in turn, do not outlive the
// launch; ranks do not outlive a launcher that is killed either.
//
// Call it from the main thread of a program that has no other thread yet: signals are taken from
// the whole process while it runs.
#ifndef MEGATRON_COMM_LAUNCH_LAUNCHER_H_
#define MEGATRON_COMM_LAUNCH_LAUNCHER_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace megatron {

struct LaunchOptions {
  int ranks = 1;
  std::vector<std::string> command;  // the program, found along $PATH, and its arguments
  // Besides what this process has and what the launcher sets.
  std::vector<std::pair<std::string, std::string>> environment;
  absl::Duration grace = absl::Seconds(4);
  // Codes of ranks that ended as they should, though not at the end of the work: the others are not
  // killed for it.
  std::vector<int> orderly_codes = {10, 11};
  // The code of a rank that ended because another one did: not the cause, if there is another.
  int consequence_code = 30;
  // Where lines go.
  int output = 1;
  int errors = 2;
};

struct LaunchResult {
  // 0 if all ranks ended with 0; else the code of the rank that failed first, consequences aside,
  // or an orderly code. 128 + the signal for a rank that a signal ended.
  int exit_code = 0;
  int rank = -1;   // that the code comes from; -1 if 0
  int signal = 0;  // that ended it
  int killed = 0;  // ranks that had to be killed after the grace
  // "rank 2 was ended by signal 9 (Killed)", or empty.
  std::string Describe() const;
};

// An error is one of starting the ranks: then none runs.
absl::StatusOr<LaunchResult> LaunchRanks(const LaunchOptions& options);

}  // namespace megatron

#endif  // MEGATRON_COMM_LAUNCH_LAUNCHER_H_
