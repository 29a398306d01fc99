// The machines of a job that is started again after failures: it takes some of them, and the others
// are spares.
#ifndef MEGATRON_COMM_LAUNCH_HOST_POOL_H_
#define MEGATRON_COMM_LAUNCH_HOST_POOL_H_

#include <cstddef>
#include <string>
#include <utility>
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

  // Counts a failure of the host of a place while the job goes on, and returns the host that takes
  // it: such a spare, or the same. No place is given up.
  HostSlots Replace(size_t place);

  // Returns the hosts whose places were given up.
  std::vector<std::string> LeftOut() const;
  // Gives such a host its place again, behind the others. If it fails once more, it has failed
  // twice.
  void TakeBack(const std::string& name);

  // Returns the hosts of the next start, in order of their ranks. A place has as many slots on each
  // host: the first ones.
  std::vector<HostSlots> Chosen() const;

 private:
  // Returns the index of the host that takes a place after a failure.
  size_t ReplacementOf(size_t place) const;

  const std::vector<HostSlots> hosts_;
  const size_t least_;          // number of places that the job needs
  std::vector<int> failures_;   // how often each host has failed
  std::vector<size_t> places_;  // indices of the hosts that the job takes
  std::vector<size_t> slots_;   // number of slots of each place
  // Places that were given up: their hosts, and the number of their slots.
  std::vector<std::pair<size_t, size_t>> given_up_;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_LAUNCH_HOST_POOL_H_
