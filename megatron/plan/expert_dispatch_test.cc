#include "megatron/plan/expert_dispatch.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/plan/measured_kernels.h"
#include "megatron/plan/step_prediction.h"

namespace megatron {
namespace {

PlanModel Mixture(double experts, double choices) {
  PlanModel model;
  model.set_hidden(1024);
  model.set_experts(experts);
  model.set_experts_per_token(choices);
  return model;
}

// Two hosts of eight ranks.
PlanLayout TwoHosts() {
  PlanLayout layout;
  layout.dp = layout.ep = 16;
  layout.micro_batch = 2;
  layout.sequence = 4096;
  layout.ranks_per_host = 8;
  layout.deduplicates_dispatch = true;
  return layout;
}

Hardware Gpus(double network_gb_per_s) {
  Hardware gpu;
  gpu.set_link_gb_per_s(300);
  gpu.set_domain(8);
  gpu.set_network_gb_per_s(network_gb_per_s);
  return gpu;
}

Implementation Ideal() {
  Implementation program;
  program.set_link_efficiency(1);
  program.set_network_efficiency(1);
  return program;
}

TEST(ExpertDispatchTest, HostsOfATokenAreThoseOfRandomChoices) {
  std::mt19937 random(1);
  struct Case {
    int hosts, experts, choices;
  };
  for (const Case c :
       {Case{2, 8, 2}, Case{2, 64, 8}, Case{4, 16, 3}, Case{8, 256, 8}, Case{3, 12, 5}}) {
    std::vector<int> experts(c.experts);
    std::iota(experts.begin(), experts.end(), 0);
    constexpr int kTokens = 20000;
    int64_t hosts = 0;
    for (int token = 0; token < kTokens; ++token) {
      std::set<int> of_token;
      for (int i = 0; i < c.choices; ++i) {
        std::swap(experts[i], experts[i + random() % (c.experts - i)]);
        of_token.insert(experts[i] / (c.experts / c.hosts));
      }
      hosts += int64_t(of_token.size());
    }
    const double mean = double(hosts) / kTokens;
    EXPECT_NEAR(ExpectedHosts(c.hosts, c.experts, c.choices), mean, 0.01 * mean) << c.hosts;
  }
}

TEST(ExpertDispatchTest, OneChoiceIsOnOneHostAndAllAreOnAll) {
  EXPECT_DOUBLE_EQ(ExpectedHosts(4, 16, 1), 1);
  EXPECT_DOUBLE_EQ(ExpectedHosts(4, 16, 16), 4);
  EXPECT_DOUBLE_EQ(ExpectedHosts(4, 16, 13), 4);
  EXPECT_DOUBLE_EQ(ExpectedHosts(1, 16, 3), 1);
}

// docs/experts.md: with E = 64, K = 8 and two hosts a token has 0.998 other hosts.
TEST(ExpertDispatchTest, RowsAreThoseOfATokensHosts) {
  const ExpertRows rows = ExpertRowsOf(Mixture(64, 8), TwoHosts());
  EXPECT_EQ(rows.to_experts.ranks, 8);
  EXPECT_EQ(rows.to_experts.stride, 1);
  EXPECT_EQ(rows.across_hosts.ranks, 2);
  EXPECT_EQ(rows.across_hosts.stride, 8);
  EXPECT_EQ(rows.of_experts, 8192 * 8);
  EXPECT_NEAR(rows.of_hosts / 8192 / 2, 0.998, 5e-4);
  PlanLayout flat = TwoHosts();
  flat.deduplicates_dispatch = false;
  EXPECT_EQ(ExpertRowsOf(Mixture(64, 8), flat).to_experts.ranks, 16);
  EXPECT_EQ(ExpertRowsOf(Mixture(64, 8), flat).across_hosts.ranks, 1);
  EXPECT_EQ(ExpertRowsOf(Mixture(64, 8), flat).of_hosts, 0);
}

// On a slow network the calls take what each rank sends to other hosts, over the rate of its card:
// 4 rows of 2 KB for each token without, one of 2 KB and 8 (or 4) bytes a choice with it.
TEST(ExpertDispatchTest, ASlowNetworkTakesTheBytesThatCrossIt) {
  const PlanModel model = Mixture(64, 8);
  PlanLayout layout = TwoHosts();
  const Hardware slow = Gpus(0.01);
  const double hosts = ExpectedHosts(2, 64, 8);
  const double crossing = 8192 * hosts / 2 * (4 * 2048 + 3 * 4 * 8);
  EXPECT_NEAR(ExpertExchangeSeconds(slow, Ideal(), model, layout), crossing / 0.01e9,
              0.02 * crossing / 0.01e9);
  layout.deduplicates_dispatch = false;
  const double flat = 8192 * 8 * 0.5 * 4 * 2048;
  EXPECT_NEAR(ExpertExchangeSeconds(slow, Ideal(), model, layout), flat / 0.01e9,
              0.02 * flat / 0.01e9);
}

// Where fast links join all ranks there is nothing to save, and one choice has one host.
TEST(ExpertDispatchTest, ItTakesLongerWhereNothingIsSaved) {
  PlanLayout by_host = TwoHosts(), flat = TwoHosts();
  flat.deduplicates_dispatch = false;
  const auto saves = [&](const Hardware& gpu, const PlanModel& model) {
    return ExpertExchangeSeconds(gpu, Ideal(), model, by_host) <
           ExpertExchangeSeconds(gpu, Ideal(), model, flat);
  };
  EXPECT_TRUE(saves(Gpus(25), Mixture(64, 8)));
  EXPECT_FALSE(saves(Gpus(25), Mixture(64, 1)));
  Hardware joined = Gpus(25);
  joined.set_domain(16);
  EXPECT_FALSE(saves(joined, Mixture(64, 2)));
}

// Attention gathers and sums up activations, and so does a shared expert. What experts give is
// summed up where ranks don't share out rows.
TEST(ExpertDispatchTest, ExpertsGatherNoActivationsOfTensorParallelRanks) {
  Hardware gpu = Gpus(25);
  gpu.set_bf16_tflops(100);
  gpu.set_memory_gb_per_s(1000);
  Implementation program = Ideal();
  program.set_product_efficiency(1);
  program.set_attention_efficiency(1);
  program.set_memory_efficiency(1);
  PlanLayout layout;
  layout.tp = 4;
  layout.sequence = 4096;
  const auto seconds = [&](double experts, double shared) {
    PlanModel model = Mixture(experts, experts > 0 ? 2 : 0);
    model.set_layers(4);
    model.set_heads(16);
    model.set_kv_heads(16);
    model.set_head_dim(64);
    model.set_ffn(4096);
    model.set_vocab(1024);
    model.set_expert_ffn(512);
    model.set_shared_ffn(shared);
    const auto step = PredictStep(gpu, program, MeasuredKernels(), model, layout);
    EXPECT_TRUE(step.ok()) << step.status();
    return step->seconds.tensor_parallel;
  };
  const double summed = seconds(0, 0);
  EXPECT_NEAR(seconds(8, 0) / summed, 1, 1e-12);
  EXPECT_NEAR(seconds(8, 512) / summed, 1.5, 1e-12);
  layout.is_sequence_parallel = true;
  const double gathered = seconds(0, 0);
  EXPECT_NEAR(seconds(8, 0) / gathered, 0.5, 1e-12);
  EXPECT_NEAR(seconds(8, 512) / gathered, 1, 1e-12);
}

TEST(ExpertDispatchTest, ExpertsOnOneRankSendNothing) {
  PlanLayout layout = TwoHosts();
  layout.ep = 1;
  EXPECT_EQ(ExpertExchangeSeconds(Gpus(25), Ideal(), Mixture(64, 8), layout), 0);
}

}  // namespace
}  // namespace megatron
