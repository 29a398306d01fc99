#include "megatron/train/planning/memory_estimate.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "megatron/plan/tensor_grid_traffic.h"
#include "megatron/train/config/config_defaults.h"
#include "megatron/train/config/config_parser.h"
#include "megatron/train/planning/layout_axes.h"
#include "megatron/train/trainer/run_options.h"
#include "megatron/train/trainer/run_plan.h"
#include "megatron/train/validate/validate.h"

namespace megatron {
namespace {

constexpr int64_t kVocab = 1000;

constexpr char kDense[] = R"(
  model { num_layers: 12 hidden_size: 256 num_attention_heads: 8 seq_length: 512 }
  precision { bf16: true })";
constexpr char kGated[] = R"(
  model { num_layers: 10 hidden_size: 256 num_attention_heads: 8 group_query_attention: true
          num_query_groups: 4 seq_length: 512 position_embedding_type: rope normalization: RMSNorm
          swiglu: true disable_bias_linear: true untie_embeddings_and_output_weights: true
          hidden_dropout: 0 attention_dropout: 0 ffn_hidden_size: 768 })";
constexpr char kExperts[] = R"(
  model { num_layers: 8 hidden_size: 256 num_attention_heads: 8 seq_length: 512
          position_embedding_type: rope normalization: RMSNorm swiglu: true
          disable_bias_linear: true untie_embeddings_and_output_weights: true
          hidden_dropout: 0 attention_dropout: 0 num_experts: 8 moe_ffn_hidden_size: 256
          moe_router_topk: 2 moe_layer_freq: "[0]*2+[1]*6" }
  precision { bf16: true })";
constexpr char kLong[] = R"(
  model { num_layers: 12 hidden_size: 256 num_attention_heads: 8 seq_length: 2048
          position_embedding_type: rope disable_bias_linear: true }
  precision { bf16: true }
  recompute { mlp_chunk_tokens: 512)";
constexpr char kTwoStacks[] = R"(
  model { model_type: t5 encoder_num_layers: 6 decoder_num_layers: 6 hidden_size: 256
          num_attention_heads: 8 encoder_seq_length: 512 decoder_seq_length: 128 }
  precision { bf16: true })";
constexpr char kHybrid[] = R"(
  model { hybrid_layer_pattern: "M-M*M-G-*-MG" hidden_size: 256 num_attention_heads: 8
          seq_length: 512 position_embedding_type: none normalization: RMSNorm
          disable_bias_linear: true hidden_dropout: 0 attention_dropout: 0 mamba_head_dim: 32
          mamba_num_groups: 4 mamba_state_dim: 32 linear_key_head_dim: 32
          linear_value_head_dim: 32 linear_num_key_heads: 4 linear_num_value_heads: 8 }
  precision { bf16: true })";
constexpr char kOneBranch[] = R"(
  model { hybrid_layer_pattern: "*-*E*E*-*E" hidden_size: 256 num_attention_heads: 8
          seq_length: 512 normalization: RMSNorm disable_bias_linear: true hidden_dropout: 0
          attention_dropout: 0 num_experts: 8 moe_ffn_hidden_size: 256 moe_router_topk: 2 }
  precision { bf16: true })";
constexpr char kRest[] = R"(
  optimizer { lr: 1e-3 }
  train { micro_batch_size: 1 global_batch_size: 96 train_iters: 10 }
  data { mock_data: true tokenizer_type: NullTokenizer vocab_size: 1000 })";

int64_t OneOf(const std::vector<int64_t>& values, std::mt19937* random) {
  return values[(*random)() % values.size()];
}

int64_t LayersOf(const config::ModelConfig& model) {
  if (model.model_type() == config::ModelType::t5)
    return model.encoder_num_layers() + model.decoder_num_layers();
  return model.has_num_layers() ? model.num_layers()
                                : static_cast<int64_t>(model.hybrid_layer_pattern().size());
}

LayoutAxes RandomAxes(const config::PretrainConfig& config, std::mt19937* random) {
  const config::ModelConfig& model = config.model();
  LayoutAxes axes;
  axes.tensor = OneOf({1, 2, 4}, random);
  axes.context = OneOf({1, 1, 2, 4}, random);
  axes.pipeline = OneOf({1, 2, 3, 4, 5, 6}, random);
  const bool has_encoder = model.model_type() == config::ModelType::t5;
  const int64_t layers = LayersOf(model);
  axes.ends_count = layers % axes.pipeline != 0;
  axes.chunks = axes.pipeline > 1 ? OneOf({1, 1, 2, 2, 3}, random) : 1;
  // Every part has a layer.
  if (axes.ends_count) axes.chunks = 1;
  if (axes.pipeline > 1 && axes.chunks == 1) {
    const int64_t kind = OneOf({0, 0, 1, 2}, random);
    axes.schedule = kind == 0   ? PlanSchedule::kOneForwardOneBackward
                    : kind == 1 ? PlanSchedule::kZeroBubbleH1
                                : PlanSchedule::kGPipe;
    const int64_t last = layers - (axes.pipeline - 1) * (layers / axes.pipeline + 1);
    if (has_encoder && axes.pipeline == 5) {
      axes.encoder_stages = 3;
      axes.ends_count = false;
    } else if (!has_encoder && last > 0 && (*random)() % 2 == 0) {
      axes.last_layers = last;
      axes.ends_count = false;
    }
  }
  // A search has no V with attention in chunks.
  if (axes.pipeline > 1 && axes.chunks == 2 && (*random)() % 2 == 0 &&
      !config.recompute().has_attention_chunk_tokens())
    axes.schedule = PlanSchedule::kZeroBubbleV;
  axes.data = OneOf({1, 2, 3, 4, 8}, random);
  axes.micro_batch = OneOf({1, 2, 4}, random);
  axes.is_sequence_parallel = axes.tensor > 1 && (*random)() % 2 == 0;
  if (axes.context > 1) axes.context_form = static_cast<PlanContext>((*random)() % 4);
  if (axes.context_form == PlanContext::kTeams) axes.context_team = axes.context / 2;
  axes.recompute = static_cast<PlanRecompute>((*random)() % 3);
  if (axes.data * axes.context > 1) axes.shared_out = static_cast<SharedOut>((*random)() % 4);
  // What can't be is refused.
  if (axes.shared_out != SharedOut::kNothing) axes.instances = OneOf({1, 1, 2}, random);
  axes.instances_share_states = axes.instances > 1 && (*random)() % 2 == 0;
  // A search has instances or secondary shards.
  if (axes.shared_out == SharedOut::kWeights && axes.instances == 1)
    axes.hosts = OneOf({1, 2}, random);
  if (axes.data * axes.context > 1) axes.ranks_per_host = OneOf({0, 0, 2, 4, 8}, random);
  axes.host_fraction = OneOf({0, 0, 1, 2}, random) / 2.0;
  axes.weights_on_host = axes.host_fraction == 1 && axes.micro_batch != 2 &&
                         (axes.shared_out == SharedOut::kWeights || axes.data * axes.context == 1);
  if (model.has_num_experts()) {
    axes.expert = OneOf({1, 2, 4, 8}, random);
    axes.expert_tensor = OneOf({1, axes.tensor}, random);
    // A search has it where experts lie on several hosts that have all tensor-parallel ranks.
    axes.deduplicates_dispatch =
        axes.ranks_per_host > 0 && axes.expert > 1 && axes.ranks_per_host % axes.tensor == 0 &&
        axes.expert * axes.expert_tensor > axes.ranks_per_host && (*random)() % 2 == 0;
  }
  return axes;
}

// Tensors of an extent in a file are padded to so many bytes; there are three of them.
constexpr double kPadding = 3 * 4096;

// Returns the most bytes by which the estimate of the optimizer's pieces on the host may be off. A
// small model has shorter ones; weights that lie on the host have none. The host has three extents
// of files, at an aligned address.
double MostStaged(const LayoutAxes& axes) {
  const double staged =
      axes.host_fraction > 0 && !axes.weights_on_host ? 2 * (1 << 20) * (4 + 4) : 0;
  return staged + (axes.states_in_files ? 3 * kPadding + 4096 : 0);
}

// Returns the bytes of the ranks that hold most, or none for a layout that the trainer refuses.
MemoryNeeds PlannedBytes(config::PretrainConfig config, const LayoutAxes& axes, bool is_gpu) {
  ApplyLayout(axes, is_gpu, &config);
  if (!Validate(config, ConfigLocations("random"), ConfigPurpose::kDryRun).empty()) return {};
  SetPlannedDevice(is_gpu, &config);
  ResolveDefaults(&config);
  const auto plan = PlanRun(ToRunOptions(config, kVocab));
  EXPECT_TRUE(plan.ok()) << plan.status();
  MemoryNeeds most;
  for (const RankPlan& stage : plan->stages) {
    most.device = std::max(most.device, double(stage.total_bytes()));
    most.host = std::max(most.host, double(stage.host_bytes()));
    most.files = std::max(most.files, double(stage.file_bytes));
  }
  return most;
}

void ExpectWithin(double bound, const std::string& model, int layouts,
                  config::MainGradsDtype::Type main_grads = config::MainGradsDtype::fp32,
                  bool is_gpu = true, const std::vector<std::string>& freeze = {},
                  bool activations_on_host = false, int64_t attention_chunk_on_host = 0,
                  bool states_in_files = false) {
  ParsedConfig parsed = ParseConfig(absl::StrCat(model, kRest), "test");
  ASSERT_TRUE(parsed.errors.empty()) << parsed.errors[0].message;
  parsed.config.mutable_optimizer()->set_main_grads_dtype(main_grads);
  for (const std::string& expression : freeze)
    parsed.config.mutable_optimizer()->add_freeze(expression);
  if (states_in_files) parsed.config.mutable_optimizer()->set_optimizer_offload_path("/states");
  MemoryEstimator estimator(parsed.config, kVocab, is_gpu);
  std::mt19937 random(1234);
  int tried = 0, secondary = 0, hierarchical = 0, weights = 0, uneven = 0, in_v = 0, all = 0;
  double worst = 0;
  while (tried < layouts) {
    LayoutAxes axes = RandomAxes(parsed.config, &random);
    axes.activations_on_host = activations_on_host;
    axes.states_in_files = states_in_files && axes.host_fraction > 0;
    axes.attention_chunk_on_host = attention_chunk_on_host;
    // Chunks on the host are in no V.
    if (attention_chunk_on_host > 0 && axes.schedule == PlanSchedule::kZeroBubbleV)
      axes.schedule = PlanSchedule::kOneForwardOneBackward;
    if (!is_gpu) {
      axes.host_fraction = 0;
      axes.weights_on_host = false;
    }
    const MemoryNeeds planned = PlannedBytes(parsed.config, axes, is_gpu);
    if (planned.device == 0) continue;
    ++tried;
    secondary += axes.hosts > 1;
    weights += axes.weights_on_host;
    hierarchical += axes.ranks_per_host > 0;
    uneven += axes.last_layers > 0;
    in_v += axes.schedule == PlanSchedule::kZeroBubbleV;
    all += axes.schedule == PlanSchedule::kGPipe;
    const auto estimated = estimator.Bytes(axes);
    ASSERT_TRUE(estimated.ok()) << estimated.status();
    SCOPED_TRACE(DescribeLayout(axes));
    // A part ends with a parameter, and small models have shorter pieces than the estimate.
    const bool is_part = axes.host_fraction > 0 && axes.host_fraction < 1;
    const double error = estimated->device / planned.device - 1;
    EXPECT_GE(error, -bound) << estimated->device << " estimated, " << planned.device << " planned";
    if (is_part) continue;
    EXPECT_NEAR(estimated->host, planned.host, bound * planned.host + MostStaged(axes));
    EXPECT_NEAR(estimated->files, planned.files, bound * planned.files + kPadding);
    worst = std::max(worst, std::abs(error));
    EXPECT_LE(error, bound) << estimated->device << " estimated, " << planned.device << " planned";
  }
  EXPECT_GT(hierarchical, 0);
  EXPECT_EQ(weights > 0, is_gpu && freeze.empty());  // else they are refused
  if (layouts >= 50) {
    EXPECT_GT(secondary, 0);
    EXPECT_EQ(uneven > 0, parsed.config.model().model_type() != config::ModelType::t5);
    EXPECT_GT(in_v, 0);
    EXPECT_GT(all, 0);
  }
  ::testing::Test::RecordProperty("worst_error", absl::StrCat(worst));
}

TEST(MemoryEstimateTest, IsWithinOnePercentOfThePlansOfADenseModel) {
  ExpectWithin(0.01, kDense, 70);
}

TEST(MemoryEstimateTest, IsWithinOnePercentOfThePlansWithGradientsIn16Bits) {
  ExpectWithin(0.01, kDense, 20, config::MainGradsDtype::bf16);
}

TEST(MemoryEstimateTest, IsWithinOnePercentOfThePlansWithFrozenLayers) {
  ExpectWithin(0.01, kDense, 20, config::MainGradsDtype::fp32, /*is_gpu=*/true,
               {"^embedding", R"(layers\.[0-4]\.)"});
}

TEST(MemoryEstimateTest, IsWithinOnePercentOfThePlansWithActivationsOnTheHost) {
  for (const char* model : {kDense, kExperts}) {
    ExpectWithin(0.01, model, 45, config::MainGradsDtype::fp32, /*is_gpu=*/true, /*freeze=*/{},
                 /*activations_on_host=*/true);
  }
}

TEST(MemoryEstimateTest, IsWithinOnePercentOfThePlansWithStatesInFiles) {
  ExpectWithin(0.01, kDense, 45, config::MainGradsDtype::fp32, /*is_gpu=*/true, /*freeze=*/{},
               /*activations_on_host=*/false, /*attention_chunk_on_host=*/0,
               /*states_in_files=*/true);
}

TEST(MemoryEstimateTest, IsWithinOnePercentOfThePlansOfAGatedModelWithQueryGroups) {
  ExpectWithin(0.01, kGated, 65);
}

TEST(MemoryEstimateTest, IsWithinOnePercentOfThePlansOfAModelWithExpertsInSomeLayers) {
  ExpectWithin(0.01, kExperts, 65);
}

TEST(MemoryEstimateTest, IsWithinOnePercentOfThePlansOfAModelWithAnEncoder) {
  ExpectWithin(0.01, kTwoStacks, 60);
}

TEST(MemoryEstimateTest, IsWithinOnePercentOfThePlansOfAModelInChunks) {
  ExpectWithin(0.01, absl::StrCat(kLong, " attention_chunk_tokens: 512 }"), 15);
}

TEST(MemoryEstimateTest, IsWithinOnePercentOfThePlansOfAModelInChunksOnTheHost) {
  ExpectWithin(0.01,
               absl::StrCat(kLong, " attention_chunk_tokens: 512 attention_chunks_on_host: true }"),
               15);
}

// The layout has the chunks, and the configuration none.
TEST(MemoryEstimateTest, IsWithinOnePercentOfThePlansOfLayoutsWithChunksOnTheHost) {
  for (const bool activations_on_host : {false, true}) {
    ExpectWithin(0.01, absl::StrCat(kLong, "}"), 15, config::MainGradsDtype::fp32, /*is_gpu=*/true,
                 /*freeze=*/{}, activations_on_host, /*attention_chunk_on_host=*/512);
  }
}

TEST(MemoryEstimateTest, SmallerChunksOnTheHostTakeLess) {
  const ParsedConfig parsed = ParseConfig(absl::StrCat(kLong, "}", kRest), "test");
  ASSERT_TRUE(parsed.errors.empty()) << parsed.errors[0].message;
  MemoryEstimator estimator(parsed.config, kVocab, /*is_gpu=*/true);
  const auto needs = [&](int64_t chunk) {
    LayoutAxes axes;
    axes.attention_chunk_on_host = chunk;
    const auto found = estimator.Bytes(axes);
    EXPECT_TRUE(found.ok()) << found.status();
    return found.ok() ? *found : MemoryNeeds();
  };
  EXPECT_EQ(needs(0).host, 0);
  EXPECT_GT(needs(512).host, 0);
  EXPECT_LT(needs(512).device, needs(0).device);
  EXPECT_LT(needs(256).device, needs(512).device);
}

// Ranks that form a grid have blocks of the layers' weights and of what lies between them.
TEST(MemoryEstimateTest, IsWithinOnePercentOfThePlansOfGrids) {
  for (const char* model : {kDense, kGated}) {
    const ParsedConfig parsed = ParseConfig(absl::StrCat(model, kRest), "test");
    ASSERT_TRUE(parsed.errors.empty()) << parsed.errors[0].message;
    MemoryEstimator estimator(parsed.config, kVocab, /*is_gpu=*/true);
    std::mt19937 random(1234);
    for (int tried = 0; tried < 12;) {
      LayoutAxes axes = RandomAxes(parsed.config, &random);
      axes.tensor = OneOf({4, 8}, &random);
      const std::vector<PlanGrid> grids = TensorGridsOf(axes.tensor);
      axes.grid = grids[random() % grids.size()];
      axes.micro_batch = axes.grid.samples() * OneOf({1, 2}, &random);
      axes.context = axes.context_team = 1;
      axes.context_form = PlanContext::kRing;
      axes.is_sequence_parallel = axes.weights_on_host = false;
      axes.host_fraction = axes.host_fraction == 0.5 ? 0 : axes.host_fraction;
      if (axes.data == 1) {
        axes.shared_out = SharedOut::kNothing;
        axes.instances = axes.hosts = 1;
        axes.instances_share_states = false;
        axes.ranks_per_host = 0;
      }
      const MemoryNeeds planned = PlannedBytes(parsed.config, axes, /*is_gpu=*/true);
      if (planned.device == 0) continue;
      ++tried;
      SCOPED_TRACE(DescribeLayout(axes));
      const auto estimated = estimator.Bytes(axes);
      ASSERT_TRUE(estimated.ok()) << estimated.status();
      EXPECT_NEAR(estimated->device / planned.device, 1, 0.01);
      EXPECT_NEAR(estimated->host, planned.host, 0.01 * planned.host + MostStaged(axes));
    }
  }
}

TEST(MemoryEstimateTest, IsWithinOnePercentOfThePlansOfAHybridModel) {
  ExpectWithin(0.01, kHybrid, 40, config::MainGradsDtype::fp32, /*is_gpu=*/false);
}

TEST(MemoryEstimateTest, IsWithinOnePercentOfThePlansOfLayersOfOneBranchWithExperts) {
  ExpectWithin(0.01, kOneBranch, 30);
}

// ApplyLayout() writes a partition of one rank, which stands for no secondary shards.
TEST(MemoryEstimateTest, HostsOfOneRankHaveNoSecondaryShards) {
  const ParsedConfig parsed = ParseConfig(absl::StrCat(kExperts, kRest), "test");
  ASSERT_TRUE(parsed.errors.empty()) << parsed.errors[0].message;
  MemoryEstimator estimator(parsed.config, kVocab, /*is_gpu=*/true);
  const auto bytes = [&](int64_t data, int64_t hosts) {
    LayoutAxes axes;
    axes.data = data;
    axes.shared_out = SharedOut::kWeights;
    axes.hosts = hosts;
    const auto needs = estimator.Bytes(axes);
    EXPECT_TRUE(needs.ok()) << needs.status();
    return needs.ok() ? needs->device : 0;
  };
  EXPECT_EQ(bytes(2, 2), bytes(2, 1));
  EXPECT_GT(bytes(4, 2), bytes(4, 1));
}

}  // namespace
}  // namespace megatron
