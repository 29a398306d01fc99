// Chooses the machines of a job: DeepSpeed's hostfile, and the options that select from it.
//
//   # comment
//   worker-1 slots=4
//   worker-2 slots=4
#ifndef MEGATRON_COMM_LAUNCH_HOSTFILE_H_
#define MEGATRON_COMM_LAUNCH_HOSTFILE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megatron {

constexpr int kMaxHosts = 100000;
constexpr int kMaxSlots = 1024;

struct HostSlots {
  std::string host;        // the name that ssh uses
  std::vector<int> slots;  // ascending; one rank each
};

// Returns the hosts in the order of the file. Errors name `path` and the line.
absl::StatusOr<std::vector<HostSlots>> ParseHostfile(absl::string_view text,
                                                     absl::string_view path);

struct HostFilter {
  // "worker-1@worker-2:0,2": these hosts, or these slots of them. At most one of the two is set.
  std::string include;
  std::string exclude;
  int num_nodes = -1;  // the first ones; -1: all
  int num_gpus = -1;   // the first slots of each host; -1: all
};

// Returns the chosen hosts in the order of `hosts`; none is left without slots. Errors say which
// option names what does not exist.
absl::StatusOr<std::vector<HostSlots>> FilterHosts(std::vector<HostSlots> hosts,
                                                   const HostFilter& filter);

}  // namespace megatron

#endif  // MEGATRON_COMM_LAUNCH_HOSTFILE_H_
