#include "megatron/train/trainer/copy_ring.h"

#include <algorithm>
#include <numeric>
#include <set>

namespace megatron {

CopyRing::CopyRing(const std::vector<int64_t>& hosts, int copies) {
  const int size = static_cast<int>(hosts.size());
  std::vector<int> first(hosts.size());  // each rank's host, named by its first rank
  for (int rank = 0; rank < size; ++rank)
    first[rank] =
        static_cast<int>(std::find(hosts.begin(), hosts.end(), hosts[rank]) - hosts.begin());
  ring_.resize(hosts.size());
  std::iota(ring_.begin(), ring_.end(), 0);
  std::stable_sort(ring_.begin(), ring_.end(), [&](int a, int b) { return first[a] < first[b]; });
  places_.resize(hosts.size());
  for (int place = 0; place < size; ++place) places_[ring_[place]] = place;

  std::vector<std::set<int>> has(hosts.size());  // the hosts that have each rank's shard
  for (int rank = 0; rank < size; ++rank) has[rank].insert(first[rank]);
  for (int copy = 0; copy < std::min(copies, size - 1); ++copy) {
    int best = 0, most = -1;
    for (int shift = 1; shift < size; ++shift) {
      if (std::find(shifts_.begin(), shifts_.end(), shift) != shifts_.end()) continue;
      int reached = 0;
      for (int rank = 0; rank < size; ++rank)
        reached += 1 - has[rank].count(first[At(rank, shift)]);
      if (reached <= most) continue;
      best = shift;
      most = reached;
    }
    for (int rank = 0; rank < size; ++rank) has[rank].insert(first[At(rank, best)]);
    shifts_.push_back(best);
  }
}

}  // namespace megatron
