#include "tools/topology/probe.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/comm/thread/run_ranks.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Pair;

// Returns the shape of ranks on these hosts. The first rank of each knows the links.
absl::StatusOr<MachineShape> ShapeOf(const std::vector<std::string>& hosts,
                                     const std::optional<GpuLinks>& links = std::nullopt) {
  absl::StatusOr<MachineShape> shape;
  const absl::Status status = RunRanks(
      static_cast<int>(hosts.size()), [&](int rank, const ProcessGroup& ranks) -> absl::Status {
        ProbedHost host;
        host.name = hosts[rank];
        if (rank == 0 || hosts[rank] != hosts[rank - 1]) host.links = links;
        const absl::StatusOr<MachineShape> mine = GroupByHost(host, ranks);
        if (rank == 0) shape = mine;
        return absl::OkStatus();
      });
  EXPECT_THAT(status, IsOk());
  return shape;
}

MachineShape Nodes(int nodes, int ranks) {
  MachineShape shape;
  shape.nodes.assign(nodes, {"", ranks, 1});
  shape.domain = ranks;
  return shape;
}

TEST(ProbeTest, HostNamesGroupRanks) {
  const auto shape = ShapeOf({"a", "a", "b", "b"});
  ASSERT_THAT(shape, IsOk());
  ASSERT_EQ(shape->nodes.size(), 2u);
  EXPECT_EQ(shape->nodes[1].host, "b");
  EXPECT_EQ(shape->nodes[1].ranks, 2);
  EXPECT_EQ(shape->nodes[1].rails, 1);
  EXPECT_EQ(shape->domain, 2);
  const auto uneven = ShapeOf({"a", "a", "a", "b"});
  ASSERT_THAT(uneven, IsOk());
  EXPECT_EQ(uneven->domain, 1);
}

TEST(ProbeTest, NvlinkMakesDomainsAndCardsMakeRails) {
  const auto links = ParseGpuLinks(
      "GPU0 GPU1 GPU2 GPU3 NIC0 NIC1\nGPU0 X NV4 SYS SYS PIX SYS\nGPU1 NV4 X SYS SYS PIX SYS\n"
      "GPU2 SYS SYS X NV4 SYS PIX\nGPU3 SYS SYS NV4 X SYS PIX\n");
  ASSERT_THAT(links, IsOk());
  const auto shape = ShapeOf({"a", "a", "a", "a", "b", "b", "b", "b"}, *links);
  ASSERT_THAT(shape, IsOk());
  EXPECT_EQ(shape->domain, 2);
  EXPECT_EQ(shape->nodes[0].rails, 2);
  EXPECT_EQ(shape->nodes[1].rails, 2);
}

TEST(ProbeTest, RefusesRanksOfAHostThatAreNoNeighbours) {
  EXPECT_THAT(ShapeOf({"a", "b", "a", "b"}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("rank 2 is on a")));
}

TEST(ProbeTest, TimesAllPairsOfFewRanksAndSomeOfMany) {
  EXPECT_EQ(PairsToTime(Nodes(2, 4)).size(), 28u);
  const auto pairs = PairsToTime(Nodes(1000, 8));
  EXPECT_LE(pairs.size(), 4u * 16);
  EXPECT_THAT(pairs, Contains(Pair(0, 7)));
  EXPECT_THAT(pairs, Contains(Pair(3, 11)));   // a rail
  EXPECT_THAT(pairs, Contains(Pair(40, 41)));  // neighbours on another node
  EXPECT_THAT(pairs, Contains(Pair(0, 80)));
  EXPECT_TRUE(PairsToTime(Nodes(1, 1)).empty());
}

TEST(ProbeTest, SpeedsAreMediansOfTheirLinks) {
  MachineShape shape = Nodes(2, 4);
  shape.domain = 2;
  SetSpeeds({{0, 1, 300, 5}, {2, 3, 100, 5}, {4, 5, 290, 5}, {0, 2, 20, 9}, {0, 4, 12, 30}},
            &shape);
  EXPECT_EQ(shape.domain_gb_per_s, 290);
  EXPECT_EQ(shape.node_gb_per_s, 20);
  EXPECT_EQ(shape.rail_gb_per_s, 12);
}

TEST(ProbeTest, EveryRankGetsTheTimesOfEveryPair) {
  const std::vector<std::pair<int, int>> pairs = {{0, 1}, {0, 2}, {1, 2}};
  std::vector<std::string> tables(3);
  EXPECT_THAT(RunRanks(3,
                       [&](int rank, const ProcessGroup& world) -> absl::Status {
                         const auto times = TimePairs(pairs, 4096, world, world, Stream::Inline());
                         if (!times.ok()) return times.status();
                         for (const PairTimes& pair : *times) {
                           EXPECT_GT(pair.gb_per_s, 0);
                           EXPECT_GT(pair.microseconds, 0);
                         }
                         tables[rank] = FormatPairs(*times);
                         return absl::OkStatus();
                       }),
              IsOk());
  EXPECT_EQ(tables[1], tables[0]);
  EXPECT_EQ(tables[2], tables[0]);
}

TEST(ProbeTest, PrintsSpeedsAboveTheDiagonalAndLatenciesBelow) {
  EXPECT_EQ(FormatPairs({{0, 1, 300, 5.25}, {0, 8, 12.5, 31}}),
            "rank            0        1        8\n"
            "0               -      300     12.5\n"
            "1            5.25        -         \n"
            "8              31                 -\n");
}

}  // namespace
}  // namespace megatron
