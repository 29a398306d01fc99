#include "megatron/comm/launch/host_pool.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"

namespace megatron {

HostPool::HostPool(std::vector<HostSlots> hosts, int wanted)
    : hosts_(std::move(hosts)), failures_(hosts_.size()) {
  const size_t taken = wanted < 0 ? hosts_.size() : std::min<size_t>(wanted, hosts_.size());
  for (size_t i = 0; i < taken; ++i) {
    places_.push_back(i);
    slots_.push_back(hosts_[i].slots.size());
  }
}

size_t HostPool::ReplacementOf(size_t place) const {
  size_t best = places_[place];
  for (size_t i = 0; i < hosts_.size(); ++i) {
    if (absl::c_linear_search(places_, i) || hosts_[i].slots.size() < slots_[place]) continue;
    if (failures_[i] < failures_[best]) best = i;
  }
  return best;
}

void HostPool::Fail(const std::vector<std::string>& names) {
  for (size_t i = 0; i < hosts_.size(); ++i) {
    if (absl::c_linear_search(names, hosts_[i].host)) ++failures_[i];
  }
  for (size_t place = 0; place < places_.size(); ++place) {
    if (absl::c_linear_search(names, hosts_[places_[place]].host)) {
      places_[place] = ReplacementOf(place);
    }
  }
}

std::vector<HostSlots> HostPool::Chosen() const {
  std::vector<HostSlots> chosen;
  for (size_t place = 0; place < places_.size(); ++place) {
    HostSlots host = hosts_[places_[place]];
    host.slots.resize(slots_[place]);
    chosen.push_back(std::move(host));
  }
  return chosen;
}

}  // namespace megatron
