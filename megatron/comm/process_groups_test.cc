#include "megatron/comm/process_groups.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/communicator.h"
#include "megatron/comm/counted_communicator.h"
#include "megatron/comm/thread/run_ranks.h"

namespace megatron {
namespace {

ParallelSizes EightRanks() {
  ParallelSizes sizes;
  sizes.tensor = 2;
  sizes.pipeline = 2;
  sizes.expert = 2;
  sizes.expert_tensor = 1;
  return sizes;
}

// Sums 1 << (world rank) over the group, which tells its members.
int Members(const ProcessGroup& group, int world_rank, const Stream& stream) {
  int32_t bits = 1 << world_rank;
  group.AllReduce(Tensor(&bits, DType::kInt32, {1}), ReduceOp::kSum, stream);
  return bits;
}

TEST(ProcessGroupsTest, GroupsHoldTheRanksOfTheGrids) {
  const RankGrid dense = *RankGrid::Create(EightRanks(), 8);
  const RankGrid expert = *RankGrid::CreateExpert(EightRanks(), 8);
  struct Case {
    ProcessGroup ProcessGroups::*group;
    const RankGrid& grid;
    AxisSet axes;
  };
  using G = ProcessGroups;
  const Case cases[] = {
      {&G::tensor, dense, {Axis::kTensor}},
      {&G::context, dense, {Axis::kContext}},
      {&G::data, dense, {Axis::kData}},
      {&G::pipeline, dense, {Axis::kPipeline}},
      {&G::data_context, dense, {Axis::kData, Axis::kContext}},
      {&G::tied_embedding, dense, {Axis::kPipeline}},  // both of the two stages
      {&G::expert, expert, {Axis::kExpert}},
      {&G::expert_tensor, expert, {Axis::kTensor}},
      {&G::expert_model, expert, {Axis::kTensor, Axis::kExpert}},
      {&G::expert_data, expert, {Axis::kData}},
  };
  const absl::Status status = RunRanks(8, [&](int rank, const ProcessGroup& world) -> absl::Status {
    ThreadPool pool(1);
    const Stream stream = Stream::Cpu(&pool);
    MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups groups,
                              MakeGroups(dense, expert, world.communicator()));
    const ProcessGroups planned = GroupsForPlanning(dense, expert, rank);
    for (const Case& c : cases) {
      int expected = 0;
      for (int peer : c.grid.PeersOf(rank, c.axes)) expected |= 1 << peer;
      const ProcessGroup& group = groups.*c.group;
      if (Members(group, rank, stream) != expected ||
          group.rank() != c.grid.IndexAmongPeers(rank, c.axes) ||
          (planned.*c.group).size() != group.size() || (planned.*c.group).rank() != group.rank() ||
          (planned.*c.group).name() != group.name()) {
        return absl::InternalError("group " + group.name());
      }
    }
    return world.status();
  });
  EXPECT_THAT(status, absl_testing::IsOk());
}

// Ranks 0 to 7 are two squares of 2 x 2, one for each data-parallel rank, whose columns are
// neighbours.
TEST(ProcessGroupsTest, SquaresOfTensorParallelRanksHaveRowsAndColumns) {
  ParallelSizes sizes;
  sizes.tensor = 4;
  sizes.tensor_side = 2;
  const RankGrid grid = *RankGrid::Create(sizes, 8);
  const absl::Status status = RunRanks(8, [&](int rank, const ProcessGroup& world) -> absl::Status {
    ThreadPool pool(1);
    const Stream stream = Stream::Cpu(&pool);
    MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups groups,
                              MakeGroups(grid, grid, world.communicator()));
    const int square = rank / 4 * 4, row = rank % 2, column = rank % 4 / 2;
    EXPECT_EQ(Members(groups.tensor_row, rank, stream), 0b101 << (square + row));
    EXPECT_EQ(groups.tensor_row.rank(), column);
    EXPECT_EQ(Members(groups.tensor_replicas, rank, stream), 0b11 << (square + 2 * column));
    EXPECT_EQ(groups.tensor_replicas.rank(), row);
    EXPECT_EQ(Members(groups.data_rows, rank, stream), 0b110011 << (2 * column));
    EXPECT_EQ(groups.data_rows.rank(), rank / 4 * 2 + row);
    const ProcessGroups planned = GroupsForPlanning(grid, grid, rank);
    for (const auto group :
         {&ProcessGroups::tensor_row, &ProcessGroups::tensor_replicas, &ProcessGroups::data_rows}) {
      EXPECT_EQ((planned.*group).name(), (groups.*group).name());
      EXPECT_EQ((planned.*group).rank(), (groups.*group).rank());
    }
    // The world, tp, dp, dp-cp, the three of the expert grid, and these.
    EXPECT_EQ(CountGroups(planned), 10);
    EXPECT_EQ(CountGroups(groups), 10);
    return world.status();
  });
  EXPECT_THAT(status, absl_testing::IsOk());
}

// Ranks 0 to 15 are two cubes of 2 x 2 x 2, one for each data-parallel rank. A rank's number in its
// cube has its level, its row and its column as bits, from the lowest on.
TEST(ProcessGroupsTest, CubesOfTensorParallelRanksHaveGroupsInEachDirection) {
  ParallelSizes sizes;
  sizes.tensor = 8;
  sizes.tensor_side = sizes.tensor_depth = 2;
  sizes.tensor_cube = true;
  const RankGrid grid = *RankGrid::Create(sizes, 16);
  const absl::Status status =
      RunRanks(16, [&](int rank, const ProcessGroup& world) -> absl::Status {
        ThreadPool pool(1);
        const Stream stream = Stream::Cpu(&pool);
        MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups groups,
                                  MakeGroups(grid, grid, world.communicator()));
        const int cube = rank / 8 * 8, level = rank % 2, row = rank / 2 % 2, column = rank / 4 % 2;
        using G = ProcessGroups;
        const std::tuple<ProcessGroup G::*, int, int> cases[] = {
            {&G::tensor_row, 0b10001 << (cube + level + 2 * row), column},
            {&G::tensor_column, 0b101 << (cube + level + 4 * column), row},
            {&G::tensor_square, 0b1010101 << (cube + level), row + 2 * column},
            {&G::tensor_depth, 0b11 << (cube + 2 * row + 4 * column), level},
            {&G::tensor_replicas, 0b1111 << (cube + 4 * column), level + 2 * row},
            {&G::data_rows, 0b111100001111 << (4 * column), rank / 8 * 4 + level + 2 * row},
            {&G::data_inner_rows, 0b11001100110011 << (2 * row),
             rank / 8 * 4 + level + 2 * column}};
        const ProcessGroups planned = GroupsForPlanning(grid, grid, rank);
        for (const auto& [group, members, place] : cases) {
          EXPECT_EQ(Members(groups.*group, rank, stream), members) << (groups.*group).name();
          EXPECT_EQ((groups.*group).rank(), place) << (groups.*group).name();
          EXPECT_EQ((planned.*group).name(), (groups.*group).name());
          EXPECT_EQ((planned.*group).rank(), place);
        }
        EXPECT_EQ(&groups.TensorReplicas(2), &groups.tensor_depth);
        EXPECT_EQ(&groups.TensorReplicas(4), &groups.tensor_replicas);
        // The world, tp, dp, dp-cp, the three of the expert grid, and these.
        EXPECT_EQ(CountGroups(planned), 14);
        EXPECT_EQ(CountGroups(groups), 14);
        return world.status();
      });
  EXPECT_THAT(status, absl_testing::IsOk());
}

// Eight ranks with the same weights, of which groups of two share experts.
TEST(ProcessGroupsTest, InstancesAndHostsCutTheRanksWithTheSameWeightsIntoRuns) {
  ParallelSizes sizes;
  sizes.context = 2;
  sizes.data = 4;
  sizes.expert = 2;
  sizes.optimizer_instances = 2;
  sizes.hosts = 4;
  const RankGrid dense = *RankGrid::Create(sizes, 8);
  const RankGrid expert = *RankGrid::CreateExpert(sizes, 8);
  struct Case {
    ProcessGroup ProcessGroups::*group;
    std::vector<std::vector<int>> partition;
  };
  using G = ProcessGroups;
  const Case cases[] = {
      {&G::data_context_shards, {{0, 1, 2, 3}, {4, 5, 6, 7}}},
      {&G::data_context_replicas, {{0, 4}, {1, 5}, {2, 6}, {3, 7}}},
      {&G::expert_data_shards, {{0, 2}, {1, 3}, {4, 6}, {5, 7}}},
      {&G::expert_data_replicas, {{0, 4}, {1, 5}, {2, 6}, {3, 7}}},
      {&G::data_context_host, {{0, 1}, {2, 3}, {4, 5}, {6, 7}}},
      {&G::data_context_across_hosts, {{0, 2, 4, 6}, {1, 3, 5, 7}}},
      {&G::expert_data_host, {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}}},
      {&G::expert_data_across_hosts, {{0, 2, 4, 6}, {1, 3, 5, 7}}},
  };
  const absl::Status status = RunRanks(8, [&](int rank, const ProcessGroup& world) -> absl::Status {
    ThreadPool pool(1);
    const Stream stream = Stream::Cpu(&pool);
    MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups groups,
                              MakeGroups(dense, expert, world.communicator()));
    const ProcessGroups planned = GroupsForPlanning(dense, expert, rank);
    EXPECT_EQ(CountGroups(groups), CountGroups(planned));
    for (const Case& c : cases) {
      const ProcessGroup& group = groups.*c.group;
      const int members = Members(group, rank, stream);
      for (const std::vector<int>& ranks : c.partition) {
        const auto found = std::find(ranks.begin(), ranks.end(), rank);
        if (found == ranks.end()) continue;
        int expected = 0;
        for (int peer : ranks) expected |= 1 << peer;
        EXPECT_EQ(members, expected) << group.name();
        EXPECT_EQ(group.rank(), found - ranks.begin()) << group.name();
      }
      EXPECT_EQ((planned.*c.group).size(), group.size());
      EXPECT_EQ((planned.*c.group).rank(), group.rank());
      EXPECT_EQ((planned.*c.group).name(), group.name());
    }
    return world.status();
  });
  EXPECT_THAT(status, absl_testing::IsOk());
}

TEST(ProcessGroupsTest, OneInstanceIsTheWholeGroupWithoutACommunicatorOfItsOwn) {
  ParallelSizes sizes;
  sizes.data = 4;
  const RankGrid grid = *RankGrid::Create(sizes, 4);
  const ProcessGroups groups = GroupsForPlanning(grid, grid, 3);
  EXPECT_EQ(groups.data_context_shards.name(), groups.data_context.name());
  EXPECT_EQ(groups.data_context_shards.rank(), 3);
  EXPECT_EQ(groups.data_context_replicas.size(), 1);
  sizes.optimizer_instances = 2;
  const RankGrid cut = *RankGrid::Create(sizes, 4);
  EXPECT_EQ(CountGroups(GroupsForPlanning(cut, cut, 3)), CountGroups(groups) + 4);
  sizes.hosts = 2;
  const RankGrid cut_twice = *RankGrid::Create(sizes, 4);
  EXPECT_EQ(CountGroups(GroupsForPlanning(cut_twice, cut_twice, 3)), CountGroups(groups) + 8);
}

// Hosts of four ranks, which are two tensor-parallel pairs.
TEST(ProcessGroupsTest, GroupsForGradientsAndWeightsAreHierarchicalOverHosts) {
  ParallelSizes sizes;
  sizes.tensor = 2;
  sizes.data = 4;
  sizes.ranks_per_host = 4;
  const RankGrid grid = *RankGrid::Create(sizes, 8);
  EXPECT_THAT(CheckHierarchicalGroups(grid, grid), absl_testing::IsOk());
  EXPECT_THAT(HierarchicalGroups(grid, grid, 5),
              ::testing::ElementsAre(&ProcessGroups::data_context, &ProcessGroups::expert_data));
  const absl::Status status = RunRanks(8, [&](int rank, const ProcessGroup& world) -> absl::Status {
    BytesSent sent;
    MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups groups,
                              MakeGroups(grid, grid, Counted(world.communicator(), &sent)));
    EXPECT_EQ(Members(groups.data_context, rank, Stream::Inline()), rank % 2 == 0 ? 0x55 : 0xaa);
    EXPECT_EQ(sent.CallsOf(groups.data_context.name() + "-between-hosts", Collective::kAllReduce),
              1);
    Members(groups.tensor, rank, Stream::Inline());
    EXPECT_EQ(sent.CallsOf("tp", Collective::kAllReduce), 1);
    return world.status();
  });
  EXPECT_THAT(status, absl_testing::IsOk());
}

TEST(ProcessGroupsTest, HostsThatFitNoGroupOrHaveUnequalPartsOfOneAreRefused) {
  const auto check = [](int tensor, int data, int ranks_per_host) {
    ParallelSizes sizes;
    sizes.tensor = tensor;
    sizes.ranks_per_host = ranks_per_host;
    const RankGrid grid = *RankGrid::Create(sizes, tensor * data);
    return CheckHierarchicalGroups(grid, grid);
  };
  EXPECT_THAT(check(2, 4, 0), absl_testing::IsOk());
  using ::testing::HasSubstr;
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(check(2, 4, 3), absl_testing::StatusIs(kInvalid, HasSubstr("do not divide 8 ranks")));
  EXPECT_THAT(check(2, 4, 2), absl_testing::StatusIs(kInvalid, HasSubstr("no collective has two")));
  EXPECT_THAT(check(4, 3, 6), absl_testing::StatusIs(
                                  kInvalid, HasSubstr("group dp-cp-0 has 2 of its 3 ranks on host "
                                                      "0 and 1 on host 1")));
}

// Four ranks share two experts, cut in two, on hosts of two: a host has one of the experts.
TEST(ProcessGroupsTest, RanksThatShareExpertsAreCutByHostForDeduplicatedDispatch) {
  ParallelSizes sizes;
  sizes.data = 8;
  sizes.expert = sizes.expert_tensor = 2;
  sizes.ranks_per_host = 2;
  sizes.deduplicated_dispatch = true;
  const RankGrid dense = *RankGrid::Create(sizes, 8), expert = *RankGrid::CreateExpert(sizes, 8);
  EXPECT_THAT(CheckDeduplicatedDispatch(expert), absl_testing::IsOk());
  const absl::Status status = RunRanks(8, [&](int rank, const ProcessGroup& world) -> absl::Status {
    MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups groups,
                              MakeGroups(dense, expert, world.communicator()));
    EXPECT_EQ(Members(groups.expert_model_host, rank, Stream::Inline()), 0x3 << (rank & ~1));
    EXPECT_EQ(Members(groups.expert_model_across_hosts, rank, Stream::Inline()),
              0x5 << ((rank & ~3) + rank % 2));
    return world.status();
  });
  EXPECT_THAT(status, absl_testing::IsOk());
  // A host of one rank has half of an expert.
  sizes.ranks_per_host = 1;
  EXPECT_THAT(CheckDeduplicatedDispatch(*RankGrid::CreateExpert(sizes, 8)),
              absl_testing::StatusIs(absl::StatusCode::kInvalidArgument,
                                     ::testing::HasSubstr("parts of an expert on different")));
}

TEST(ProcessGroupsTest, TheFirstAndTheLastStageShareTiedEmbeddings) {
  ParallelSizes sizes;
  sizes.pipeline = 4;
  const RankGrid grid = *RankGrid::Create(sizes, 4);
  EXPECT_EQ(GroupsForPlanning(grid, grid, 0).tied_embedding.size(), 2);
  EXPECT_EQ(GroupsForPlanning(grid, grid, 1).tied_embedding.size(), 1);
  EXPECT_EQ(GroupsForPlanning(grid, grid, 2).tied_embedding.size(), 1);
  EXPECT_EQ(GroupsForPlanning(grid, grid, 3).tied_embedding.size(), 2);
  EXPECT_EQ(GroupsForPlanning(grid, grid, 3).tied_embedding.rank(), 1);
}

TEST(ProcessGroupsTest, NamedStagesShareTiedEmbeddings) {
  ParallelSizes sizes;
  sizes.pipeline = 4;
  sizes.tensor = 2;
  sizes.embedding_stages = {0, 2, 3};
  const RankGrid grid = *RankGrid::Create(sizes, 8);
  for (int rank = 0; rank < 8; ++rank) {
    const ProcessGroup& group = GroupsForPlanning(grid, grid, rank).tied_embedding;
    const int stage = rank / 2;
    EXPECT_EQ(group.size(), stage == 1 ? 1 : 3) << rank;
    EXPECT_EQ(group.rank(), stage == 0 || stage == 1 ? 0 : stage - 1) << rank;
  }
  const absl::Status status = RunRanks(8, [&](int rank, const ProcessGroup& world) -> absl::Status {
    ThreadPool pool(1);
    const Stream stream = Stream::Cpu(&pool);
    MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups groups,
                              MakeGroups(grid, grid, world.communicator()));
    const int column = rank % 2;
    EXPECT_EQ(Members(groups.tied_embedding, rank, stream),
              rank / 2 == 1 ? 1 << rank : 0b1010001 << column);
    return world.status();
  });
  EXPECT_THAT(status, absl_testing::IsOk());
}

TEST(ProcessGroupsTest, OneRankNeedsNoCommunicator) {
  const auto groups = MakeGroups(RankGrid(), RankGrid(), nullptr);
  ASSERT_THAT(groups, absl_testing::IsOk());
  EXPECT_EQ(groups->world.size(), 1);
  EXPECT_EQ(groups->tied_embedding.size(), 1);
}

}  // namespace
}  // namespace megatron
