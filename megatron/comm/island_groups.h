// The process groups of an island.
//
// Islands train apart and seldom communicate (optim/outer_optimizer.h). They are the optimizer
// instances of the run (rank_grid.h): an island holds every rank of the model once, and cuts the
// samples of a global batch with the other islands.
#ifndef MEGATRON_COMM_ISLAND_GROUPS_H_
#define MEGATRON_COMM_ISLAND_GROUPS_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "megatron/comm/process_groups.h"
#include "megatron/comm/rank_grid.h"

namespace megatron {

// Checks that the ranks that share work on a sample are in one island: those with parts of the same
// weights, of the same tokens and with other experts. The message names two ranks for which it is
// not so. The grids have the same number of ranks and of instances.
absl::Status CheckIslands(const RankGrid& dense, const RankGrid& expert);

// Returns the groups of this rank within its island, whose ranks are `world` there. It is a run of
// its own with one instance: every group has no ranks of other islands. Collective over
// groups.world. `planning` says that the groups are those of GroupsForPlanning.
absl::StatusOr<ProcessGroups> GroupsOfIsland(const ProcessGroups& groups, bool planning);

// Returns how many of the groups of an island are communicators that the run does not have.
int CountIslandGroups(const ProcessGroups& groups);

}  // namespace megatron

#endif  // MEGATRON_COMM_ISLAND_GROUPS_H_
