#include "megatron/comm/hierarchical/host_ranks.h"

#include <map>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace megatron {

absl::StatusOr<HostRanks> RanksByHost(const std::vector<int>& hosts, const std::string& group) {
  HostRanks ranks;
  std::vector<int> numbers;  // the numbers of the hosts in `ranks`
  std::map<int, size_t> index;
  for (int rank = 0; rank < static_cast<int>(hosts.size()); ++rank) {
    const auto [found, is_new] = index.emplace(hosts[rank], ranks.size());
    if (is_new) {
      ranks.emplace_back();
      numbers.push_back(hosts[rank]);
    }
    ranks[found->second].push_back(rank);
  }
  for (size_t i = 1; i < ranks.size(); ++i) {
    if (ranks[i].size() == ranks[0].size()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("group ", group, " has ", ranks[0].size(), " of its ", hosts.size(),
                     " ranks on host ", numbers[0], " and ", ranks[i].size(), " on host ",
                     numbers[i], "; hierarchical collectives need as many on each host"));
  }
  return ranks;
}

bool HasTwoLevels(const HostRanks& ranks) { return ranks.size() > 1 && ranks[0].size() > 1; }

}  // namespace megatron
