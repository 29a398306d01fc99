// The machines of a job that is started again after failures: it takes some of them, and the others
// are spares.
#ifndef MEGATRON_COMM_LAUNCH_HOST_POOL_H_
#define MEGATRON_COMM_LAUNCH_HOST_POOL_H_

#include <cstddef>
#include <string>
#include <vector>

#include "megatron/comm/launch/hostfile.h"

namespace megatron {

class HostPool {
 public:
  // The job takes the first `wanted` hosts; all, if it is -1. It goes on with fewer, where too few
  // are sound, down to `least`; with all, if that is -1.
  HostPool(std::vector<HostSlots> hosts, int wanted, int least = -1);

  // Counts a failure of these hosts. Each gives its place to the spare with enough slots that has
  // failed least, if that has failed less often than itself, and is a spare then. Where there is no
  // such spare, the place of a host that failed twice is given up, unless the job needs it.
  void Fail(const std::vector<std::string>& names);

  // Returns whether places were given up.
  bool has_shrunk() const { return places_.size() < wanted_; }

  // Returns the hosts of the next start, in order of their ranks. A place has as many slots on each
  // host: the first ones.
  std::vector<HostSlots> Chosen() const;

 private:
  // Returns the index of the host that takes a place after a failure.
  size_t ReplacementOf(size_t place) const;

  const std::vector<HostSlots> hosts_;
  size_t wanted_, least_;       // number of places at the start, and at least
  std::vector<int> failures_;   // how often each host has failed
  std::vector<size_t> places_;  // indices of the hosts that the job takes
  std::vector<size_t> slots_;   // number of slots of each place
};

}  // namespace megatron

#endif  // MEGATRON_COMM_LAUNCH_HOST_POOL_H_
