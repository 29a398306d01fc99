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

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/comm/launch/children.h"
#include "megatron/comm/socket/job_secret.h"
#include "megatron/comm/socket/socket.h"
#include "megatron/comm/store/tcp_store.h"

namespace megatron {

// The place of these ranks in a job, if others run on other machines.
struct JobPlace {
  int first_rank = 0;
  int world_size = 1;
  std::string master_addr;
  int master_port = 0;
  JobSecret secret;
};

inline constexpr char kRankName[] = "rank ";  // begins the name of a child that is a rank

struct LaunchOptions {
  int ranks = 1;                     // ranks on this machine
  std::vector<std::string> command;  // the program, found along $PATH, and its arguments
  // Variables of the ranks, besides what this process has and what the launcher sets.
  std::vector<std::pair<std::string, std::string>> environment;
  std::optional<JobPlace> job;  // unset: these ranks are all
  // Whether the launcher serves the job's store, so that the others can go on when rank 0 is lost:
  // this process where these ranks are all, else the one that has made the job. If not, rank 0
  // does.
  bool serves_store = false;
  ChildrenOptions children;
};

// Serves a job's store from a thread of this process, which takes no signal of it: those are for
// whoever sees the ranks to their end.
absl::StatusOr<std::unique_ptr<TcpStoreServer>> ServeStore(Socket listener,
                                                           const JobSecret& secret);

// An error is one of starting the ranks: then none runs.
absl::StatusOr<LaunchResult> LaunchRanks(const LaunchOptions& options);

}  // namespace megatron

#endif  // MEGATRON_COMM_LAUNCH_LAUNCHER_H_
