#include "megatron/train/topology/topology_file.h"

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

constexpr char kTwoNodes[] =
    "node { host: 'gpu01' ranks: 8 }\n"
    "node { host: 'gpu02' ranks: 8 rails: 4 }\n"
    "domain_gb_per_s: 300 rail_gb_per_s: 48\n";

TEST(TopologyFileTest, AMachineIsADomainAndRanksHaveACardEachUnlessTold) {
  const auto shape = ParseTopology(kTwoNodes);
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_EQ(shape->ranks(), 16);
  EXPECT_EQ(shape->domain, 8);
  EXPECT_EQ(shape->nodes[0].host, "gpu01");
  EXPECT_EQ(shape->nodes[0].rails, 8);
  EXPECT_EQ(shape->nodes[1].rails, 4);
  EXPECT_EQ(shape->domain_gb_per_s, 300);
  EXPECT_EQ(shape->rail_gb_per_s, 48);
}

TEST(TopologyFileTest, WhatReachesWithoutANetworkCardIsANodeOrADomainOfSeveral) {
  EXPECT_EQ(
      ParseTopology("node { ranks: 8 } domain: 4 domain_gb_per_s: 1 node_gb_per_s: 1")->reach(), 8);
  EXPECT_EQ(
      ParseTopology("node { ranks: 4 } node { ranks: 4 } domain: 8 domain_gb_per_s: 1")->reach(),
      8);
}

TEST(TopologyFileTest, ReadsWhatItWrites) {
  MachineShape shape = *ParseTopology(kTwoNodes);
  shape.nodes[0].host = "a \"quoted\"\nhost";
  shape.domain = 2;
  shape.node_gb_per_s = 1.0 / 3;
  const auto again = ParseTopology(FormatTopology(shape));
  ASSERT_TRUE(again.ok()) << again.status() << FormatTopology(shape);
  EXPECT_EQ(FormatTopology(*again), FormatTopology(shape));
  EXPECT_EQ(again->nodes[0].host, shape.nodes[0].host);
  EXPECT_EQ(again->node_gb_per_s, 1.0 / 3);
}

TEST(TopologyFileTest, NamesWhatIsWrong) {
  const struct {
    const char *text, *error;
  } cases[] = {
      {"", "there is no node"},
      {"node { ranks: 8", "line 1"},
      {"node { gpus: 8 }", "gpus"},
      {"node { ranks: 0 }", "node.ranks: 0"},
      {"node { ranks: -8 }", "node.ranks: -8"},
      {"node { ranks: 9223372036854775807 } node { ranks: 1 }", "node.ranks: 9223372036854775807"},
      {"node { ranks: 9000000 } node { ranks: 9000000 }", "the sum of node.ranks: 18000000"},
      {"node { ranks: 8 rails: 0 } domain_gb_per_s: 1", "node.rails: 0"},
      {"node { ranks: 8 } domain: 0", "domain: 0"},
      {"node { ranks: 8 }", "domain_gb_per_s is missing"},
      {"node { ranks: 8 } domain: 4 domain_gb_per_s: 1", "node_gb_per_s is missing"},
      {"node { ranks: 1 } node { ranks: 1 }", "rail_gb_per_s is missing"},
      {"node { ranks: 8 } domain_gb_per_s: -1", "domain_gb_per_s: -1"},
      {"node { ranks: 8 } domain_gb_per_s: nan", "domain_gb_per_s: nan"},
      {"node { ranks: 8 } domain_gb_per_s: inf", "domain_gb_per_s: inf"},
  };
  for (const auto& each : cases) {
    EXPECT_THAT(ParseTopology(each.text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(each.error)))
        << each.text;
  }
}

}  // namespace
}  // namespace megatron
