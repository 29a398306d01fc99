#include "megatron/plan/collective_time.h"

#include <cmath>

#include "gtest/gtest.h"

namespace megatron {
namespace {

Hardware Gpu() {
  Hardware gpu;
  gpu.set_link_gb_per_s(300);
  gpu.set_domain(8);
  gpu.set_network_gb_per_s(25);
  return gpu;
}

Implementation Ideal() {
  Implementation program;
  program.set_link_efficiency(1);
  program.set_network_efficiency(1);
  return program;
}

// Seconds of a byte more, without latencies.
double SecondsOfAByte(const PlanGroup& group) {
  return (CollectiveSeconds(Gpu(), Ideal(), TrafficCall::kAllGather, group, 2e12) -
          CollectiveSeconds(Gpu(), Ideal(), TrafficCall::kAllGather, group, 1e12)) /
         1e12;
}

// All-reduces inside one A100 node, by nccl-tests: microseconds of a latency and GB/s.
TEST(CollectiveTimeTest, AgreesWithMeasuredAllReduces) {
  Implementation program = Ideal();
  program.set_link_efficiency(0.818);
  struct Measured {
    int64_t ranks;
    double latency_us;
    double rate;
  };
  for (const Measured& m : {Measured{2, 40, 188}, Measured{4, 45, 210}, Measured{8, 80, 228}}) {
    for (double bytes : {16e6, 128e6, 1e9}) {
      const double ring = 2.0 * (m.ranks - 1) / m.ranks;
      const double measured = m.latency_us * 1e-6 + ring * bytes / (m.rate * 1e9);
      const double predicted =
          2 * CollectiveSeconds(Gpu(), program, TrafficCall::kAllGather, {m.ranks, 1}, bytes);
      EXPECT_NEAR(predicted, measured, 0.05 * measured) << m.ranks << " ranks, " << bytes;
    }
  }
}

TEST(CollectiveTimeTest, OneRankTakesNoTime) {
  EXPECT_EQ(CollectiveSeconds(Gpu(), Ideal(), TrafficCall::kAllGather, {1, 1}, 1e9), 0);
}

// Where a group crosses nodes with k ranks in each, k network cards work for it.
TEST(CollectiveTimeTest, RanksOfANodeShareItsCards) {
  EXPECT_NEAR(SecondsOfAByte({16, 8}), 15.0 / 16 / 25e9, 1e-15);
  EXPECT_NEAR(SecondsOfAByte({16, 4}), 15.0 / 16 / 50e9, 1e-15);
  EXPECT_NEAR(SecondsOfAByte({16, 1}), 15.0 / 16 / 200e9, 1e-15);
  EXPECT_EQ(RanksInDomain({16, 8}, 8), 1);
  EXPECT_EQ(RanksInDomain({16, 2}, 8), 4);
  EXPECT_EQ(RanksInDomain({2, 2}, 8), 2);
}

// In an all-to-all each rank sends what leaves the node over its own card, and a ring enters it
// once.
TEST(CollectiveTimeTest, AllToAllsLeaveANodeOverTheCardOfEachRank) {
  const auto seconds = [](const PlanGroup& group, double bytes) {
    return CollectiveSeconds(Gpu(), Ideal(), TrafficCall::kAllToAll, group, bytes);
  };
  const auto of_a_byte = [&](const PlanGroup& group) {
    return (seconds(group, 2e12) - seconds(group, 1e12)) / 1e12;
  };
  EXPECT_NEAR(of_a_byte({16, 1}), 8.0 / 16 / 25e9, 1e-15);
  EXPECT_NEAR(of_a_byte({16, 8}), 15.0 / 16 / 25e9, 1e-15);
  EXPECT_EQ(seconds({8, 1}, 1e9),
            CollectiveSeconds(Gpu(), Ideal(), TrafficCall::kAllGather, {8, 1}, 1e9));
}

// Each of 16 processor ranks in two nodes sends its share to the 8 ranks of the other node.
TEST(CollectiveTimeTest, RanksOfProcessorsSendToEachRankOfAnotherNode) {
  Hardware cpu = Gpu();
  cpu.set_cores(8);
  const auto seconds = [&](double bytes) {
    return CollectiveSeconds(cpu, Ideal(), TrafficCall::kAllGather, {16, 1}, bytes);
  };
  EXPECT_NEAR((seconds(2e12) - seconds(1e12)) / 1e12, 8.0 / 16 / 25e9, 1e-15);
  // One rank on each node sends as much as a ring does.
  EXPECT_EQ(CollectiveSeconds(cpu, Ideal(), TrafficCall::kAllGather, {16, 8}, 1e12),
            CollectiveSeconds(Gpu(), Ideal(), TrafficCall::kAllGather, {16, 8}, 1e12));
}

// Threads meet once for a sum, and read each other's memory; processes and GPUs send twice.
TEST(CollectiveTimeTest, ThreadsMeetOnceAndReadEachOthersMemory) {
  Hardware cpu = Gpu();
  cpu.set_cores(8);
  cpu.set_link_latency_us(50);
  cpu.set_link_rank_latency_us(5);
  cpu.set_network_latency_us(70);
  const auto microseconds = [&](TrafficCall call, double bytes) {
    return 1e6 * CollectiveSeconds(cpu, Ideal(), call, {4, 1}, bytes);
  };
  EXPECT_NEAR(microseconds(TrafficCall::kAllGather, 0), 70, 1e-9);
  EXPECT_NEAR(microseconds(TrafficCall::kAllReduce, 0), 70, 1e-9);
  // Each reads a tensor and writes one, or a quarter of it.
  const double whole = 1e6 * 1e9 / (cpu.link_gb_per_s() * 1e9);
  for (const TrafficCall call :
       {TrafficCall::kAllReduce, TrafficCall::kAllGather, TrafficCall::kAllToAll}) {
    EXPECT_NEAR(microseconds(call, 1e9) - 70, whole, 1e-6);
  }
  EXPECT_NEAR(microseconds(TrafficCall::kReduceScatter, 1e9) - 70, whole * 5 / 8, 1e-6);
  cpu.set_domain(1);
  EXPECT_NEAR(microseconds(TrafficCall::kAllReduce, 0), 2 * 140, 1e-9);
  cpu.set_cores(0);
  cpu.set_domain(8);
  EXPECT_NEAR(microseconds(TrafficCall::kAllReduce, 0), 2 * 70, 1e-9);
}

// A thread of its own takes over as long as two threads need to meet, unless that was measured.
TEST(CollectiveTimeTest, ThreadsBesideComputingTakeLonger) {
  Hardware cpu = Gpu();
  EXPECT_EQ(LaneSeconds(cpu), 0);
  cpu.set_cores(8);
  cpu.set_link_latency_us(50);
  cpu.set_link_rank_latency_us(5);
  EXPECT_NEAR(LaneSeconds(cpu), 60e-6, 1e-12);
  cpu.set_lane_latency_us(20);
  EXPECT_NEAR(LaneSeconds(cpu), 20e-6, 1e-12);
}

TEST(CollectiveTimeTest, MessagesBetweenNodesTakeTheNetwork) {
  const double inside = MessageSeconds(Gpu(), Ideal(), 4, 3e9);
  const double between = MessageSeconds(Gpu(), Ideal(), 8, 3e9);
  EXPECT_NEAR(inside, 0.01, 1e-4);
  EXPECT_NEAR(between, 0.12, 1e-4);
}

// Two blocks of two neighbours, eight ranks apart; a domain may join a part of a block, one, or
// all.
TEST(CollectiveTimeTest, RanksLieInBlocks) {
  const PlanGroup group = {4, 1, 2, 8};
  EXPECT_EQ(RanksInDomain(group, 1), 1);
  EXPECT_EQ(RanksInDomain(group, 2), 2);
  EXPECT_EQ(RanksInDomain(group, 8), 2);
  EXPECT_EQ(RanksInDomain(group, 16), 4);
  EXPECT_EQ(RanksInDomain({4, 2, 0, 0}, 4), 2);
}

}  // namespace
}  // namespace megatron
