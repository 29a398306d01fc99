#include "megatron/plan/matrix_rule_costs.h"

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

MatrixRuleLayer CostsOf(const PlanLayout& layout, bool shares = true) {
  Implementation program;
  program.set_shards_optimizer(shares);
  return MatrixRuleCosts(program, Gpt(), layout, /*is_mixture=*/false);
}

TEST(MatrixRuleCostsTest, AdamWTakesNone) {
  const MatrixRuleLayer layer = CostsOf(PlanLayout());
  EXPECT_EQ(layer.flops, 0);
  EXPECT_TRUE(layer.traffic.empty());
  EXPECT_EQ(layer.dense_padding, 1);
}

// Four square matrices, and two that are four times as wide.
TEST(MatrixRuleCostsTest, OneRankIteratesOnAllMatrices) {
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
TEST(MatrixRuleCostsTest, RanksHaveWholeWeightsAndPadding) {
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

TEST(MatrixRuleCostsTest, TensorParallelRanksTakeBlocksOrAllOrGramMatrices) {
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

PlanLayout Lamb() {
  PlanLayout layout;
  layout.is_lamb = true;
  return layout;
}

// Weights are whole as Muon's are, and a word table lies on one rank.
TEST(MatrixRuleCostsTest, LambPadsTablesTooAndSumsTwoNormsOfEachCutMatrix) {
  PlanLayout layout = Lamb();
  layout.dp = 2;
  EXPECT_EQ(CostsOf(layout).flops, 0);
  EXPECT_DOUBLE_EQ(CostsOf(layout).dense_padding, 2 * 7 / 12.0);
  EXPECT_EQ(CostsOf(layout).table_padding, 2);
  EXPECT_EQ(CostsOf(Muon()).table_padding, 1);
  EXPECT_TRUE(CostsOf(layout).traffic.empty());
  layout.tp = 4;
  double calls = 0;
  for (const TrafficRow& row : CostsOf(layout).traffic) {
    EXPECT_EQ(row.group.ranks, 4);
    calls += row.calls;
  }
  EXPECT_EQ(calls, 2 * 4);  // queries, keys and values are one matrix
}

// The passes of optim/rules/lamb_rule.cc: AdamW's 26 bytes; the step is zeros first (4); decay is
// copied, scaled, added (28); of matrices weights, step and result are copied (24); both norms read
// 8; ratio and rate scale (16); the step is added (12); weights come from masters (4).
TEST(MatrixRuleCostsTest, LambPassesOverMoreMemory) {
  EXPECT_EQ(UpdatedBytes(Muon(), false), 26);
  EXPECT_EQ(UpdatedBytes(Lamb(), true), 26 + 4 + 28 + 8 + 16 + 12 + 4);
  EXPECT_EQ(UpdatedBytes(Lamb(), false), 26 + 4 + 28 + 24 + 8 + 16 + 12 + 4);
}

TEST(MatrixRuleCostsTest, AnUpdateTakesItsOperationsOverTheRateOfProducts) {
  Hardware gpu;
  gpu.set_bf16_tflops(100);
  gpu.set_fp32_tflops(10);
  Implementation program;
  program.set_product_efficiency(0.5);
  PlanLayout layout = Muon();
  const double in_16_bits = MatrixRuleSeconds(gpu, program, Gpt(), layout, false);
  EXPECT_DOUBLE_EQ(in_16_bits, 300 * kCube / 50e12);
  layout.muon_in_16_bits = false;
  EXPECT_DOUBLE_EQ(MatrixRuleSeconds(gpu, program, Gpt(), layout, false), 10 * in_16_bits);
}

}  // namespace
}  // namespace megatron
