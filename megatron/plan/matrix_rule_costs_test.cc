#include "megatron/plan/muon_costs.h"

#include "gtest/gtest.h"

namespace megatron {
namespace {

constexpr double kHidden = 1024;
constexpr double kCube = kHidden * kHidden * kHidden;

PlanModel Gpt() {
  PlanModel model;
  model.set_layers(8);
  model.set_hidden(kHidden);
  model.set_ffn(4 * kHidden);
  model.set_heads(16);
  model.set_kv_heads(16);
  model.set_head_dim(64);
  model.set_vocab(1000);
  return model;
}

PlanLayout Muon() {
  PlanLayout layout;
  layout.muon_steps = 5;
  return layout;
}

MuonLayer CostsOf(const PlanLayout& layout, bool shares = true) {
  Implementation program;
  program.set_shards_optimizer(shares);
  return MuonLayerCosts(program, Gpt(), layout, /*is_mixture=*/false);
}

TEST(MuonCostsTest, AdamWTakesNone) {
  const MuonLayer layer = CostsOf(PlanLayout());
  EXPECT_EQ(layer.flops, 0);
  EXPECT_TRUE(layer.traffic.empty());
  EXPECT_EQ(layer.dense_padding, 1);
}

// Four square matrices, and two that are four times as wide.
TEST(MuonCostsTest, OneRankIteratesOnAllMatrices) {
  EXPECT_DOUBLE_EQ(CostsOf(Muon()).flops, 5 * (4 * 6 + 2 * 18) * kCube);
  PlanLayout fused = Muon();
  fused.muon_splits_qkv = false;
  EXPECT_DOUBLE_EQ(CostsOf(fused).flops, 5 * (14 + 6 + 2 * 18) * kCube);
  PlanLayout copies = Muon();
  copies.dp = 8;
  EXPECT_EQ(CostsOf(copies, /*shares=*/false).flops, CostsOf(Muon()).flops);
  EXPECT_DOUBLE_EQ(CostsOf(copies, /*shares=*/false).dense_padding, 8 * 4 / 12.0);
}

// docs/optimizers.md, "ZeRO": 7 h^2 of 12 on each of two ranks, 4 h^2 on four and on eight.
TEST(MuonCostsTest, RanksHaveWholeWeightsAndPadding) {
  PlanLayout layout = Muon();
  layout.dp = 2;
  EXPECT_DOUBLE_EQ(CostsOf(layout).dense_padding, 2 * 7 / 12.0);
  EXPECT_DOUBLE_EQ(CostsOf(layout).flops, 5 * (3 * 6 + 18) * kCube);
  layout.dp = 4;
  EXPECT_DOUBLE_EQ(CostsOf(layout).dense_padding, 4 * 4 / 12.0);
  layout.dp = 8;
  EXPECT_DOUBLE_EQ(CostsOf(layout).dense_padding, 8 * 4 / 12.0);
  EXPECT_DOUBLE_EQ(CostsOf(layout).flops, 5 * 18 * kCube);
  layout.instances = 4;
  EXPECT_DOUBLE_EQ(CostsOf(layout).dense_padding, 2 * 7 / 12.0);
}

TEST(MuonCostsTest, TensorParallelRanksTakeBlocksOrAllOrGramMatrices) {
  PlanLayout layout = Muon();
  layout.tp = 2;
  // Halves of h: 4 h^2 / 4 h + 2 h^3 / 8.
  EXPECT_DOUBLE_EQ(CostsOf(layout).flops, 5 * (4 * 1.25 + 2 * 10) * kCube);
  EXPECT_TRUE(CostsOf(layout).traffic.empty());
  layout.muon_mode = PlanMuonMode::kDuplicated;
  EXPECT_DOUBLE_EQ(CostsOf(layout).flops, CostsOf(Muon()).flops);
  double gathered = 0;
  for (const TrafficRow& row : CostsOf(layout).traffic) {
    if (row.call == TrafficCall::kAllGather) gathered += row.bytes;
  }
  EXPECT_DOUBLE_EQ(gathered, 2 * 12 * kHidden * kHidden);
  layout.muon_mode = PlanMuonMode::kDistributed;
  EXPECT_DOUBLE_EQ(CostsOf(layout).flops, 5 * (4 * 4 + 2 * 10) * kCube);
  double reduced = 0;
  for (const TrafficRow& row : CostsOf(layout).traffic) reduced += row.calls * row.bytes;
  EXPECT_DOUBLE_EQ(reduced, 6 * (5 * 4 * kHidden * kHidden + 4));
}

TEST(MuonCostsTest, AnUpdateTakesItsOperationsOverTheRateOfProducts) {
  Hardware gpu;
  gpu.set_bf16_tflops(100);
  gpu.set_fp32_tflops(10);
  Implementation program;
  program.set_product_efficiency(0.5);
  PlanLayout layout = Muon();
  const double in_16_bits = MuonLayerSeconds(gpu, program, Gpt(), layout, false);
  EXPECT_DOUBLE_EQ(in_16_bits, 300 * kCube / 50e12);
  layout.muon_in_16_bits = false;
  EXPECT_DOUBLE_EQ(MuonLayerSeconds(gpu, program, Gpt(), layout, false), 10 * in_16_bits);
}

}  // namespace
}  // namespace megatron
