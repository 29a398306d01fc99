// Tests what attention and MLPs in chunks cost (megatron/plan/layer_costs.cc).

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "megatron/plan/layer_costs.h"
#include "megatron/plan/measured_kernels.h"
#include "megatron/plan/step_prediction.h"
#include "megatron/plan/step_traffic.h"
#include "megatron/plan/update_seconds.h"

namespace megatron {
namespace {

constexpr double kHidden = 1024, kTokens = 65536;

class LayerChunksTest : public testing::Test {
 protected:
  LayerChunksTest() {
    gpu_.set_name("mine");
    gpu_.set_bf16_tflops(400);
    gpu_.set_memory_gb_per_s(1e9);  // merging takes no time
    gpu_.set_memory_gib(80);
    gpu_.set_link_gb_per_s(100);
    gpu_.set_domain(8);
    gpu_.set_host_link_gb_per_s(25);
    program_.set_is_fused(true);
    program_.set_product_efficiency(1);
    program_.set_attention_efficiency(1);
    program_.set_memory_efficiency(1);
    program_.set_link_efficiency(1);
    program_.set_network_efficiency(1);
    model_.set_layers(1);
    model_.set_hidden(kHidden);
    model_.set_ffn(4 * kHidden);
    model_.set_heads(8);
    model_.set_kv_heads(8);
    model_.set_head_dim(128);
    model_.set_vocab(1000);
    layout_.sequence = int64_t(kTokens);
  }

  LayerCosts Costs() const {
    return LayerPredictor(gpu_, program_, kernels_, model_, layout_).Layer(/*is_mixture=*/false);
  }

  Hardware gpu_;
  Implementation program_;
  PlanModel model_;
  MeasuredKernels kernels_;
  PlanLayout layout_;
};

// docs/long_sequences.md: 16,000 tokens forward and 22,400 backward hide what a link of 25 GB/s
// carries, beside 400 TFLOP/s.
TEST_F(LayerChunksTest, LargeChunksHideWhatComesFromTheHostAndSmallOnesDoNot) {
  const LayerCosts whole = Costs();
  layout_.attention_chunk = 32768;
  const LayerCosts chunks = Costs();
  EXPECT_NEAR(chunks.forward, whole.forward, 1e-6 * whole.forward);
  layout_.attention_chunks_on_host = true;
  EXPECT_NEAR(Costs().forward, whole.forward, 1e-6 * whole.forward);
  EXPECT_NEAR(Costs().backward, whole.backward, 1e-6 * whole.backward);
  layout_.attention_chunk = 4096;
  // Each chunk meets 7.5 others on average: 4 bytes of keys and values come forward, and backward
  // 10 while a sum of 4 goes back.
  const double copies = 7.5 * 4 * kTokens * kHidden / 25e9;
  const double attention = 4 * kTokens * kTokens * kHidden / 400e12 * 15 / 16;
  EXPECT_NEAR(Costs().forward - whole.forward, copies - attention, 1e-3 * copies);
  EXPECT_NEAR(Costs().backward - whole.backward,
              7.5 * 10 * kTokens * kHidden / 25e9 - 2.5 * attention, 1e-3 * copies);
}

TEST_F(LayerChunksTest, MergingPassesOverTheMemory) {
  const LayerCosts whole = Costs();
  layout_.attention_chunk = 16384;
  gpu_.set_memory_gb_per_s(1000);
  layout_.attention_chunk = 0;
  const LayerCosts before = Costs();
  layout_.attention_chunk = 16384;
  EXPECT_GT(before.forward, whole.forward);
  EXPECT_NEAR(Costs().forward - before.forward, 1.5 * 10 * kTokens * kHidden / 1e12, 1e-9);
  EXPECT_NEAR(Costs().backward - before.backward, 1.5 * 12 * 3 * kTokens * kHidden / 1e12, 1e-9);
}

TEST_F(LayerChunksTest, RanksExchangeOutputsOnceMore) {
  layout_.cp = 4;
  layout_.context = PlanContext::kAllToAll;
  TrafficStage stage;
  stage.layers.dense = 1;
  const auto sent = [&] {
    double bytes = 0;
    for (const TrafficRow& row : StepTraffic(program_, model_, layout_, stage)) {
      if (row.axis == TrafficAxis::kContext) bytes += SentBytes(row);
    }
    return bytes;
  };
  const double at_once = sent();
  const LayerCosts whole = Costs();
  layout_.attention_chunk = 16384;
  EXPECT_DOUBLE_EQ(sent() - at_once, 0.75 * 2 * kTokens / 4 * kHidden);
  EXPECT_GT(Costs().context_backward, whole.context_backward);
  EXPECT_EQ(Costs().context_forward, whole.context_forward);
}

TEST_F(LayerChunksTest, AnMlpInChunksComputesItsFirstProductAgain) {
  const LayerCosts whole = Costs();
  layout_.mlp_chunk = 4096;
  const double product = 2 * kTokens * kHidden * 4 * kHidden / 400e12;
  EXPECT_NEAR(Costs().backward - whole.backward, product, 1e-3 * product);
  EXPECT_EQ(Costs().forward, whole.forward);
  // 8 hidden states are there for one chunk.
  EXPECT_EQ(whole.saved_bytes - Costs().saved_bytes, 8 * 2 * kTokens * kHidden);
  EXPECT_EQ(Costs().widest, whole.widest / 16);
}

TEST_F(LayerChunksTest, LogitsInChunksTakeTheMemoryOfOne) {
  const auto bytes = [&] {
    const auto step = PredictStep(gpu_, program_, kernels_, model_, layout_);
    EXPECT_TRUE(step.ok()) << step.status();
    return step->memory_bytes;
  };
  const double whole = bytes();
  layout_.logits_chunk = 1024;
  EXPECT_NEAR(whole - bytes(), 2 * (kTokens - 1024) * model_.vocab(), 1);
  layout_.logits_chunk = 2 * int64_t(kTokens);
  EXPECT_EQ(bytes(), whole);
}

// A layer keeps 12 of 16 hidden states, since attention's 4 are on the host already. They wait for
// the link, which is busy with 4 bytes of keys and values forward and 10 bytes backward.
TEST_F(LayerChunksTest, LayersThatLeaveWaitForChunksThatCome) {
  layout_.attention_chunk = 4096;
  layout_.attention_chunks_on_host = true;
  layout_.activations_on_host = true;
  const LayerCosts layer = Costs();
  EXPECT_EQ(layer.host_bytes, 12 * 2 * kTokens * kHidden);
  const double copy = layer.host_bytes / 25e9, of_channel = 7.5 * kTokens * kHidden / 25e9;
  EXPECT_NEAR(layer.forward, copy + 4 * of_channel, 1e-6);
  EXPECT_NEAR(layer.backward, copy + 10 * of_channel, 1e-6);
  // What is computed again meets the chunks again, and only inputs leave.
  EXPECT_NEAR(layer.link_seconds, 14 * of_channel, 1e-6);
  layout_.recompute = PlanRecompute::kFull;
  EXPECT_NEAR(Costs().link_seconds, 18 * of_channel, 1e-6);
  EXPECT_EQ(Costs().host_bytes, 2 * kTokens * kHidden);
}

TEST_F(LayerChunksTest, WeightsOnTheHostWaitForChunks) {
  layout_.host_fraction = 1;
  layout_.weights_on_host = true;
  const RankRates rates = RatesOf(gpu_, program_, layout_);
  LayerCosts layer;
  layer.parameters = 1e9;
  const auto waits = [&] {
    return FetchSeconds(gpu_, program_, layout_, rates, layer, /*layers=*/2, /*table=*/0,
                        /*window=*/0.1);
  };
  const double alone = waits();
  layer.link_seconds = 0.25;
  EXPECT_NEAR(waits() - alone, 2 * 0.25, 1e-9);
}

TEST_F(LayerChunksTest, AnUnknownLinkOfTheHostIsRefused) {
  gpu_.clear_host_link_gb_per_s();
  layout_.attention_chunk = 4096;
  EXPECT_TRUE(PredictStep(gpu_, program_, kernels_, model_, layout_).ok());
  layout_.attention_chunks_on_host = true;
  EXPECT_EQ(PredictStep(gpu_, program_, kernels_, model_, layout_).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace megatron
