#include "megatron/train/topology/axis_traffic.h"

#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/configs/config_loader.h"

namespace megatron {
namespace {

constexpr char kModel[] =
    "model { num_layers: 4 hidden_size: 64 num_attention_heads: 4 seq_length: 32 }\n"
    "optimizer { lr: 1e-3 }\n"
    "train { micro_batch_size: 2 global_batch_size: 16 train_iters: 1 }\n"
    "data { mock_data: true tokenizer_type: NullTokenizer vocab_size: 100 }\n";

std::vector<AxisTraffic> Of(const std::vector<std::string>& overrides) {
  const auto loaded = LoadConfigFromString(kModel, "x", overrides, ConfigPurpose::kDryRun);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  return loaded.ok() ? TrafficOf(loaded->config, 128) : std::vector<AxisTraffic>();
}

// Returns the bytes of all calls by axis.
std::map<std::string, double> Bytes(const std::vector<AxisTraffic>& rows) {
  std::map<std::string, double> bytes;
  for (const AxisTraffic& row : rows) bytes[row.name] += row.calls * row.bytes;
  return bytes;
}

TEST(AxisTrafficTest, TensorParallelRanksReduceTwiceALayerAndWay) {
  // 8 micro-batches of 64 tokens, 8 halves of an all-reduce of 64 channels in fp32 for each of 4
  // layers, 4 for the embedding and the head, and 6 of a number for each token's loss.
  const double losses = 8 * 6 * 64 * 4;
  EXPECT_EQ(Bytes(Of({"parallel.tensor_model_parallel_size=2"}))["tp"],
            8.0 * (4 * 8 + 4) * 64 * 64 * 4 + losses);
  // The gradients of 9 norms are added up, too.
  EXPECT_EQ(Bytes(Of({"parallel.tensor_model_parallel_size=2", "parallel.sequence_parallel=true",
                      "precision.bf16=true"}))["tp"],
            8.0 * (4 * 10 + 5) * 64 * 64 * 2 + losses + 2 * 9 * 64 * 4);
}

TEST(AxisTrafficTest, StagesSendAMicroBatchEachWay) {
  const auto rows =
      Of({"parallel.pipeline_model_parallel_size=2", "parallel.tensor_model_parallel_size=2",
          "parallel.sequence_parallel=true"});
  EXPECT_EQ(Bytes(rows)["pp"], 2.0 * 8 * 64 * 64 * 4 / 2);
  for (const AxisTraffic& row : rows) EXPECT_EQ(row.is_message, std::string(row.name) == "pp");
}

TEST(AxisTrafficTest, ContextParallelRanksSendKeysAndValuesAndTheirGradients) {
  // Half of the tokens: keys and values once forward and once backward, their gradients twice.
  EXPECT_EQ(Bytes(Of({"parallel.context_parallel_size=2"}))["cp"],
            8.0 * 4 * (2 + 2) * 32 * (2 * 64) * 4);
}

// The layers of a decoder have a second attention, with a norm.
TEST(AxisTrafficTest, AT5sDecoderAttendsToItsEncoder) {
  const std::vector<std::string> split = {"parallel.data_parallel_size=2"};
  std::vector<std::string> t5 = split;
  for (const char* change : {"model.model_type=t5", "model.num_layers=2",
                             "model.decoder_num_layers=2", "model.decoder_seq_length=32"}) {
    t5.push_back(change);
  }
  // Both halves of an all-reduce in fp32.
  EXPECT_EQ(Bytes(Of(t5))["dp"] - Bytes(Of(split))["dp"], 2.0 * 4 * 2 * (4 * 64 * 64 + 64));
}

TEST(AxisTrafficTest, CopiesOfWeightsReduceTheirGradients) {
  const double reduced = Bytes(Of({"parallel.data_parallel_size=2"}))["dp"];
  // Both halves of an all-reduce of fp32 gradients.
  const std::vector<std::string> sharded = {"parallel.data_parallel_size=2",
                                            "parallel.use_distributed_optimizer=true",
                                            "precision.bf16=true"};
  // Gradients are scattered in fp32, and weights gathered in bf16.
  EXPECT_DOUBLE_EQ(Bytes(Of(sharded))["dp"], reduced * 3 / 4);
  std::vector<std::string> all = sharded;
  all.push_back("parallel.data_parallel_sharding_strategy=optim_grads_params");
  // For each of 4 micro-batches: gradients once, weights twice, and a table of 128 words that is
  // tied to the head once more.
  EXPECT_DOUBLE_EQ(Bytes(Of(all))["dp"], reduced / 2 * 4 + reduced / 4 * 2 * 4 + 4 * 128 * 64 * 2);
}

TEST(AxisTrafficTest, InstancesExchangeWithinAndAcross) {
  const std::vector<std::string> flat = {"parallel.data_parallel_size=4",
                                         "parallel.use_distributed_optimizer=true"};
  std::vector<std::string> instances = flat;
  instances.push_back("parallel.num_distributed_optimizer_instances=2");
  double whole = 0, within = 0, across = 0;
  for (const AxisTraffic& row : Of(flat)) {
    EXPECT_EQ(row.runs, 1);
    whole += row.calls * row.bytes;
  }
  for (const AxisTraffic& row : Of(instances)) {
    EXPECT_EQ(row.runs, 2);
    (row.is_across ? across : within) += row.calls * row.bytes;
  }
  // Gradients are scattered and weights gathered within an instance, of whole tensors; a half of
  // the gradients is all-reduced between the two.
  EXPECT_DOUBLE_EQ(within, whole);
  EXPECT_DOUBLE_EQ(across, whole / 2);
}

TEST(AxisTrafficTest, LevelsAreToldAndDeduplicatedRowsGoToOneHostEach) {
  const std::vector<std::string> mixture = {"model.num_experts=8",
                                            "model.moe_router_topk=4",
                                            "model.disable_bias_linear=true",
                                            "parallel.data_parallel_size=4",
                                            "parallel.expert_model_parallel_size=4",
                                            "parallel.hierarchical_collectives_ranks_per_host=2"};
  for (const AxisTraffic& row : Of(mixture)) {
    EXPECT_EQ(row.hosts, std::string(row.name) == "dp" ? AxisTraffic::Hosts::kLevels
                                                       : AxisTraffic::Hosts::kNone);
  }
  std::vector<std::string> deduplicated = mixture;
  deduplicated.push_back("parallel.moe_deduplicated_dispatch=true");
  double within = 0, across = 0;
  for (const AxisTraffic& row : Of(deduplicated)) {
    if (std::string(row.name) != "ep") continue;
    EXPECT_TRUE(row.is_exchange);
    (row.hosts == AxisTraffic::Hosts::kWithin ? within : across) += row.calls * row.bytes;
    if (row.hosts != AxisTraffic::Hosts::kAcross) continue;
    EXPECT_EQ(row.experts, 8);
    EXPECT_EQ(row.choices, 4);
  }
  // 2 micro-batches of 64 tokens in 4 layers, there and back, forward and backward: to 4 experts
  // each, and to one host with 8 bytes for each of 4 choices, of which 4 come back.
  EXPECT_EQ(within, 2.0 * 4 * 4 * (64 * 4) * 64 * 4);
  EXPECT_NEAR(across / (2.0 * 4 * 64 * (4 * 64 * 4 + 3 * 4 * 4)), 1, 1e-12);
}

// Two layers of a hybrid model, one with attention and one with the rest, send what one layer with
// both does.
TEST(AxisTrafficTest, LayersOfOneBranchSendWhatTheirBranchDoes) {
  const auto expect_same = [](std::vector<std::string> whole, const std::string& pattern) {
    std::vector<std::string> branches = whole;
    whole.push_back("model.num_layers=2");
    branches.push_back("model.hybrid_layer_pattern=" + pattern);
    EXPECT_EQ(Bytes(Of(branches)), Bytes(Of(whole))) << whole.front();
  };
  expect_same({"parallel.tensor_model_parallel_size=2", "parallel.sequence_parallel=true"}, "*-*-");
  expect_same({"parallel.context_parallel_size=2"}, "*-*-");
  expect_same({"parallel.data_parallel_size=2"}, "*-*-");
  expect_same({"parallel.pipeline_model_parallel_size=2", "parallel.data_parallel_size=2"}, "*-*-");
  expect_same({"model.num_experts=4", "model.disable_bias_linear=true",
               "parallel.data_parallel_size=4", "parallel.expert_model_parallel_size=2"},
              "*E*E");
}

TEST(AxisTrafficTest, GatesOfAttentionAreLeftOut) {
  std::vector<std::string> set = {"parallel.tensor_model_parallel_size=2",
                                  "parallel.data_parallel_size=2"};
  const auto without = Bytes(Of(set));
  set.push_back("model.attention_output_gate=true");
  EXPECT_EQ(Bytes(Of(set)), without);
}

TEST(AxisTrafficTest, ExpertsExchangeTheirRowsAndReduceAmongThemselves) {
  const std::vector<std::string> mixture = {"model.num_experts=4",
                                            "model.moe_router_topk=2",
                                            "model.disable_bias_linear=true",
                                            "model.moe_layer_freq=\"[0,1]*2\"",
                                            "parallel.data_parallel_size=4",
                                            "parallel.expert_model_parallel_size=2"};
  const auto rows = Of(mixture);
  // 2 micro-batches of 64 tokens, to two experts each, there and back, forward and backward.
  EXPECT_EQ(Bytes(rows)["ep"], 2.0 * 2 * 4 * (64 * 2) * 64 * 4);
  double of_experts = 0;
  for (const AxisTraffic& row : rows) {
    if (row.is_of_experts && std::string(row.name) == "dp") of_experts += row.calls * row.bytes;
  }
  // Two of four experts on a rank, in two layers, of two matrices.
  EXPECT_EQ(of_experts, 2.0 * 4 * (2 * 2) * 2 * 64 * 256);
}

}  // namespace
}  // namespace megatron
