// The order of ranks for a machine's shape: that in which a step's exchanges take the shortest
// time, if none runs beside computation.
#ifndef MEGATRON_TRAIN_TOPOLOGY_CHOOSE_RANK_ORDER_H_
#define MEGATRON_TRAIN_TOPOLOGY_CHOOSE_RANK_ORDER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/comm/rank_grid.h"
#include "megatron/train/topology/axis_traffic.h"
#include "megatron/train/topology/topology_file.h"

namespace megatron {

// The farthest links that a group of an axis crosses.
enum class Crossing { kDomain, kNode, kNetwork };

struct OrderCost {
  RankOrder order;
  struct Part {
    const char* name = "";
    Crossing crossing = Crossing::kDomain;
    double seconds = 0;
  };
  std::vector<Part> parts;  // one for each name among the traffic

  double seconds() const;
};

// Returns the cost of every order whose pipelines agree, and whose hosts of hierarchical calls and
// of deduplicated dispatch are as a run needs them, as RankOrder::All() lists them: the default
// first. Expects sizes that multiply to the ranks, and that a run may have in the default order.
// Returns kFailedPrecondition where the shape has fewer ranks, or nodes that differ.
absl::StatusOr<std::vector<OrderCost>> CostsOfOrders(const MachineShape& shape,
                                                     const std::vector<AxisTraffic>& traffic,
                                                     const ParallelSizes& sizes, int ranks);

struct RankOrderChoice {
  RankOrder order;
  // What is taken, what it costs, and what another order would cost, for people.
  std::string reason;
};

// Takes the cheapest order, the default where it is as cheap. If the order `is_written`, it stays,
// and the reason compares it with the cheapest.
absl::StatusOr<RankOrderChoice> ChooseRankOrder(const MachineShape& shape,
                                                const std::vector<AxisTraffic>& traffic,
                                                const ParallelSizes& sizes, int ranks,
                                                bool is_written);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TOPOLOGY_CHOOSE_RANK_ORDER_H_
