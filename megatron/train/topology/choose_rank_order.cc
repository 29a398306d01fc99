#include "megatron/train/topology/choose_rank_order.h"

#include <algorithm>
#include <map>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "megatron/base/quantity.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/rank_runs.h"
#include "megatron/plan/collective_time.h"

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

// Returns the groups of ranks that exchange.
std::vector<std::vector<int>> GroupsOf(const RankGrid& grid, const AxisTraffic& row) {
  const std::vector<std::vector<int>> groups = grid.Partition(row.axes);
  if (row.runs == 1) return groups;
  return row.is_across ? AcrossRuns(groups, row.runs) : RunsOf(groups, row.runs);
}

int64_t SizeOf(const RankGrid& grid, const AxisTraffic& row) {
  return row.is_across ? row.runs : grid.size(row.axes) / row.runs;
}

// How the groups over some axes lie on the machine; the one that crosses most counts.
struct Lie {
  Crossing crossing = Crossing::kDomain;
  int64_t together = 0;  // ranks of the group that reach each other without a network card
};

Lie LieOf(const MachineShape& shape, const RankGrid& grid, const AxisTraffic& row) {
  const int64_t node = shape.nodes.front().ranks, reach = shape.reach();
  Lie lie;
  lie.together = SizeOf(grid, row);
  for (const std::vector<int>& group : GroupsOf(grid, row)) {
    int64_t together = 0;
    for (size_t i = 0; i < group.size(); ++i) {
      // The first speaks with all of a collective's group; messages go to the neighbour.
      const int64_t from = row.is_message && i > 0 ? group[i - 1] : group[0], to = group[i];
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

double SecondsOf(const MachineShape& shape, const RankGrid& grid, const AxisTraffic& row, Lie lie) {
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
    return row.calls * MessageSeconds(hardware, program, crosses ? 1 : 0, row.bytes);
  }
  const int64_t ranks = SizeOf(grid, row);
  // As many neighbours of the group share a domain as its ranks do.
  hardware.set_domain(static_cast<int32_t>(crosses ? lie.together : ranks));
  return row.calls *
         CollectiveSeconds(hardware, program, TrafficCall::kAllGather, {ranks, 1}, row.bytes);
}

std::vector<OrderCost::Part> PartsOf(const MachineShape& shape,
                                     const std::vector<AxisTraffic>& traffic, const RankGrid& dense,
                                     const RankGrid& expert) {
  std::vector<OrderCost::Part> parts;
  for (const AxisTraffic& row : traffic) {
    const RankGrid& grid = row.is_of_experts ? expert : dense;
    if (SizeOf(grid, row) == 1) continue;
    const Lie lie = LieOf(shape, grid, row);
    if (parts.empty() || absl::string_view(parts.back().name) != row.name)
      parts.push_back({row.name, Crossing::kDomain, 0});
    OrderCost::Part& part = parts.back();
    part.crossing = std::max(part.crossing, lie.crossing);
    part.seconds += SecondsOf(shape, grid, row, lie);
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
  std::map<std::vector<Axis>, std::vector<OrderCost::Part>> known;
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
    if (is_new) cost->second = PartsOf(shape, traffic, dense, *expert);
    costs.push_back({order, cost->second});
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
