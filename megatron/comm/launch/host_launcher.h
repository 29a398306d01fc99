// Starts a job on several machines over ssh: on each an agent, this same program, which starts the
// ranks there. A host called localhost is this machine and takes no ssh.
//
// An agent gets its part of the job, the secret with it, through ssh's standard input, never on a
// command line; signals follow there, and when that input ends, because the launcher has been
// killed or the link cut, the agent ends its ranks.
#ifndef MEGATRON_COMM_LAUNCH_HOST_LAUNCHER_H_
#define MEGATRON_COMM_LAUNCH_HOST_LAUNCHER_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/comm/launch/hostfile.h"
#include "megatron/comm/launch/launcher.h"

namespace megatron {

struct HostLaunchOptions {
  std::vector<HostSlots> hosts;                                   // rank 0 is on the first
  std::vector<std::string> command;                               // command of a rank
  std::vector<std::string> ssh = {"ssh", "-o", "BatchMode=yes"};  // followed by host and command
  // The command that makes this program an agent on the machines: its path there and arguments.
  std::vector<std::string> agent;
  std::string master_addr;  // empty: the first host, or, with children.goes_on, this machine
  int master_port = 29500;
  std::string directory;  // working directory of the ranks; the same on all machines
  // Variables of the ranks, besides what each machine has itself.
  std::vector<std::pair<std::string, std::string>> environment;
  // How long this process waits for the ranks of a machine, and for the machines, and what it does
  // about those that it loses. With children.goes_on the others go on when a rank is lost, or a
  // machine with all of its ranks. This process serves the job's store then; `master_addr` is its
  // machine, and a free port is taken where `master_port` is 0.
  ChildrenOptions children;
  // Returns the machine that takes the place of a lost one, with as many slots; null: the same. A
  // place is an index of `hosts`.
  std::function<HostSlots(size_t place)> next_host;
};

// The result names hosts as "host worker-1".
absl::StatusOr<LaunchResult> LaunchOnHosts(const HostLaunchOptions& options);

// Returns the hosts that such a result blames (NamesToBlame): the one whose rank failed first, or
// that could not be reached.
std::vector<std::string> HostsToBlame(const LaunchResult& result);

// An agent that fails writes this to its errors, and behind it why.
constexpr char kAgentReason[] = "launch: ";

// Runs an agent: reads its part of the job from a descriptor, starts the ranks, and waits for their
// end.
absl::StatusOr<LaunchResult> RunAgent(int input);

// One agent's part, as it travels.
struct AgentJob {
  LaunchOptions launch;  // its `job` is set
  std::string directory;

  std::string Encode() const;
  static absl::StatusOr<AgentJob> Decode(absl::string_view bytes);
};

}  // namespace megatron

#endif  // MEGATRON_COMM_LAUNCH_HOST_LAUNCHER_H_
