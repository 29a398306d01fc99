// The process groups that one rank belongs to, made from the rank grids.
#ifndef MEGATRON_COMM_PROCESS_GROUPS_H_
#define MEGATRON_COMM_PROCESS_GROUPS_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "megatron/comm/process_group.h"
#include "megatron/comm/rank_grid.h"

namespace megatron {

class Communicator;

// A group with one rank is a default ProcessGroup. Ranks within a group are in the order of
// RankGrid::PeersOf.
struct ProcessGroups {
  ProcessGroup world;
  ProcessGroup tensor;
  // The tensor-parallel ranks that hold the same block of a weight, for weights that are cut into
  // fewer blocks than there are ranks. Where tensor-parallel ranks form squares (rank_grid.h), they
  // are the columns of all levels in this rank's place; else they depend on the model, and
  // MakeGroups leaves them out.
  ProcessGroup tensor_replicas;
  // Default groups unless tensor-parallel ranks form squares: those of this rank's row and of its
  // column, both on its level; its level, column by column; and the ranks in its place of every
  // level.
  ProcessGroup tensor_row, tensor_column, tensor_square, tensor_depth;
  // With squares, the ranks that hold the other samples: data-parallel ranks, and with each the
  // ranks of tensor_replicas. In a cube, data_inner_rows are those that hold the other samples
  // between a layer's two products (layers/tensor_grid.h): data-parallel ranks, and with each the
  // rows of all levels in this rank's place.
  ProcessGroup data_rows, data_inner_rows;
  ProcessGroup context;
  ProcessGroup data;
  ProcessGroup pipeline;
  ProcessGroup data_context;  // the gradients of dense weights are summed over it
  // data_context, cut into optimizer instances (rank_grid.h): the ranks of this rank's instance,
  // which shard states among them, and the ranks in the same place of every instance, which have
  // the same shards. With one instance these are data_context itself and this rank alone.
  ProcessGroup data_context_shards, data_context_replicas;
  // data_context, cut into hosts (rank_grid.h): the ranks of this rank's host, and the ranks in the
  // same place of every host. Default groups where there is one host.
  ProcessGroup data_context_host, data_context_across_hosts;
  // The pipeline stages that hold a tied embedding (RankGrid::embedding_stages), the first among
  // them. A default group on other stages.
  ProcessGroup tied_embedding;
  ProcessGroup expert;
  ProcessGroup expert_tensor;
  ProcessGroup expert_model;  // expert and expert_tensor: the ranks that share one set of experts
  // With deduplicated dispatch (rank_grid.h): the ranks of expert_model on this rank's host, and
  // the ranks in the same place of every host. Else default groups.
  ProcessGroup expert_model_host, expert_model_across_hosts;
  ProcessGroup expert_data;  // the gradients of experts are summed over it
  ProcessGroup expert_data_shards, expert_data_replicas;  // the same two parts of expert_data
  ProcessGroup expert_data_host, expert_data_across_hosts;

  // Returns the tensor-parallel ranks that hold the same block of a weight that is cut over tensor-
  // parallel ranks, `count` of which hold each block.
  const ProcessGroup& TensorReplicas(int count) const {
    return count == tensor_depth.size() ? tensor_depth : tensor_replicas;
  }
};

// Makes the groups of this rank. Collective over `world`. Both grids have its size, the same number
// of optimizer instances and of hosts, and as many ranks per host; a world of size 1 may be null.
absl::StatusOr<ProcessGroups> MakeGroups(const RankGrid& dense, const RankGrid& expert,
                                         const std::shared_ptr<Communicator>& world);

// Checks that the ranks which share experts are on several hosts, the same number of neighbours on
// each, and that the parts of an expert are on one host: what deduplicated dispatch needs. The
// error names the group.
absl::Status CheckDeduplicatedDispatch(const RankGrid& expert);

// Where the grids have ranks per host, the collectives of data_context, expert_data and their parts
// are hierarchical in the groups that have several ranks on each of several hosts. Checks that
// there is such a group, and that none has more ranks on one host than on another; the error names
// it.
absl::Status CheckHierarchicalGroups(const RankGrid& dense, const RankGrid& expert);
// Returns the groups of `rank` whose collectives are hierarchical.
std::vector<ProcessGroup ProcessGroups::*> HierarchicalGroups(const RankGrid& dense,
                                                              const RankGrid& expert, int rank);

// Returns how many of the groups have several ranks: each has a communicator.
int CountGroups(const ProcessGroups& groups);

// Makes the same groups for planning what `rank` would do; no other rank is needed.
ProcessGroups GroupsForPlanning(const RankGrid& dense, const RankGrid& expert, int rank);

}  // namespace megatron

#endif  // MEGATRON_COMM_PROCESS_GROUPS_H_
