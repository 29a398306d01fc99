// The groups that one rank belongs to, from the grids.
#ifndef MEGATRON_COMM_PROCESS_GROUPS_H_
#define MEGATRON_COMM_PROCESS_GROUPS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "megatron/comm/communicator.h"
#include "megatron/comm/process_group.h"
#include "megatron/comm/rank_grid.h"

namespace megatron {

// A group with one rank is a default ProcessGroup. Ranks within a group ascend by world rank.
struct ProcessGroups {
  ProcessGroup world;
  ProcessGroup tensor;
  // The tensor-parallel ranks that hold one block of a weight that is cut into fewer blocks than
  // there are ranks. Which these are depends on the model: MakeGroups leaves it to whoever knows.
  ProcessGroup tensor_replicas;
  ProcessGroup context;
  ProcessGroup data;
  ProcessGroup pipeline;
  ProcessGroup data_context;    // over which the gradients of dense weights are summed
  ProcessGroup tensor_context;  // which hold one sequence
  ProcessGroup model;           // tensor and pipeline: which hold one copy of the model
  // The first and the last pipeline stage: the two that hold a tied embedding. A default group on
  // the stages between.
  ProcessGroup tied_embedding;
  ProcessGroup expert;
  ProcessGroup expert_tensor;
  ProcessGroup expert_model;  // expert and expert_tensor: which share out one set of experts
  ProcessGroup expert_data;   // over which the gradients of experts are summed
};

// Collective over `world`. Both grids have its size; a world of size 1 may be null.
absl::StatusOr<ProcessGroups> MakeGroups(const RankGrid& dense, const RankGrid& expert,
                                         const std::shared_ptr<Communicator>& world);

// How many of them have several ranks.
int CountGroups(const ProcessGroups& groups);

// The same groups for planning what `rank` would do; no other rank is needed.
ProcessGroups GroupsForPlanning(const RankGrid& dense, const RankGrid& expert, int rank);

}  // namespace megatron

#endif  // MEGATRON_COMM_PROCESS_GROUPS_H_
