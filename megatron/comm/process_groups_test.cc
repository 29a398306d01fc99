#include "megatron/comm/process_groups.h"

#include "absl/status/status_matchers.h"
#include "gtest/gtest.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
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

TEST(ProcessGroupsTest, JoinTheRanksThatTheGridsGive) {
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
      {&G::tied_embedding, dense, {Axis::kPipeline}},  // of two stages both
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

TEST(ProcessGroupsTest, TieEmbeddingsBetweenTheOuterStagesOnly) {
  ParallelSizes sizes;
  sizes.pipeline = 4;
  const RankGrid grid = *RankGrid::Create(sizes, 4);
  EXPECT_EQ(GroupsForPlanning(grid, grid, 0).tied_embedding.size(), 2);
  EXPECT_EQ(GroupsForPlanning(grid, grid, 1).tied_embedding.size(), 1);
  EXPECT_EQ(GroupsForPlanning(grid, grid, 2).tied_embedding.size(), 1);
  EXPECT_EQ(GroupsForPlanning(grid, grid, 3).tied_embedding.size(), 2);
  EXPECT_EQ(GroupsForPlanning(grid, grid, 3).tied_embedding.rank(), 1);
}

TEST(ProcessGroupsTest, OneRankNeedsNoCommunicator) {
  const auto groups = MakeGroups(RankGrid(), RankGrid(), nullptr);
  ASSERT_THAT(groups, absl_testing::IsOk());
  EXPECT_EQ(groups->world.size(), 1);
  EXPECT_EQ(groups->tied_embedding.size(), 1);
}

}  // namespace
}  // namespace megatron
