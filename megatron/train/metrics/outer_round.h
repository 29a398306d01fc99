// The line for people about a round of the outer server (islands/island_link.h).
#ifndef MEGATRON_TRAIN_METRICS_OUTER_ROUND_H_
#define MEGATRON_TRAIN_METRICS_OUTER_ROUND_H_

#include <string>

#include "megatron/islands/island_link.h"

namespace megatron {

// Returns "outer round 3: islands 0, 1; 1.2 MiB sent, 1.2 MiB received, 0.40 s", in a federated run
// with noise also "; epsilon 1.01 at delta 1e-05" behind the islands.
std::string DescribeRound(const IslandLink::Round& round);
// The same of what came of joining.
std::string DescribeJoining(const IslandLink::Round& round);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_METRICS_OUTER_ROUND_H_
