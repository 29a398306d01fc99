// Groups of ranks, cut into runs of neighbours as optimizer instances and hosts are (rank_grid.h).
#ifndef MEGATRON_COMM_RANK_RUNS_H_
#define MEGATRON_COMM_RANK_RUNS_H_

#include <vector>

namespace megatron {

// Cuts each group into `count` runs of neighbours, of equal size.
std::vector<std::vector<int>> RunsOf(const std::vector<std::vector<int>>& groups, int count);

// Puts the ranks together that have the same place in the `count` runs of a group.
std::vector<std::vector<int>> AcrossRuns(const std::vector<std::vector<int>>& groups, int count);

}  // namespace megatron

#endif  // MEGATRON_COMM_RANK_RUNS_H_
