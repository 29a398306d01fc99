#include "megatron/comm/communicator.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_join.h"
#include "glog/logging.h"

namespace megatron {

void CheckPartition(const std::vector<std::vector<int>>& partition, int size) {
  std::vector<int> ranks;
  for (const std::vector<int>& group : partition) {
    ranks.insert(ranks.end(), group.begin(), group.end());
  }
  std::sort(ranks.begin(), ranks.end());
  std::vector<int> all(size);
  std::iota(all.begin(), all.end(), 0);
  CHECK(ranks == all) << "a partition of " << size << " ranks names " << absl::StrJoin(ranks, ", ");
}

}  // namespace megatron
