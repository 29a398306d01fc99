#include "megatron/comm/launch/host_pool.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"

namespace megatron {

namespace {

constexpr int kMostFailures = 2;  // a host's, whose place the job can do without

}  // namespace

HostPool::HostPool(std::vector<HostSlots> hosts, int wanted, int least)
    : hosts_(std::move(hosts)),
      least_(least < 0 ? hosts_.size() : static_cast<size_t>(least)),
      failures_(hosts_.size()) {
  const size_t taken = wanted < 0 ? hosts_.size() : std::min<size_t>(wanted, hosts_.size());
  for (size_t i = 0; i < taken; ++i) {
    places_.push_back(i);
    slots_.push_back(hosts_[i].slots.size());
  }
}

std::vector<std::string> HostPool::LeftOut() const {
  std::vector<std::string> names;
  for (const auto& [host, slots] : given_up_) names.push_back(hosts_[host].host);
  return names;
}

void HostPool::TakeBack(const std::string& name) {
  for (size_t i = 0; i < given_up_.size(); ++i) {
    const auto [host, slots] = given_up_[i];
    if (hosts_[host].host != name) continue;
    given_up_.erase(given_up_.begin() + static_cast<std::ptrdiff_t>(i));
    failures_[host] = kMostFailures - 1;
    places_.push_back(host);
    slots_.push_back(slots);
    return;
  }
}

size_t HostPool::ReplacementOf(size_t place) const {
  size_t best = places_[place];
  for (size_t i = 0; i < hosts_.size(); ++i) {
    const bool is_left_out =
        absl::c_any_of(given_up_, [i](const auto& entry) { return entry.first == i; });
    if (is_left_out || absl::c_linear_search(places_, i) || hosts_[i].slots.size() < slots_[place])
      continue;
    if (failures_[i] < failures_[best]) best = i;
  }
  return best;
}

void HostPool::Fail(const std::vector<std::string>& names) {
  for (size_t i = 0; i < hosts_.size(); ++i) {
    if (absl::c_linear_search(names, hosts_[i].host)) ++failures_[i];
  }
  for (size_t place = 0; place < places_.size(); ++place) {
    const size_t host = places_[place];
    if (!absl::c_linear_search(names, hosts_[host].host)) continue;
    places_[place] = ReplacementOf(place);
    if (places_[place] != host || failures_[host] < kMostFailures || places_.size() <= least_)
      continue;
    given_up_.emplace_back(host, slots_[place]);
    places_.erase(places_.begin() + static_cast<std::ptrdiff_t>(place));
    slots_.erase(slots_.begin() + static_cast<std::ptrdiff_t>(place));
    --place;
  }
}

HostSlots HostPool::Replace(size_t place) {
  ++failures_[places_[place]];
  places_[place] = ReplacementOf(place);
  return Chosen()[place];
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
