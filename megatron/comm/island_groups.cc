#include "megatron/comm/island_groups.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/communicator.h"

namespace megatron {
namespace {

// Returns the number of the instance of `rank` in its group over `axes`.
int InstanceOf(const RankGrid& grid, int rank, AxisSet axes) {
  return grid.IndexAmongPeers(rank, axes) / (grid.size(axes) / grid.optimizer_instances());
}

// Cuts `size` neighbours into `runs` runs of equal length.
std::vector<std::vector<int>> Runs(int size, int runs) {
  std::vector<std::vector<int>> partition(runs);
  for (int rank = 0; rank < size; ++rank) partition[rank / (size / runs)].push_back(rank);
  return partition;
}

// Puts the ranks of the world together that have the same number of an island.
std::vector<std::vector<int>> RanksByIsland(const ProcessGroups& groups, int islands) {
  const int size = groups.world.size();
  std::vector<int32_t> island_of(size);
  int32_t mine = groups.data_context_replicas.rank();
  groups.world.AllGather(Tensor(&mine, DType::kInt32, {1}),
                         Tensor(island_of.data(), DType::kInt32, {size}), Stream::Inline());
  std::vector<std::vector<int>> partition(islands);
  for (int rank = 0; rank < size; ++rank) partition[island_of[rank]].push_back(rank);
  return partition;
}

absl::StatusOr<ProcessGroup> Split(const ProcessGroup& group,
                                   const std::vector<std::vector<int>>& partition,
                                   const char* name) {
  MEGATRON_ASSIGN_OR_RETURN(std::shared_ptr<Communicator> communicator,
                            group.communicator()->Split(partition, name),
                            _ << "while creating the " << name << " groups");
  return communicator->size() > 1 ? ProcessGroup(std::move(communicator)) : ProcessGroup();
}

}  // namespace

absl::Status CheckIslands(const RankGrid& dense, const RankGrid& expert) {
  CHECK_EQ(dense.world_size(), expert.world_size());
  const AxisSet copies = {Axis::kData, Axis::kContext};
  const auto check = [&](int rank, const std::vector<int>& peers) -> absl::Status {
    const int island = InstanceOf(dense, rank, copies);
    for (const int peer : peers) {
      const int other = InstanceOf(dense, peer, copies);
      if (other == island) continue;
      return absl::InvalidArgumentError(absl::StrCat("ranks ", rank, " and ", peer,
                                                     " work on the same samples, and would be in ",
                                                     "islands ", island, " and ", other));
    }
    return absl::OkStatus();
  };
  for (int rank = 0; rank < dense.world_size(); ++rank) {
    MEGATRON_RETURN_IF_ERROR(
        check(rank, dense.PeersOf(rank, {Axis::kTensor, Axis::kContext, Axis::kPipeline})));
    MEGATRON_RETURN_IF_ERROR(
        check(rank, expert.PeersOf(rank, {Axis::kTensor, Axis::kExpert, Axis::kPipeline})));
    if (InstanceOf(dense, rank, copies) != InstanceOf(expert, rank, copies)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "rank ", rank, " would be in island ", InstanceOf(dense, rank, copies),
          " by its samples and in ", InstanceOf(expert, rank, copies), " by its experts"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ProcessGroups> GroupsOfIsland(const ProcessGroups& groups, bool planning) {
  const int islands = groups.data_context_replicas.size();
  ProcessGroups island = groups;
  island.data_context = groups.data_context_shards;
  island.expert_data = groups.expert_data_shards;
  island.data_context_replicas = island.expert_data_replicas = ProcessGroup();
  if (islands == 1) return island;
  const int data = groups.data.size();
  CHECK_EQ(data % islands, 0);
  if (planning) {
    const auto part = [&](const ProcessGroup& group, const char* name) {
      const int size = group.size() / islands;
      return size == 1 ? ProcessGroup()
                       : ProcessGroup::ForPlanning(size, group.rank() % size, name);
    };
    island.world = part(groups.world, "island");
    island.data = part(groups.data, "dp-island");
    return island;
  }
  MEGATRON_ASSIGN_OR_RETURN(island.world,
                            Split(groups.world, RanksByIsland(groups, islands), "island"));
  MEGATRON_ASSIGN_OR_RETURN(island.data, Split(groups.data, Runs(data, islands), "dp-island"));
  return island;
}

int CountIslandGroups(const ProcessGroups& groups) {
  const int islands = groups.data_context_replicas.size();
  if (islands == 1) return 0;
  return (groups.world.size() > islands ? 1 : 0) + (groups.data.size() > islands ? 1 : 0);
}

}  // namespace megatron
