// Which ranks of a group share a host: the two levels of hierarchical collectives.
#ifndef MEGATRON_COMM_HIERARCHICAL_HOST_RANKS_H_
#define MEGATRON_COMM_HIERARCHICAL_HOST_RANKS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace megatron {

// The ranks of each host, ascending; hosts are in the order of their first rank. A rank's place in
// its host's list is its *local rank*.
using HostRanks = std::vector<std::vector<int>>;

// `hosts` has the host of each rank of a group. The error of hosts with different numbers of the
// group's ranks names the group and two such hosts.
absl::StatusOr<HostRanks> RanksByHost(const std::vector<int>& hosts, const std::string& group);

// Returns whether collectives of the group have two levels: there are several hosts, with several
// ranks each.
bool HasTwoLevels(const HostRanks& ranks);

}  // namespace megatron

#endif  // MEGATRON_COMM_HIERARCHICAL_HOST_RANKS_H_
