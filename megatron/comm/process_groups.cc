#include "megatron/comm/process_groups.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/algorithm_communicator.h"
#include "megatron/comm/communicator.h"
#include "megatron/comm/hierarchical/hierarchical_communicator.h"
#include "megatron/comm/hierarchical/host_ranks.h"
#include "megatron/comm/rank_runs.h"

namespace megatron {
namespace {

using Partition = std::vector<std::vector<int>>;

// Puts the ranks of each pipeline together that hold the embedding, and every other rank alone.
Partition TiedEmbeddingPartition(const RankGrid& grid) {
  Partition partition;
  for (const std::vector<int>& pipeline : grid.Partition({Axis::kPipeline})) {
    std::vector<int> holders;
    for (size_t stage = 0; stage < pipeline.size(); ++stage) {
      if (absl::c_linear_search(grid.embedding_stages(), static_cast<int>(stage))) {
        holders.push_back(pipeline[stage]);
      } else {
        partition.push_back({pipeline[stage]});
      }
    }
    partition.push_back(std::move(holders));
  }
  return partition;
}

// Puts the ranks together whose samples make up a batch, where those of each of `shares`, which are
// tensor-parallel ranks, have the samples of a data-parallel rank.
Partition DataRows(const RankGrid& grid, const Partition& shares) {
  Partition partition;
  for (const std::vector<int>& share : shares) {
    if (grid.Coordinate(share[0], Axis::kData) > 0) continue;
    std::vector<int>& ranks = partition.emplace_back();
    const std::vector<int> copies = grid.PeersOf(share[0], {Axis::kData});
    for (size_t copy = 0; copy < copies.size(); ++copy) {
      for (int rank : share) ranks.push_back(grid.PeersOf(rank, {Axis::kData})[copy]);
    }
  }
  return partition;
}

// Puts the ranks of a cube together that are in the same row, column by column.
Partition RowsOfAllLevels(const Partition& tensor, int side) {
  Partition partition;
  for (const std::vector<int>& ranks : tensor) {
    for (int row = 0; row < side; ++row) {
      std::vector<int>& of_row = partition.emplace_back();
      for (size_t place = 0; place < ranks.size(); ++place) {
        if (static_cast<int>(place) / side % side == row) of_row.push_back(ranks[place]);
      }
    }
  }
  return partition;
}

struct NamedPartition {
  ProcessGroup ProcessGroups::*group;
  const char* name;
  Partition partition;
};

// Returns whether gradients and weights go over the group: what hierarchical collectives are for.
bool IsForDataParallel(const NamedPartition& named) {
  using Groups = ProcessGroups;
  constexpr ProcessGroup ProcessGroups::*kGroups[] = {
      &Groups::data_context, &Groups::data_context_shards, &Groups::data_context_replicas,
      &Groups::expert_data,  &Groups::expert_data_shards,  &Groups::expert_data_replicas};
  return absl::c_linear_search(kGroups, named.group);
}

std::vector<int> HostsOf(const std::vector<int>& ranks, int ranks_per_host) {
  std::vector<int> hosts;
  for (int rank : ranks) hosts.push_back(rank / ranks_per_host);
  return hosts;
}

// Cuts each group by the hosts of its ranks, which have as many ranks of it each.
Partition ByHost(const Partition& groups, int ranks_per_host) {
  Partition partition;
  for (const std::vector<int>& ranks : groups) {
    const auto by_host = RanksByHost(HostsOf(ranks, ranks_per_host), "");
    CHECK(by_host.ok()) << by_host.status();
    for (const std::vector<int>& of_host : *by_host) {
      std::vector<int>& members = partition.emplace_back();
      for (int index : of_host) members.push_back(ranks[index]);
    }
  }
  return partition;
}

// Returns all groups in the order of their creation, which is the same on every rank.
std::vector<NamedPartition> Partitions(const RankGrid& dense, const RankGrid& expert) {
  using Groups = ProcessGroups;
  const Partition data_context = dense.Partition({Axis::kData, Axis::kContext});
  const Partition expert_data = expert.Partition({Axis::kData, Axis::kContext});
  std::vector<NamedPartition> partitions = {
      {&Groups::tensor, "tp", dense.Partition({Axis::kTensor})},
      {&Groups::context, "cp", dense.Partition({Axis::kContext})},
      {&Groups::data, "dp", dense.Partition({Axis::kData})},
      {&Groups::pipeline, "pp", dense.Partition({Axis::kPipeline})},
      {&Groups::data_context, "dp-cp", data_context},
      {&Groups::tied_embedding, "embedding", TiedEmbeddingPartition(dense)},
      {&Groups::expert, "ep", expert.Partition({Axis::kExpert})},
      {&Groups::expert_tensor, "etp", expert.Partition({Axis::kTensor})},
      {&Groups::expert_model, "etp-ep", expert.Partition({Axis::kTensor, Axis::kExpert})},
      {&Groups::expert_data, "edp", expert_data},
  };
  if (const int side = dense.tensor_side(); side > 1) {
    const Partition tensor = dense.Partition({Axis::kTensor}), columns = RunsOf(tensor, side);
    const bool has_levels = dense.tensor_depth() > 1;
    partitions.push_back(
        {&Groups::tensor_replicas, has_levels ? "tp-replicas" : "tp-column", columns});
    partitions.push_back({&Groups::tensor_row, "tp-row", AcrossRuns(tensor, side)});
    partitions.push_back({&Groups::data_rows, "dp-rows", DataRows(dense, columns)});
    if (has_levels) {
      partitions.push_back({&Groups::tensor_column, "tp-column", AcrossRuns(columns, side)});
      partitions.push_back({&Groups::tensor_square, "tp-square", AcrossRuns(tensor, side * side)});
      partitions.push_back({&Groups::tensor_depth, "tp-depth", RunsOf(tensor, side * side)});
    }
    if (dense.tensor_cube()) {
      partitions.push_back({&Groups::data_inner_rows, "dp-inner-rows",
                            DataRows(dense, RowsOfAllLevels(tensor, side))});
    }
  }
  if (const int instances = dense.optimizer_instances(); instances > 1) {
    partitions.push_back(
        {&Groups::data_context_shards, "dp-cp-shards", RunsOf(data_context, instances)});
    partitions.push_back(
        {&Groups::data_context_replicas, "dp-cp-replicas", AcrossRuns(data_context, instances)});
    partitions.push_back(
        {&Groups::expert_data_shards, "edp-shards", RunsOf(expert_data, instances)});
    partitions.push_back(
        {&Groups::expert_data_replicas, "edp-replicas", AcrossRuns(expert_data, instances)});
  }
  if (const int hosts = dense.hosts(); hosts > 1) {
    partitions.push_back({&Groups::data_context_host, "dp-cp-host", RunsOf(data_context, hosts)});
    partitions.push_back({&Groups::data_context_across_hosts, "dp-cp-across-hosts",
                          AcrossRuns(data_context, hosts)});
    partitions.push_back({&Groups::expert_data_host, "edp-host", RunsOf(expert_data, hosts)});
    partitions.push_back(
        {&Groups::expert_data_across_hosts, "edp-across-hosts", AcrossRuns(expert_data, hosts)});
  }
  if (expert.deduplicated_dispatch()) {
    const Partition model = expert.Partition({Axis::kTensor, Axis::kExpert});
    const Partition hosts = ByHost(model, expert.ranks_per_host());
    partitions.push_back({&Groups::expert_model_host, "etp-ep-host", hosts});
    partitions.push_back({&Groups::expert_model_across_hosts, "etp-ep-across-hosts",
                          AcrossRuns(model, static_cast<int>(hosts.size() / model.size()))});
  }
  return partitions;
}

// One instance is the whole group, and so is one level of squares.
void ShareGroups(const RankGrid& dense, ProcessGroups* groups) {
  if (dense.tensor_side() > 1 && dense.tensor_depth() == 1) {
    groups->tensor_column = groups->tensor_replicas;
    groups->tensor_square = groups->tensor;
  }
  if (dense.optimizer_instances() > 1) return;
  groups->data_context_shards = groups->data_context;
  groups->expert_data_shards = groups->expert_data;
}

bool AllAlone(const Partition& partition) {
  return absl::c_all_of(partition, [](const auto& group) { return group.size() == 1; });
}

}  // namespace

absl::StatusOr<ProcessGroups> MakeGroups(const RankGrid& dense, const RankGrid& expert,
                                         const std::shared_ptr<Communicator>& ranks) {
  const int world_size = ranks == nullptr ? 1 : ranks->size();
  CHECK_EQ(dense.world_size(), world_size);
  CHECK_EQ(expert.world_size(), world_size);
  CHECK_EQ(dense.optimizer_instances(), expert.optimizer_instances());
  CHECK_EQ(dense.ranks_per_host(), expert.ranks_per_host());
  CHECK_EQ(dense.hosts(), expert.hosts());
  CHECK_EQ(dense.deduplicated_dispatch(), expert.deduplicated_dispatch());
  CHECK(dense.algorithm() == expert.algorithm());
  ProcessGroups groups;
  if (world_size == 1) return groups;
  const std::shared_ptr<Communicator> world = WithAlgorithm(ranks, dense.algorithm());
  groups.world = ProcessGroup(world);
  for (const NamedPartition& named : Partitions(dense, expert)) {
    if (AllAlone(named.partition)) continue;
    MEGATRON_ASSIGN_OR_RETURN(std::shared_ptr<Communicator> communicator,
                              world->Split(named.partition, named.name),
                              _ << "while creating the " << named.name << " groups");
    if (dense.ranks_per_host() > 0 && IsForDataParallel(named)) {
      const std::vector<int>& mine = *absl::c_find_if(named.partition, [&](const auto& ranks) {
        return absl::c_linear_search(ranks, world->rank());
      });
      MEGATRON_ASSIGN_OR_RETURN(communicator, Hierarchical(std::move(communicator),
                                                           HostsOf(mine, dense.ranks_per_host())));
    }
    if (communicator->size() > 1) groups.*named.group = ProcessGroup(std::move(communicator));
  }
  ShareGroups(dense, &groups);
  return groups;
}

absl::Status CheckDeduplicatedDispatch(const RankGrid& expert) {
  const Partition groups = expert.Partition({Axis::kTensor, Axis::kExpert});
  for (size_t i = 0; i < groups.size(); ++i) {
    const std::string name = absl::StrCat("etp-ep-", i);
    MEGATRON_ASSIGN_OR_RETURN(const HostRanks ranks,
                              RanksByHost(HostsOf(groups[i], expert.ranks_per_host()), name));
    if (ranks.size() == 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("group ", name, " of ranks that share experts is on one host of ",
                       expert.ranks_per_host(), " ranks, so no row has to cross to another"));
    }
    for (const std::vector<int>& of_host : ranks) {
      if (of_host.back() - of_host.front() + 1 != static_cast<int>(of_host.size()) ||
          of_host.size() % expert.size(Axis::kTensor) != 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("group ", name, " has the ", expert.size(Axis::kTensor),
                         " parts of an expert on different hosts of ", expert.ranks_per_host(),
                         " ranks; each host must have whole experts"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckHierarchicalGroups(const RankGrid& dense, const RankGrid& expert) {
  const int ranks_per_host = dense.ranks_per_host();
  if (ranks_per_host == 0) return absl::OkStatus();
  if (dense.world_size() % ranks_per_host != 0) {
    return absl::InvalidArgumentError(absl::StrCat(ranks_per_host, " ranks per host do not divide ",
                                                   dense.world_size(), " ranks"));
  }
  bool found = dense.deduplicated_dispatch();
  if (found) {
    MEGATRON_RETURN_IF_ERROR(CheckDeduplicatedDispatch(expert));
  }
  for (const NamedPartition& named : Partitions(dense, expert)) {
    if (!IsForDataParallel(named)) continue;
    for (size_t i = 0; i < named.partition.size(); ++i) {
      MEGATRON_ASSIGN_OR_RETURN(const HostRanks ranks,
                                RanksByHost(HostsOf(named.partition[i], ranks_per_host),
                                            absl::StrCat(named.name, "-", i)));
      found = found || HasTwoLevels(ranks);
    }
  }
  if (found) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("with ", ranks_per_host, ranks_per_host == 1 ? " rank" : " ranks",
                   " per host no group of data-parallel ranks has several ranks on each of several "
                   "hosts, so no collective has two levels"));
}

std::vector<ProcessGroup ProcessGroups::*> HierarchicalGroups(const RankGrid& dense,
                                                              const RankGrid& expert, int rank) {
  std::vector<ProcessGroup ProcessGroups::*> groups;
  if (dense.ranks_per_host() == 0) return groups;
  for (const NamedPartition& named : Partitions(dense, expert)) {
    if (!IsForDataParallel(named)) continue;
    for (const std::vector<int>& ranks : named.partition) {
      if (!absl::c_linear_search(ranks, rank)) continue;
      const auto by_host = RanksByHost(HostsOf(ranks, dense.ranks_per_host()), named.name);
      if (by_host.ok() && HasTwoLevels(*by_host)) groups.push_back(named.group);
    }
  }
  return groups;
}

int CountGroups(const ProcessGroups& groups) {
  int count = groups.world.size() > 1 ? 1 : 0;
  for (const ProcessGroup* group : {&groups.tensor_replicas, &groups.tensor_row, &groups.data_rows,
                                    &groups.tensor_depth, &groups.data_inner_rows})
    count += group->size() > 1 ? 1 : 0;
  if (groups.tensor_depth.size() > 1) count += 2;  // columns and squares are groups of their own
  using Groups = ProcessGroups;
  for (const auto& [run, across] :
       {std::pair(&Groups::data_context_shards, &Groups::data_context_replicas),
        {&Groups::expert_data_shards, &Groups::expert_data_replicas},
        {&Groups::data_context_host, &Groups::data_context_across_hosts},
        {&Groups::expert_data_host, &Groups::expert_data_across_hosts},
        {&Groups::expert_model_host, &Groups::expert_model_across_hosts}}) {
    if ((groups.*across).size() > 1) count += 1 + ((groups.*run).size() > 1 ? 1 : 0);
  }
  for (const NamedPartition& named : Partitions(RankGrid(), RankGrid()))
    count += (groups.*named.group).size() > 1 ? 1 : 0;
  return count;
}

ProcessGroups GroupsForPlanning(const RankGrid& dense, const RankGrid& expert, int rank) {
  ProcessGroups groups;
  groups.world = ProcessGroup::ForPlanning(dense.world_size(), rank, "world");
  for (const NamedPartition& named : Partitions(dense, expert)) {
    for (size_t i = 0; i < named.partition.size(); ++i) {
      const std::vector<int>& ranks = named.partition[i];
      const auto found = absl::c_find(ranks, rank);
      if (found == ranks.end()) continue;
      groups.*named.group = ProcessGroup::ForPlanning(static_cast<int>(ranks.size()),
                                                      static_cast<int>(found - ranks.begin()),
                                                      absl::StrCat(named.name, "-", i));
    }
  }
  ShareGroups(dense, &groups);
  return groups;
}

}  // namespace megatron
