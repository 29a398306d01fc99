#include "megatron/comm/rank_grid.h"

#include <algorithm>
#include <set>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Groups = std::vector<std::vector<int>>;

ParallelSizes Sizes(int tensor, int context, int pipeline) {
  ParallelSizes sizes;
  sizes.tensor = tensor;
  sizes.context = context;
  sizes.pipeline = pipeline;
  return sizes;
}

constexpr Axis kAxes[] = {Axis::kTensor, Axis::kContext, Axis::kExpert, Axis::kData,
                          Axis::kPipeline};

std::vector<AxisSet> EverySet() {
  std::vector<AxisSet> sets;
  for (Axis a : kAxes) {
    for (Axis b : kAxes) {
      for (Axis c : kAxes) sets.push_back({a, b, c});  // sets of one, two and three axes
    }
  }
  sets.push_back({});
  sets.push_back({Axis::kTensor, Axis::kContext, Axis::kData, Axis::kPipeline});
  return sets;
}

TEST(RankGridTest, NumbersTensorFastestAndPipelineSlowest) {
  const RankGrid grid = *RankGrid::Create(Sizes(2, 1, 2), 8);
  EXPECT_EQ(grid.Partition({Axis::kTensor}), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(grid.Partition({Axis::kData}), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(grid.Partition({Axis::kPipeline}), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(grid.Partition({Axis::kTensor, Axis::kPipeline}), (Groups{{0, 1, 4, 5}, {2, 3, 6, 7}}));
  EXPECT_EQ(grid.Describe(6), "tp0 dp1 pp1");
}

// The groups that Megatron's documentation gives for 16 GPUs, tensor 2 and pipeline 4.
TEST(RankGridTest, GroupsSixteenRanksAsMegatronDoes) {
  const RankGrid grid = *RankGrid::Create(Sizes(2, 1, 4), 16);
  EXPECT_THAT(grid.PeersOf(0, {Axis::kData}), ElementsAre(0, 2));
  EXPECT_THAT(grid.PeersOf(15, {Axis::kData}), ElementsAre(13, 15));
  EXPECT_THAT(grid.PeersOf(14, {Axis::kTensor}), ElementsAre(14, 15));
  EXPECT_THAT(grid.PeersOf(5, {Axis::kPipeline}), ElementsAre(1, 5, 9, 13));
}

TEST(RankGridTest, TheExpertGridDividesTheSameRanks) {
  ParallelSizes sizes = Sizes(2, 1, 2);
  sizes.expert = 4;
  sizes.expert_tensor = 1;
  const RankGrid grid = *RankGrid::CreateExpert(sizes, 16);
  EXPECT_EQ(grid.size(Axis::kTensor), 1);
  EXPECT_EQ(grid.size(Axis::kData), 2);
  EXPECT_THAT(grid.PeersOf(5, {Axis::kExpert}), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(grid.PeersOf(5, {Axis::kData}), ElementsAre(1, 5));
  EXPECT_THAT(grid.PeersOf(5, {Axis::kPipeline}), ElementsAre(5, 13));
}

TEST(RankGridTest, GivesExpertsTheTensorSizeOfTheDenseGridUnlessTold) {
  ParallelSizes sizes = Sizes(2, 1, 1);
  sizes.expert = 2;
  EXPECT_EQ(RankGrid::CreateExpert(sizes, 8)->size(Axis::kTensor), 2);
  EXPECT_EQ(RankGrid::CreateExpert(sizes, 8)->size(Axis::kData), 2);
}

ParallelSizes Ordered(ParallelSizes sizes, const char* order) {
  sizes.order = *RankOrder::Parse(order);
  return sizes;
}

// Megatron's --use-tp-pp-dp-mapping.
TEST(RankGridTest, NumbersDataSlowestWhereTheOrderSaysSo) {
  const RankGrid grid = *RankGrid::Create(Ordered(Sizes(2, 1, 2), "tp-cp-ep-pp-dp"), 8);
  EXPECT_EQ(grid.Partition({Axis::kTensor}), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(grid.Partition({Axis::kPipeline}), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(grid.Partition({Axis::kData}), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(grid.Describe(6), "tp0 dp1 pp1");
}

TEST(RankGridTest, NumbersThePipelineFastestWhereTheOrderSaysSo) {
  const RankGrid grid = *RankGrid::Create(Ordered(Sizes(2, 2, 2), "pp-dp-cp-ep-tp"), 8);
  EXPECT_EQ(grid.Partition({Axis::kPipeline}), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(grid.Partition({Axis::kContext}), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(grid.Partition({Axis::kTensor}), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
}

// Data outside of context, whatever the order: the sums are formed in the same order.
TEST(RankGridTest, GroupsListTheirRanksByCoordinates) {
  const RankGrid grid = *RankGrid::Create(Ordered(Sizes(1, 2, 1), "tp-dp-ep-cp-pp"), 6);
  EXPECT_EQ(grid.Partition({Axis::kContext}), (Groups{{0, 3}, {1, 4}, {2, 5}}));
  EXPECT_EQ(grid.Partition({Axis::kData}), (Groups{{0, 1, 2}, {3, 4, 5}}));
  EXPECT_THAT(grid.PeersOf(4, {Axis::kData, Axis::kContext}), ElementsAre(0, 3, 1, 4, 2, 5));
  EXPECT_EQ(grid.IndexAmongPeers(4, {Axis::kData, Axis::kContext}), 3);
}

TEST(RankGridTest, OrdersTheExpertGridToo) {
  ParallelSizes sizes = Ordered(Sizes(2, 1, 2), "ep-tp-cp-dp-pp");
  sizes.expert = 2;
  const RankGrid dense = *RankGrid::Create(sizes, 8), expert = *RankGrid::CreateExpert(sizes, 8);
  EXPECT_EQ(dense.Partition({Axis::kTensor}), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(expert.Partition({Axis::kExpert}), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(expert.Partition({Axis::kTensor}), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_THAT(expert.PeersOf(0, {Axis::kTensor, Axis::kExpert}), ElementsAre(0, 2, 1, 3));
  EXPECT_EQ(dense.Partition({Axis::kPipeline}), expert.Partition({Axis::kPipeline}));
}

// So a model without experts can have any order.
TEST(RankGridTest, ExpertsThatAreCutAsTheRestLieInTheDenseGrid) {
  for (const RankOrder& order : RankOrder::All()) {
    ParallelSizes sizes = Sizes(2, 3, 2);
    sizes.order = order;
    const RankGrid dense = *RankGrid::Create(sizes, 24);
    const auto expert = RankGrid::CreateExpert(sizes, 24);
    ASSERT_THAT(expert, IsOk());
    for (AxisSet axes : EverySet()) ASSERT_EQ(expert->Partition(axes), dense.Partition(axes));
  }
}

TEST(RankGridTest, RefusesAnOrderWithOtherPipelinesForExperts) {
  ParallelSizes sizes = Ordered(Sizes(1, 1, 2), "tp-cp-ep-pp-dp");
  sizes.expert = 2;
  EXPECT_THAT(RankGrid::CreateExpert(sizes, 8),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("tp-cp-ep-pp-dp gives rank 0 two pipelines: ranks 0, 1 in the "
                                 "dense grid dp4 x pp2, and ranks 0, 2 in the expert grid "
                                 "ep2 x dp2 x pp2")));
  // Each stage's context ranks have other experts: the axes before pp have the same product.
  sizes.context = 2;
  EXPECT_THAT(RankGrid::CreateExpert(sizes, 8), IsOk());
  sizes.order = RankOrder();
  EXPECT_THAT(RankGrid::CreateExpert(sizes, 8), IsOk());
}

// Without experts and in orders that end with pp nothing is refused; all others are accepted
// exactly if every rank has one stage.
TEST(RankGridTest, AcceptsAnOrderIfEveryRankHasOneStage) {
  for (const int expert_ranks : {1, 2, 3}) {
    int accepted = 0;
    for (const RankOrder& order : RankOrder::All()) {
      ParallelSizes sizes = Sizes(2, 1, 2);
      sizes.expert = expert_ranks;
      sizes.expert_tensor = expert_ranks == 3 ? 2 : 0;
      sizes.order = order;
      const int world_size = 24;
      const RankGrid dense = *RankGrid::Create(sizes, world_size);
      const auto expert = RankGrid::CreateExpert(sizes, world_size);
      if (order.axes().back() == Axis::kPipeline || expert_ranks == 1) {
        EXPECT_THAT(expert, IsOk()) << order.ToString();
      }
      if (!expert.ok()) continue;
      ++accepted;
      for (int rank = 0; rank < world_size; ++rank) {
        ASSERT_EQ(dense.Coordinate(rank, Axis::kPipeline),
                  expert->Coordinate(rank, Axis::kPipeline))
            << order.ToString();
      }
    }
    // With ep the pipeline comes after ep and dp, or before both.
    EXPECT_EQ(accepted, expert_ranks == 1 ? 120 : 80);
  }
}

TEST(RankGridTest, RefusesSizesThatDoNotDivideTheWorld) {
  EXPECT_THAT(RankGrid::Create(Sizes(2, 1, 3), 8),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("tp2 x pp3")));
  EXPECT_THAT(RankGrid::Create(Sizes(1 << 20, 1 << 20, 1 << 20), 8),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(RankGrid::Create(Sizes(0, 1, 1), 8), StatusIs(absl::StatusCode::kInvalidArgument));
  ParallelSizes sizes = Sizes(2, 1, 1);
  sizes.data = 3;
  EXPECT_THAT(RankGrid::Create(sizes, 8),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("leave 4 of 8")));
  sizes.data = 4;
  sizes.expert = 3;
  EXPECT_THAT(RankGrid::CreateExpert(sizes, 8),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expert grid")));
}

// Every set of axes in both grids: groups cover the world once, a rank's peers are the group that
// holds it, and peers agree on all coordinates off the axes.
TEST(RankGridTest, RefusesASideThatMakesNoSquare) {
  ParallelSizes sizes = Sizes(8, 1, 1);
  sizes.tensor_side = 2;
  EXPECT_THAT(RankGrid::Create(sizes, 8),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("8 tensor-parallel ranks do not form a square of 2 rows")));
  sizes.tensor = 4;
  ASSERT_THAT(RankGrid::Create(sizes, 8), IsOk());
  EXPECT_EQ(RankGrid::Create(sizes, 8)->tensor_side(), 2);
}

TEST(RankGridTest, RefusesLevelsThatMakeNoSquaresOrNoCube) {
  ParallelSizes sizes = Sizes(12, 1, 1);
  sizes.tensor_side = 2;
  sizes.tensor_depth = 2;
  EXPECT_THAT(RankGrid::Create(sizes, 12),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("12 tensor-parallel ranks do not form 2 squares of 2 rows")));
  sizes.tensor_depth = 3;
  ASSERT_THAT(RankGrid::Create(sizes, 12), IsOk());
  EXPECT_EQ(RankGrid::Create(sizes, 12)->tensor_depth(), 3);
  sizes.tensor_cube = true;
  EXPECT_THAT(RankGrid::Create(sizes, 12),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("3 squares of 2 rows do not form a cube")));
  sizes.tensor_side = 1;
  sizes.tensor_depth = 12;
  EXPECT_THAT(RankGrid::Create(sizes, 12),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("need several rows")));
}

TEST(RankGridTest, RefusesInstancesAndHostsThatDoNotDivideTheRanksWithTheSameWeights) {
  ParallelSizes sizes = Sizes(2, 1, 1);
  sizes.optimizer_instances = 2;
  EXPECT_EQ(RankGrid::Create(sizes, 8)->optimizer_instances(), 2);
  EXPECT_EQ(RankGrid::CreateExpert(sizes, 8)->optimizer_instances(), 2);
  sizes.expert = 2;
  EXPECT_EQ(RankGrid::CreateExpert(sizes, 8)->optimizer_instances(), 2);
  sizes.expert = 4;
  sizes.expert_tensor = 2;
  EXPECT_THAT(RankGrid::CreateExpert(sizes, 8),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("1 rank has the same experts (tp2 x ep4), and 2 instances")));
  sizes.optimizer_instances = 3;
  EXPECT_THAT(RankGrid::Create(sizes, 8),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("4 ranks have the same weights (tp2 x dp4), and 3 instances")));
  sizes.optimizer_instances = 1;
  sizes.hosts = 3;
  EXPECT_THAT(RankGrid::Create(sizes, 8),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("4 ranks have the same weights (tp2 x dp4), and 3 hosts do not")));
  sizes.hosts = 0;
  EXPECT_THAT(RankGrid::Create(sizes, 8), StatusIs(absl::StatusCode::kInvalidArgument));
  sizes.hosts = 1;
  sizes.optimizer_instances = 0;
  EXPECT_THAT(RankGrid::Create(sizes, 8), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(RankGridTest, PartitionsPeersAndCoordinatesAgree) {
  ParallelSizes sizes = Sizes(2, 3, 2);
  sizes.expert = 3;
  const int world_size = 24;
  std::vector<RankGrid> grids;
  for (const char* order : {"tp-cp-ep-dp-pp", "dp-ep-tp-cp-pp", "pp-ep-dp-cp-tp"}) {
    sizes.order = *RankOrder::Parse(order);
    grids.push_back(*RankGrid::Create(sizes, world_size));
    grids.push_back(*RankGrid::CreateExpert(sizes, world_size));
  }
  for (const RankGrid& grid : grids) {
    for (AxisSet axes : EverySet()) {
      std::set<int> seen;
      for (const std::vector<int>& group : grid.Partition(axes)) {
        ASSERT_EQ(static_cast<int>(group.size()), grid.size(axes));
        for (size_t i = 0; i < group.size(); ++i) {
          ASSERT_TRUE(seen.insert(group[i]).second);
          ASSERT_EQ(grid.PeersOf(group[i], axes), group);
          ASSERT_EQ(grid.IndexAmongPeers(group[i], axes), static_cast<int>(i));
          for (Axis axis : kAxes) {
            if (axes.contains(axis)) continue;
            ASSERT_EQ(grid.Coordinate(group[i], axis), grid.Coordinate(group[0], axis));
          }
        }
      }
      ASSERT_EQ(static_cast<int>(seen.size()), world_size);
    }
  }
}

TEST(RankGridTest, IsRightForAHundredThousandRanks) {
  ParallelSizes sizes = Sizes(8, 5, 10);
  sizes.expert = 20;
  sizes.expert_tensor = 2;
  const int world_size = 100000;
  const RankGrid dense = *RankGrid::Create(sizes, world_size);
  const RankGrid expert = *RankGrid::CreateExpert(sizes, world_size);
  EXPECT_EQ(dense.size(Axis::kData), 250);
  EXPECT_EQ(expert.size(Axis::kData), 250);
  EXPECT_EQ(dense.Partition({Axis::kPipeline}), expert.Partition({Axis::kPipeline}));
  for (AxisSet axes : {AxisSet{Axis::kTensor}, AxisSet{Axis::kData, Axis::kContext},
                       AxisSet{Axis::kTensor, Axis::kPipeline}}) {
    std::vector<bool> seen(world_size);
    for (const std::vector<int>& group : dense.Partition(axes)) {
      for (size_t i = 0; i < group.size(); ++i) {
        ASSERT_FALSE(seen[group[i]]);
        seen[group[i]] = true;
        ASSERT_EQ(dense.IndexAmongPeers(group[i], axes), static_cast<int>(i));
        for (Axis axis : kAxes) {
          if (axes.contains(axis)) continue;
          ASSERT_EQ(dense.Coordinate(group[i], axis), dense.Coordinate(group[0], axis));
        }
      }
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), true), world_size);
  }
  const std::vector<int> peers = dense.PeersOf(54321, {Axis::kData, Axis::kContext});
  EXPECT_EQ(peers.size(), 1250u);
  EXPECT_TRUE(std::is_sorted(peers.begin(), peers.end()));
}

TEST(RankGridTest, TheFirstAndTheLastStageHaveTheEmbeddingUnlessOthersAreNamed) {
  ParallelSizes sizes;
  EXPECT_THAT(RankGrid().embedding_stages(), ElementsAre(0));
  EXPECT_THAT(RankGrid::Create(sizes, 1)->embedding_stages(), ElementsAre(0));
  sizes.pipeline = 4;
  EXPECT_THAT(RankGrid::Create(sizes, 4)->embedding_stages(), ElementsAre(0, 3));
  sizes.embedding_stages = {0, 2};
  EXPECT_THAT(RankGrid::Create(sizes, 4)->embedding_stages(), ElementsAre(0, 2));
  for (const std::vector<int>& wrong :
       {std::vector<int>{1, 3}, {0, 4}, {0, 2, 2}, {0, 3, 2}, {-1, 0}}) {
    sizes.embedding_stages = wrong;
    EXPECT_THAT(RankGrid::Create(sizes, 4), StatusIs(absl::StatusCode::kInvalidArgument,
                                                     HasSubstr("cannot share the embedding")));
  }
}

}  // namespace
}  // namespace megatron
