#include "megatron/comm/rank_order.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "megatron/base/quoted.h"

namespace megatron {

absl::StatusOr<RankOrder> RankOrder::Parse(absl::string_view text) {
  const std::array<Axis, kNumAxes> all = RankOrder().axes_;
  RankOrder order;
  size_t count = 0;
  std::array<bool, kNumAxes> seen = {};
  for (const absl::string_view name : absl::StrSplit(text, '-')) {
    const auto axis = absl::c_find_if(all, [&](Axis each) { return name == Name(each); });
    if (axis == all.end() || seen[axis - all.begin()]) {
      count = 0;
      break;
    }
    seen[axis - all.begin()] = true;
    order.axes_[count++] = *axis;
  }
  if (count == all.size()) return order;
  return absl::InvalidArgumentError(
      absl::StrCat("an order of ranks names tp, cp, ep, dp and pp, each once, with - between them, "
                   "as \"",
                   RankOrder().ToString(), "\", and not ", Quoted(text)));
}

std::vector<RankOrder> RankOrder::All() {
  std::vector<RankOrder> orders;
  RankOrder order;
  do {
    orders.push_back(order);
  } while (std::next_permutation(order.axes_.begin(), order.axes_.end()));
  return orders;
}

std::string RankOrder::ToString() const {
  return absl::StrJoin(axes_, "-",
                       [](std::string* text, Axis axis) { absl::StrAppend(text, Name(axis)); });
}

}  // namespace megatron
