#include "megatron/train/topology/choose_rank_order.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/base/quantity.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/hierarchical/host_ranks.h"
#include "megatron/comm/process_groups.h"
#include "megatron/comm/rank_runs.h"
#include "megatron/plan/collective_time.h"
#include "megatron/plan/expert_dispatch.h"
#include "megatron/plan/traffic_row.h"

namespace megatron {
namespace {

constexpr const char* kPlaces[] = {"inside domains", "inside nodes", "between nodes"};

// Orders whose costs differ by less are alike: the default is not left for a rounding error.
constexpr double kAlike = 1e-9;

absl::Status CheckEven(const MachineShape& shape, int ranks) {
  const MachineShape::Node& first = shape.nodes.front();
  if (shape.ranks() < ranks) {
    return absl::FailedPreconditionError(
        absl::StrCat("has ", shape.ranks(), " ranks, and the run ", ranks));
  }
  for (const MachineShape::Node& node : shape.nodes) {
    if (node.ranks == first.ranks && node.rails == first.rails) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("has nodes of ", first.ranks, " and of ", node.ranks, " ranks (", first.rails,
                     " and ", node.rails, " rails): orders are compared on nodes that are alike"));
  }
  if (first.ranks % shape.domain != 0 && shape.domain % first.ranks != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("has domains of ", shape.domain, " ranks on nodes of ", first.ranks,
                     ": orders are compared where one divides the other"));
  }
  return absl::OkStatus();
}

using Groups = std::vector<std::vector<int>>;

// Returns the ranks of the groups that share a host, and those in the same place of all of a
// group's hosts.
std::pair<Groups, Groups> ByHost(const Groups& groups, int ranks_per_host) {
  Groups within, across;
  for (const std::vector<int>& group : groups) {
    std::vector<int> hosts;
    for (const int rank : group) hosts.push_back(rank / ranks_per_host);
    const auto by_host = RanksByHost(hosts, "");
    CHECK(by_host.ok()) << by_host.status();  // CheckHierarchicalGroups() has found none
    const size_t first = across.size();
    across.resize(first + by_host->front().size());
    for (const std::vector<int>& of_host : *by_host) {
      std::vector<int>& ranks = within.emplace_back();
      for (size_t place = 0; place < of_host.size(); ++place) {
        ranks.push_back(group[of_host[place]]);
        across[first + place].push_back(ranks.back());
      }
    }
  }
  return {std::move(within), std::move(across)};
}

// Returns the groups of ranks that exchange.
Groups GroupsOf(const RankGrid& grid, const AxisTraffic& row) {
  const Groups groups = grid.Partition(row.axes);
  if (row.hosts == AxisTraffic::Hosts::kWithin) return ByHost(groups, grid.ranks_per_host()).first;
  if (row.hosts == AxisTraffic::Hosts::kAcross) return ByHost(groups, grid.ranks_per_host()).second;
  if (row.runs == 1) return groups;
  return row.is_across ? AcrossRuns(groups, row.runs) : RunsOf(groups, row.runs);
}

// How groups lie on the machine; the one that crosses most counts.
struct Lie {
  int64_t ranks = 0;  // a group has
  Crossing crossing = Crossing::kDomain;
  int64_t together = 0;  // ranks of the group that reach each other without a network card
};

Lie LieOf(const MachineShape& shape, const Groups& groups, bool are_messages) {
  const int64_t node = shape.nodes.front().ranks, reach = shape.reach();
  Lie lie;
  lie.ranks = lie.together = int64_t(groups.front().size());
  for (const std::vector<int>& group : groups) {
    int64_t together = 0;
    for (size_t i = 0; i < group.size(); ++i) {
      // The first speaks with all of a collective's group; messages go to the neighbour.
      const int64_t from = are_messages && i > 0 ? group[i - 1] : group[0], to = group[i];
      if (group[0] / reach == to / reach) ++together;
      const Crossing crossing = from / shape.domain == to / shape.domain ? Crossing::kDomain
                                : from / node == to / node               ? Crossing::kNode
                                                                         : Crossing::kNetwork;
      lie.crossing = std::max(lie.crossing, crossing);
    }
    lie.together = std::min(lie.together, together);
  }
  return lie;
}

// Returns the seconds of one call.
double CallSeconds(const MachineShape& shape, const Lie& lie, const AxisTraffic& row,
                   double bytes) {
  Implementation program;
  program.set_link_efficiency(1);  // the file's speeds are those that are reached
  program.set_network_efficiency(1);
  Hardware hardware;
  const MachineShape::Node& node = shape.nodes.front();
  const bool by_domain = lie.crossing == Crossing::kDomain || shape.reach() == shape.domain;
  hardware.set_link_gb_per_s(by_domain && shape.domain_gb_per_s > 0 ? shape.domain_gb_per_s
                             : shape.node_gb_per_s > 0              ? shape.node_gb_per_s
                                                                    : shape.rail_gb_per_s);
  hardware.set_network_gb_per_s(shape.rail_gb_per_s * static_cast<double>(node.rails) /
                                static_cast<double>(node.ranks));
  const bool crosses = lie.crossing == Crossing::kNetwork;
  if (row.is_message) {
    hardware.set_domain(1);
    return MessageSeconds(hardware, program, crosses ? 1 : 0, bytes);
  }
  // As many neighbours of the group share a domain as its ranks do.
  hardware.set_domain(static_cast<int32_t>(crosses ? lie.together : lie.ranks));
  return CollectiveSeconds(hardware, program,
                           row.is_exchange ? TrafficCall::kAllToAll : TrafficCall::kAllGather,
                           {lie.ranks, 1}, bytes);
}

struct Cost {
  Crossing crossing = Crossing::kDomain;
  double seconds = 0;
};

Cost CostOf(const MachineShape& shape, const RankGrid& grid, const AxisTraffic& row) {
  const Groups groups = GroupsOf(grid, row);
  const Lie lie = LieOf(shape, groups, row.is_message);
  if (lie.ranks == 1) return {};
  if (row.hosts == AxisTraffic::Hosts::kLevels && grid.ranks_per_host() > 0) {
    const auto [within, between] = ByHost(groups, grid.ranks_per_host());
    const Lie near = LieOf(shape, within, false), far = LieOf(shape, between, false);
    if (near.ranks > 1 && far.ranks > 1) {
      const auto pass = [&](const Lie& level) {
        return [&, level](double part) { return CallSeconds(shape, level, row, part); };
      };
      return {lie.crossing, row.calls * LevelSeconds(row.bytes, near.ranks, pass(near), pass(far))};
    }
  }
  double bytes = row.bytes;
  if (row.hosts == AxisTraffic::Hosts::kAcross)
    bytes *= ExpectedHosts(double(lie.ranks), row.experts, row.choices);
  return {lie.crossing, row.calls * CallSeconds(shape, lie, row, bytes)};
}

std::vector<OrderCost::Part> PartsOf(const MachineShape& shape,
                                     const std::vector<AxisTraffic>& traffic, const RankGrid& dense,
                                     const RankGrid& expert) {
  std::vector<OrderCost::Part> parts;
  for (const AxisTraffic& row : traffic) {
    const RankGrid& grid = row.is_of_experts ? expert : dense;
    if (grid.size(row.axes) == 1) continue;
    const Cost cost = CostOf(shape, grid, row);
    if (cost.seconds == 0) continue;
    if (parts.empty() || absl::string_view(parts.back().name) != row.name)
      parts.push_back({row.name, Crossing::kDomain, 0});
    OrderCost::Part& part = parts.back();
    part.crossing = std::max(part.crossing, cost.crossing);
    part.seconds += cost.seconds;
  }
  return parts;
}

std::string FormatParts(const OrderCost& cost) {
  return absl::StrJoin(cost.parts, ", ", [](std::string* text, const OrderCost::Part& part) {
    absl::StrAppendFormat(text, "%s %.3g ms %s", part.name, part.seconds * 1e3,
                          kPlaces[static_cast<int>(part.crossing)]);
  });
}

std::string Describe(const MachineShape& shape) {
  return absl::StrCat(FormatQuantity(static_cast<int64_t>(shape.nodes.size()), "node"), " of ",
                      FormatQuantity(shape.nodes.front().ranks, "rank"));
}

}  // namespace

double OrderCost::seconds() const {
  double sum = 0;
  for (const Part& part : parts) sum += part.seconds;
  return sum;
}

absl::StatusOr<std::vector<OrderCost>> CostsOfOrders(const MachineShape& shape,
                                                     const std::vector<AxisTraffic>& traffic,
                                                     const ParallelSizes& sizes, int ranks) {
  MEGATRON_RETURN_IF_ERROR(CheckEven(shape, ranks));
  std::vector<OrderCost> costs;
  // Axes of one rank may stand anywhere.
  std::map<std::vector<Axis>, std::optional<std::vector<OrderCost::Part>>> known;
  ParallelSizes ordered = sizes;
  for (const RankOrder& order : RankOrder::All()) {
    ordered.order = order;
    MEGATRON_ASSIGN_OR_RETURN(const RankGrid dense, RankGrid::Create(ordered, ranks));
    const absl::StatusOr<RankGrid> expert = RankGrid::CreateExpert(ordered, ranks);
    if (!expert.ok()) continue;  // Its pipelines differ.
    std::vector<Axis> several;
    for (const Axis axis : order.axes()) {
      if (dense.size(axis) > 1 || expert->size(axis) > 1) several.push_back(axis);
    }
    const auto [cost, is_new] = known.try_emplace(several);
    if (is_new && CheckHierarchicalGroups(dense, *expert).ok())
      cost->second = PartsOf(shape, traffic, dense, *expert);
    if (cost->second.has_value()) costs.push_back({order, *cost->second});
  }
  return costs;
}

absl::StatusOr<RankOrderChoice> ChooseRankOrder(const MachineShape& shape,
                                                const std::vector<AxisTraffic>& traffic,
                                                const ParallelSizes& sizes, int ranks,
                                                bool is_written) {
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<OrderCost> costs,
                            CostsOfOrders(shape, traffic, sizes, ranks));
  size_t best = 0, mine = 0;
  for (size_t i = 0; i < costs.size(); ++i) {
    if (costs[i].seconds() < costs[best].seconds() * (1 - kAlike)) best = i;
    if (costs[i].order == sizes.order) mine = i;
  }
  const OrderCost& taken = costs[is_written ? mine : best];
  const OrderCost& other = costs[is_written ? best : 0];
  RankOrderChoice choice;
  choice.order = taken.order;
  choice.reason = absl::StrFormat(
      "%s, %s: a step's exchanges take %.3g ms on %s (%s)", taken.order.ToString(),
      is_written ? "as parallel.rank_order says" : "chosen by parallel.topology_file",
      taken.seconds() * 1e3, Describe(shape), FormatParts(taken));
  if (&other == &taken) {
    absl::StrAppend(&choice.reason, "; no order takes less");
  } else {
    absl::StrAppendFormat(&choice.reason, "; %s would take %.3g ms (%s)", other.order.ToString(),
                          other.seconds() * 1e3, FormatParts(other));
  }
  return choice;
}

}  // namespace megatron
