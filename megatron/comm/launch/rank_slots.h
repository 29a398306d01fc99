// The places of a job's ranks on one machine, in a job that is started again after failures: those
// whose rank failed twice are left out, if the job can go on with fewer.
#ifndef MEGATRON_COMM_LAUNCH_RANK_SLOTS_H_
#define MEGATRON_COMM_LAUNCH_RANK_SLOTS_H_

#include <string>
#include <utility>
#include <vector>

#include "megatron/comm/launch/children.h"
#include "megatron/comm/launch/launch_env.h"

namespace megatron {

class RankSlots {
 public:
  explicit RankSlots(int count);

  // Number of places whose rank has failed less than twice.
  int sound() const;

  // The next start has so many ranks, on the first sound places; where there are fewer, on the
  // first places of all.
  void Take(int ranks);

  // Counts a failure of the place whose rank failed first in the start before; of none, where ranks
  // only missed each other.
  void Fail(const LaunchResult& result);

  // The variable that gives ranks the graphics cards of their places, of those that `environment`
  // names or of all; none where they have the first ones.
  std::vector<std::pair<std::string, std::string>> Environment(
      const EnvironmentMap& environment) const;

 private:
  std::vector<int> failures_;
  std::vector<int> taken_;  // ascending; rank r is at taken_[r]
};

}  // namespace megatron

#endif  // MEGATRON_COMM_LAUNCH_RANK_SLOTS_H_
