#include "megatron/comm/island_groups.h"

#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/thread/run_ranks.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

// Sums 1 << (world rank) over the group, which tells its members.
int Members(const ProcessGroup& group, int world_rank, const Stream& stream) {
  int32_t bits = 1 << world_rank;
  group.AllReduce(Tensor(&bits, DType::kInt32, {1}), ReduceOp::kSum, stream);
  return bits;
}

ParallelSizes TwoIslandsOfFour() {
  ParallelSizes sizes;
  sizes.tensor = 2;
  sizes.data = 4;
  sizes.optimizer_instances = 2;
  return sizes;
}

TEST(IslandGroupsTest, AnIslandHasNoRanksOfAnother) {
  const RankGrid dense = *RankGrid::Create(TwoIslandsOfFour(), 8);
  const RankGrid expert = *RankGrid::CreateExpert(TwoIslandsOfFour(), 8);
  ASSERT_THAT(CheckIslands(dense, expert), IsOk());
  const absl::Status status = RunRanks(8, [&](int rank, const ProcessGroup& world) -> absl::Status {
    ThreadPool pool(1);
    const Stream stream = Stream::Cpu(&pool);
    MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups all,
                              MakeGroups(dense, expert, world.communicator()));
    MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups island, GroupsOfIsland(all, false));
    MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups planned,
                              GroupsOfIsland(GroupsForPlanning(dense, expert, rank), true));
    const int whole = rank < 4 ? 0x0f : 0xf0;
    const int same_part = whole & (rank % 2 == 0 ? 0x55 : 0xaa);
    EXPECT_EQ(Members(island.world, rank, stream), whole);
    EXPECT_EQ(Members(island.data, rank, stream), same_part);
    EXPECT_EQ(Members(island.data_context, rank, stream), same_part);
    EXPECT_EQ(Members(island.data_context_replicas, rank, stream), 1 << rank);
    EXPECT_EQ(island.world.rank(), rank % 4);
    EXPECT_EQ(planned.world.size(), 4);
    EXPECT_EQ(planned.world.rank(), rank % 4);
    EXPECT_EQ(planned.data.size(), 2);
    EXPECT_EQ(planned.data.rank(), island.data.rank());
    EXPECT_EQ(CountIslandGroups(all), 2);
    return world.status();
  });
  EXPECT_THAT(status, IsOk());
}

TEST(IslandGroupsTest, OneIslandIsTheRun) {
  ParallelSizes sizes;
  sizes.data = 2;
  const RankGrid dense = *RankGrid::Create(sizes, 2), expert = *RankGrid::CreateExpert(sizes, 2);
  const ProcessGroups groups = GroupsForPlanning(dense, expert, 1);
  const auto island = GroupsOfIsland(groups, true);
  ASSERT_THAT(island, IsOk());
  EXPECT_EQ(island->world.size(), 2);
  EXPECT_EQ(island->data_context.size(), 2);
  EXPECT_EQ(CountIslandGroups(groups), 0);
}

TEST(IslandGroupsTest, RanksThatShareSamplesMustBeInOneIsland) {
  ParallelSizes sizes;
  sizes.context = 4;
  sizes.data = 1;
  sizes.optimizer_instances = 2;
  EXPECT_THAT(CheckIslands(*RankGrid::Create(sizes, 4), *RankGrid::CreateExpert(sizes, 4)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("ranks 0 and 2 work on the same samples, and would be in islands "
                                 "0 and 1")));
}

}  // namespace
}  // namespace megatron
