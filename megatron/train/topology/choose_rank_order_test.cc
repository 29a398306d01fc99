#include "megatron/train/topology/choose_rank_order.h"

#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/comm/rank_runs.h"
#include "megatron/plan/collective_time.h"
#include "megatron/plan/expert_dispatch.h"
#include "megatron/plan/traffic_row.h"

namespace megatron {
namespace {

using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

MachineShape Nodes(int nodes, int ranks) {
  MachineShape shape;
  shape.nodes.assign(nodes, {"", ranks, ranks});
  shape.domain = ranks;
  shape.domain_gb_per_s = 300;
  shape.rail_gb_per_s = 50;
  return shape;
}

ParallelSizes Sizes(int tensor, int context, int pipeline) {
  ParallelSizes sizes;
  sizes.tensor = tensor;
  sizes.context = context;
  sizes.pipeline = pipeline;
  return sizes;
}

AxisTraffic Collective(const char* name, AxisSet axes, double calls, double bytes) {
  AxisTraffic row;
  row.name = name;
  row.axes = axes;
  row.calls = calls;
  row.bytes = bytes;
  return row;
}

AxisTraffic Tensor(double calls) { return Collective("tp", {Axis::kTensor}, calls, 1e6); }
AxisTraffic Data(double bytes) { return Collective("dp", {Axis::kData, Axis::kContext}, 2, bytes); }
AxisTraffic Messages(double calls) {
  AxisTraffic row = Collective("pp", {Axis::kPipeline}, calls, 1e6);
  row.is_message = true;
  return row;
}

Implementation Ideal() {
  Implementation program;
  program.set_link_efficiency(1);
  program.set_network_efficiency(1);
  return program;
}

Hardware OfDomain(int domain) {
  Hardware hardware;
  hardware.set_link_gb_per_s(300);
  hardware.set_network_gb_per_s(50);
  hardware.set_domain(domain);
  return hardware;
}

// 128 ranks on nodes of 8, tensor 4, context 2, data 4, pipeline 4: tensor groups lie in a node,
// and groups over data and context on four, with two ranks on each.
TEST(ChooseRankOrderTest, TheDefaultOrderHasTheCostOfItsGroups) {
  const auto costs =
      CostsOfOrders(Nodes(16, 8), {Tensor(100), Data(4e9), Messages(64)}, Sizes(4, 2, 4), 128);
  ASSERT_TRUE(costs.ok()) << costs.status();
  const OrderCost& cost = costs->front();
  EXPECT_EQ(cost.order, RankOrder());
  ASSERT_EQ(cost.parts.size(), 3u);
  EXPECT_EQ(cost.parts[0].crossing, Crossing::kDomain);
  EXPECT_DOUBLE_EQ(
      cost.parts[0].seconds,
      100 * CollectiveSeconds(OfDomain(8), Ideal(), TrafficCall::kAllGather, {4, 1}, 1e6));
  EXPECT_EQ(cost.parts[1].crossing, Crossing::kNetwork);
  EXPECT_DOUBLE_EQ(
      cost.parts[1].seconds,
      2 * CollectiveSeconds(OfDomain(8), Ideal(), TrafficCall::kAllGather, {8, 4}, 4e9));
  EXPECT_EQ(cost.parts[2].crossing, Crossing::kNetwork);
  EXPECT_DOUBLE_EQ(cost.parts[2].seconds, 64 * MessageSeconds(OfDomain(8), Ideal(), 32, 1e6));
  EXPECT_EQ(costs->size(), 120u);
}

// Two nodes of 4 ranks, tensor 2, pipeline 2, data 2: what is sent most stays inside a node besides
// the tensor groups.
TEST(ChooseRankOrderTest, TheAxisThatSendsLeastGoesBetweenNodes) {
  const MachineShape shape = Nodes(2, 4);
  const auto messages = ChooseRankOrder(shape, {Tensor(100), Data(1e9), Messages(4)},
                                        Sizes(2, 1, 2), 8, /*is_written=*/false);
  ASSERT_TRUE(messages.ok()) << messages.status();
  EXPECT_EQ(messages->order, RankOrder());
  EXPECT_THAT(messages->reason,
              AllOf(StartsWith("tp-cp-ep-dp-pp, chosen by parallel.topology_file"),
                    HasSubstr("on 2 nodes of 4 ranks"), HasSubstr(" ms between nodes)"),
                    HasSubstr("no order takes less")));
  const auto gradients = ChooseRankOrder(shape, {Tensor(100), Data(1e6), Messages(4000)},
                                         Sizes(2, 1, 2), 8, /*is_written=*/false);
  ASSERT_TRUE(gradients.ok()) << gradients.status();
  // Pipelines lie inside a node, and tensor groups too.
  ParallelSizes sizes = Sizes(2, 1, 2);
  sizes.order = gradients->order;
  const RankGrid grid = *RankGrid::Create(sizes, 8);
  EXPECT_EQ(grid.PeersOf(0, {Axis::kPipeline, Axis::kTensor}).back(), 3);
  EXPECT_THAT(gradients->reason, HasSubstr("; tp-cp-ep-dp-pp would take "));
}

TEST(ChooseRankOrderTest, AWrittenOrderStaysAndIsCompared) {
  ParallelSizes sizes = Sizes(2, 1, 2);
  sizes.order = *RankOrder::Parse("pp-dp-tp-cp-ep");
  const auto choice = ChooseRankOrder(Nodes(2, 4), {Tensor(100), Data(1e9), Messages(4)}, sizes, 8,
                                      /*is_written=*/true);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->order, sizes.order);
  EXPECT_THAT(choice->reason, AllOf(StartsWith("pp-dp-tp-cp-ep, as parallel.rank_order says"),
                                    HasSubstr("tp-cp-ep-dp-pp would take ")));
}

TEST(ChooseRankOrderTest, OneNodeLeavesTheDefault) {
  const auto choice = ChooseRankOrder(Nodes(1, 8), {Tensor(100), Data(1e9), Messages(4)},
                                      Sizes(2, 1, 2), 8, /*is_written=*/false);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->order, RankOrder());
}

// Two NVLink islands of 2 ranks on a node, and a domain of two nodes.
TEST(ChooseRankOrderTest, DomainsMayBeSmallerOrLargerThanNodes) {
  MachineShape islands = Nodes(1, 4);
  islands.domain = 2;
  islands.node_gb_per_s = 10;
  const auto slow = CostsOfOrders(islands, {Tensor(10)}, Sizes(4, 1, 1), 4);
  ASSERT_TRUE(slow.ok()) << slow.status();
  EXPECT_EQ(slow->front().parts[0].crossing, Crossing::kNode);
  Hardware hardware = OfDomain(4);
  hardware.set_link_gb_per_s(10);
  EXPECT_DOUBLE_EQ(slow->front().seconds(),
                   10 * CollectiveSeconds(hardware, Ideal(), TrafficCall::kAllGather, {4, 1}, 1e6));

  MachineShape rack = Nodes(4, 4);
  rack.domain = 8;
  const auto fast = CostsOfOrders(rack, {Tensor(10)}, Sizes(8, 1, 1), 16);
  ASSERT_TRUE(fast.ok()) << fast.status();
  EXPECT_EQ(fast->front().parts[0].crossing, Crossing::kDomain);
}

TEST(ChooseRankOrderTest, ExpertsGoByTheirOwnGridAndTheOrdersThatItAllows) {
  ParallelSizes sizes = Sizes(1, 1, 2);
  sizes.expert = 4;
  AxisTraffic experts = Collective("ep", {Axis::kTensor, Axis::kExpert}, 100, 1e7);
  experts.is_of_experts = true;
  const auto costs = CostsOfOrders(Nodes(4, 4), {experts, Data(1e8)}, sizes, 16);
  ASSERT_TRUE(costs.ok()) << costs.status();
  EXPECT_EQ(costs->front().parts[0].crossing, Crossing::kDomain);
  EXPECT_LT(costs->size(), 120u);
  const auto choice =
      ChooseRankOrder(Nodes(4, 4), {experts, Data(1e8)}, sizes, 16, /*is_written=*/false);
  ASSERT_TRUE(choice.ok());
  EXPECT_THAT(choice->reason, HasSubstr("ep "));
}

// Two nodes of 4 ranks, pipeline 2, data 4 in two instances. What an instance exchanges stays
// inside a node also in an order in which the messages between stages do.
TEST(ChooseRankOrderTest, InstancesNeedNotLieOnOneNodeTogether) {
  AxisTraffic within = Data(4e9), across = Data(1e6);
  const auto choose = [&](int runs) {
    within.runs = across.runs = runs;
    across.is_across = runs > 1;
    return ChooseRankOrder(Nodes(2, 4), {within, across, Messages(400)}, Sizes(1, 1, 2), 8,
                           /*is_written=*/false);
  };
  const auto one = choose(1);
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(one->order, RankOrder());
  const auto two = choose(2);
  ASSERT_TRUE(two.ok()) << two.status();
  ParallelSizes sizes = Sizes(1, 1, 2);
  sizes.order = two->order;
  const RankGrid grid = *RankGrid::Create(sizes, 8);
  // A pipeline lies inside a node, and the first instance of either stage.
  EXPECT_LT(grid.PeersOf(0, {Axis::kPipeline}).back(), 4);
  for (const std::vector<int>& run : RunsOf(grid.Partition({Axis::kData}), 2))
    EXPECT_EQ(run.front() / 4, run.back() / 4);
}

TEST(ChooseRankOrderTest, GroupsOfInstancesHaveTheCostOfTheirRanks) {
  AxisTraffic within = Data(1e9), across = Data(1e9);
  within.runs = across.runs = 4;
  across.is_across = true;
  across.name = "dp across";
  // 16 data-parallel ranks on four nodes of 4: an instance is a node.
  const auto costs = CostsOfOrders(Nodes(4, 4), {within, across}, Sizes(1, 1, 1), 16);
  ASSERT_TRUE(costs.ok()) << costs.status();
  const OrderCost& cost = costs->front();
  ASSERT_EQ(cost.parts.size(), 2u);
  EXPECT_EQ(cost.parts[0].crossing, Crossing::kDomain);
  EXPECT_DOUBLE_EQ(
      cost.parts[0].seconds,
      2 * CollectiveSeconds(OfDomain(4), Ideal(), TrafficCall::kAllGather, {4, 1}, 1e9));
  EXPECT_EQ(cost.parts[1].crossing, Crossing::kNetwork);
  EXPECT_DOUBLE_EQ(
      cost.parts[1].seconds,
      2 * CollectiveSeconds(OfDomain(4), Ideal(), TrafficCall::kAllGather, {4, 4}, 1e9));
}

// Two nodes of 4 ranks, pipeline 2, data 4. Where pipelines lie inside a node, half of a group's
// ranks are on each of two nodes.
TEST(ChooseRankOrderTest, LevelsHaveTheCostOfLevels) {
  ParallelSizes sizes = Sizes(1, 1, 2);
  sizes.ranks_per_host = 4;
  AxisTraffic data = Data(4e9);
  const RankOrder inside = *RankOrder::Parse("pp-tp-cp-ep-dp");
  const auto seconds = [&](const RankOrder& order) {
    const auto costs = CostsOfOrders(Nodes(2, 4), {data, Messages(1)}, sizes, 8);
    EXPECT_TRUE(costs.ok()) << costs.status();
    for (const OrderCost& cost : *costs) {
      if (cost.order == order) return cost.parts[0].seconds;
    }
    return 0.0;
  };
  sizes.ranks_per_host = 0;
  const double flat = seconds(inside);
  EXPECT_DOUBLE_EQ(
      flat, 2 * CollectiveSeconds(OfDomain(4), Ideal(), TrafficCall::kAllGather, {4, 2}, 4e9));
  sizes.ranks_per_host = 4;
  // No level is used unless calls know it.
  EXPECT_EQ(seconds(inside), flat);
  data.hosts = AxisTraffic::Hosts::kLevels;
  const auto pass = [](const PlanGroup& group) {
    return [group](double bytes) {
      return CollectiveSeconds(OfDomain(4), Ideal(), TrafficCall::kAllGather, group, bytes);
    };
  };
  EXPECT_DOUBLE_EQ(seconds(inside), 2 * LevelSeconds(4e9, 2, pass({2, 1}), pass({2, 4})));
}

// An order in which no group has two levels can't be run.
TEST(ChooseRankOrderTest, OrdersWithoutLevelsAreLeftOut) {
  ParallelSizes sizes = Sizes(1, 1, 2);
  const auto orders = [&](int data) {
    const auto costs = CostsOfOrders(Nodes(2, 4), {Data(1e9)}, sizes, 2 * data);
    EXPECT_TRUE(costs.ok()) << costs.status();
    return costs->size();
  };
  EXPECT_EQ(orders(4), 120u);
  // With hosts of two ranks a pipeline that lies inside a host leaves one rank of a group there.
  sizes.ranks_per_host = 2;
  EXPECT_EQ(orders(4), 60u);
}

// Rows of tokens that go to each host once: to more hosts where experts lie on more of them.
TEST(ChooseRankOrderTest, DeduplicatedRowsGoToAsManyHostsAsExpertsLieOn) {
  ParallelSizes sizes = Sizes(1, 1, 1);
  sizes.expert = 8;
  sizes.ranks_per_host = 4;
  sizes.deduplicated_dispatch = true;
  AxisTraffic across = Collective("ep", {Axis::kTensor, Axis::kExpert}, 100, 1e8);
  across.is_of_experts = across.is_exchange = true;
  across.hosts = AxisTraffic::Hosts::kAcross;
  across.experts = 64;
  across.choices = 8;
  AxisTraffic within = across;
  within.name = "ep within";
  within.hosts = AxisTraffic::Hosts::kWithin;
  const auto costs = CostsOfOrders(Nodes(4, 4), {within, across}, sizes, 16);
  ASSERT_TRUE(costs.ok()) << costs.status();
  // In the default order the eight ranks are two nodes; where data varies first they are four.
  const auto check = [&](const OrderCost& cost, int64_t hosts) {
    ASSERT_EQ(cost.parts.size(), 2u);
    const auto seconds = [](int64_t ranks, int domain, double bytes) {
      return 100 * CollectiveSeconds(OfDomain(domain), Ideal(), TrafficCall::kAllToAll, {ranks, 1},
                                     bytes);
    };
    EXPECT_DOUBLE_EQ(cost.parts[0].seconds, seconds(8 / hosts, static_cast<int>(8 / hosts), 1e8));
    EXPECT_DOUBLE_EQ(cost.parts[1].seconds,
                     seconds(hosts, 1, 1e8 * ExpectedHosts(double(hosts), 64, 8)));
    EXPECT_EQ(cost.parts[1].crossing, Crossing::kNetwork);
  };
  check(costs->front(), 2);
  for (const OrderCost& cost : *costs) {
    if (cost.order == *RankOrder::Parse("dp-tp-cp-ep-pp")) check(cost, 4);
  }
}

TEST(ChooseRankOrderTest, RefusesNodesThatDiffer) {
  const auto choose = [](const MachineShape& shape) {
    return ChooseRankOrder(shape, {Tensor(1)}, Sizes(2, 1, 2), 8, /*is_written=*/false).status();
  };
  EXPECT_THAT(choose(Nodes(1, 4)), StatusIs(absl::StatusCode::kFailedPrecondition,
                                            HasSubstr("has 4 ranks, and the run 8")));
  MachineShape shape = Nodes(2, 4);
  shape.nodes[1].ranks = 5;
  EXPECT_THAT(choose(shape), StatusIs(absl::StatusCode::kFailedPrecondition,
                                      HasSubstr("nodes of 4 and of 5 ranks")));
  shape = Nodes(2, 4);
  shape.domain = 3;
  shape.node_gb_per_s = 1;
  EXPECT_THAT(choose(shape), StatusIs(absl::StatusCode::kFailedPrecondition,
                                      HasSubstr("domains of 3 ranks on nodes of 4")));
}

// A hundred thousand ranks take seconds, not minutes.
TEST(ChooseRankOrderTest, TakesWorldsOfAHundredThousandRanks) {
  const auto choice = ChooseRankOrder(Nodes(12500, 8), {Tensor(100000), Data(1e9), Messages(4)},
                                      Sizes(8, 5, 10), 100000, /*is_written=*/false);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->order.axes()[0], Axis::kTensor);
}

}  // namespace
}  // namespace megatron
