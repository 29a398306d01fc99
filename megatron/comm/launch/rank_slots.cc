#include "megatron/comm/launch/rank_slots.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "megatron/comm/launch/launcher.h"

namespace megatron {
namespace {

constexpr char kDevices[] = "CUDA_VISIBLE_DEVICES";
constexpr int kMostFailures = 2;  // a place that failed so often is left out

}  // namespace

RankSlots::RankSlots(int count) : failures_(count) { Take(count); }

int RankSlots::sound() const {
  return static_cast<int>(
      absl::c_count_if(failures_, [](int failures) { return failures < kMostFailures; }));
}

void RankSlots::Take(int ranks) {
  const int most = ranks > sound() ? *absl::c_max_element(failures_) + 1 : kMostFailures;
  taken_.clear();
  for (size_t i = 0; i < failures_.size() && static_cast<int>(taken_.size()) < ranks; ++i) {
    if (failures_[i] < most) taken_.push_back(static_cast<int>(i));
  }
}

void RankSlots::Fail(const LaunchResult& result) {
  for (const std::string& name : NamesToBlame(result)) {
    absl::string_view number = name;
    size_t rank = 0;
    if (absl::ConsumePrefix(&number, kRankName) && absl::SimpleAtoi(number, &rank) &&
        rank < taken_.size())
      ++failures_[taken_[rank]];
  }
}

std::vector<std::pair<std::string, std::string>> RankSlots::Environment(
    const EnvironmentMap& environment) const {
  if (taken_.back() + 1 == static_cast<int>(taken_.size())) return {};
  const auto named = environment.find(kDevices);
  std::vector<std::string> all;
  if (named != environment.end()) all = absl::StrSplit(named->second, ',');
  std::vector<std::string> devices;
  for (const int slot : taken_) {
    const size_t i = static_cast<size_t>(slot);
    devices.push_back(i < all.size() ? all[i] : absl::StrCat(slot));
  }
  return {{kDevices, absl::StrJoin(devices, ",")}};
}

}  // namespace megatron
