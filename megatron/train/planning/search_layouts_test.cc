#include "megatron/train/planning/search_layouts.h"

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/plan/measured_kernels.h"
#include "megatron/plan/plan_facts.h"
#include "megatron/plan/step_prediction.h"
#include "megatron/train/config/config_parser.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/planning/explain_step.h"
#include "megatron/train/trainer/run_options.h"

namespace megatron {
namespace {

constexpr int64_t kVocab = 50257;
constexpr double kGiB = 1073741824.0;

class SearchLayoutsTest : public ::testing::Test {
 protected:
  SearchLayoutsTest() : facts_(*ParsePlanFacts(BuiltInPlanFacts())) {
    planner_.hardware = *FindHardware(facts_, "H100");
    planner_.program = *FindImplementation(facts_, "megatron_cc");
    planner_.kernels = &kernels_;
  }

  static config::PretrainConfig Config(const std::string& name) {
    const auto found = FindConfig(name);
    EXPECT_TRUE(found.ok()) << found.status();
    return ParseConfig(found->text, found->source).config;
  }

  absl::StatusOr<LayoutSearch> Search(const config::PretrainConfig& config,
                                      const SearchOptions& options) const {
    return SearchLayouts(config, kVocab, planner_, options);
  }

  const PlanFacts facts_;
  const MeasuredKernels kernels_;
  Planner planner_;
};

TEST_F(SearchLayoutsTest, ASmallModelOnOneGpuIsNotCut) {
  const auto found = Search(Config("gpt3_857m"), {/*ranks=*/1});
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_FALSE(found->best.empty());
  EXPECT_EQ(found->best[0].axes.ranks(), 1);
  EXPECT_EQ(found->divisions, 1);
  EXPECT_LT(found->best[0].memory_bytes, DefaultMemoryLimit(*planner_.hardware));
}

TEST_F(SearchLayoutsTest, IsOrderedByTimeAndTheSameEachTime) {
  const auto found = Search(Config("gpt3_857m"), {/*ranks=*/4});
  const auto again = Search(Config("gpt3_857m"), {/*ranks=*/4});
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_EQ(found->best.size(), 5);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(found->best[i].axes.ranks(), 4);
    EXPECT_EQ(DescribeLayout(found->best[i].axes), DescribeLayout(again->best[i].axes));
    EXPECT_EQ(found->best[i].config.train().global_batch_size(), 16);
    EXPECT_GE(found->best[i].prediction.seconds.total,
              found->best[0].prediction.seconds.total * 0.998);
  }
}

TEST_F(SearchLayoutsTest, PrefersLayoutsThatDivideTheRanksInOtherWays) {
  const auto found = Search(Config("gpt3_857m"), {/*ranks=*/8});
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_EQ(found->best.size(), 5);
  std::set<std::vector<int64_t>> divisions;
  for (const FoundLayout& layout : found->best) {
    const LayoutAxes& axes = layout.axes;
    divisions.insert({axes.tensor, axes.context, axes.pipeline, axes.data});
  }
  EXPECT_EQ(divisions.size(), 5);
}

// A run that takes the layout expects the same time of its steps.
TEST_F(SearchLayoutsTest, PredictsWhatTheConfigurationsOfItsLayoutsArePredictedToTake) {
  SearchOptions options;
  options.ranks = 8;
  options.best = 100;
  int shared_gradients = 0;
  for (const char* name : {"gpt3_857m", "moe_tiny"}) {
    const auto found = Search(Config(name), options);
    ASSERT_TRUE(found.ok()) << found.status();
    for (const FoundLayout& layout : found->best) {
      const auto loaded = LoadConfigFromString(layout.config.ShortDebugString(), name,
                                               {"system.device=cuda"}, ConfigPurpose::kDryRun);
      ASSERT_TRUE(loaded.ok()) << loaded.status();
      const int64_t padded = ToRunOptions(loaded->config, kVocab).trainer.model.padded_vocab_size;
      const auto step =
          ExplainStep(loaded->config, padded, *planner_.hardware, *planner_.program, kernels_);
      ASSERT_TRUE(step.ok()) << step.status();
      EXPECT_EQ(step->seconds.total, layout.prediction.seconds.total)
          << name << ": " << DescribeLayout(layout.axes);
      shared_gradients += layout.axes.shared_out == SharedOut::kGradients;
    }
  }
  EXPECT_GT(shared_gradients, 0);
}

// Less memory leaves less layouts, and slower ones.
TEST_F(SearchLayoutsTest, KeepsTheMemoryLimit) {
  SearchOptions options;
  options.ranks = 4;
  const auto roomy = Search(Config("gpt3_857m"), options);
  options.memory_bytes = 3 * kGiB;
  const auto narrow = Search(Config("gpt3_857m"), options);
  ASSERT_TRUE(roomy.ok() && narrow.ok());
  ASSERT_FALSE(narrow->best.empty());
  EXPECT_GT(narrow->too_large, roomy->too_large);
  for (const FoundLayout& layout : narrow->best) EXPECT_LE(layout.memory_bytes, 3 * kGiB);
  EXPECT_GT(narrow->best[0].prediction.seconds.total, roomy->best[0].prediction.seconds.total);
}

// What the formulas find more than twice as large as the limit isn't looked at.
TEST_F(SearchLayoutsTest, FormulasFindNoLayoutTwiceAsLargeAsItIs) {
  SearchOptions options;
  options.ranks = 8;
  options.memory_bytes = 1e6 * kGiB;
  options.best = 150;
  for (const char* name : {"gpt3_857m", "llama_1500m", "moe_tiny"}) {
    const auto found = Search(Config(name), options);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_GT(found->best.size(), 100) << name;
    for (const FoundLayout& layout : found->best) {
      EXPECT_LT(layout.prediction.memory_bytes, 2 * double(layout.memory_bytes))
          << name << ": " << DescribeLayout(layout.axes);
    }
  }
}

TEST_F(SearchLayoutsTest, SaysHowManyRanksAModelNeedsThatFitsNowhere) {
  SearchOptions options;
  options.memory_bytes = 0.5 * kGiB;
  const auto found = Search(Config("gpt3_857m"), options);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(found->best.empty());
  EXPECT_GT(found->least_bytes, options.memory_bytes);
  const auto ranks = RanksThatFit(Config("gpt3_857m"), kVocab, planner_, options);
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  EXPECT_GT(*ranks, 1);
  options.ranks = *ranks;
  EXPECT_FALSE(Search(Config("gpt3_857m"), options)->best.empty());
  options.ranks = *ranks / 2;
  EXPECT_TRUE(Search(Config("gpt3_857m"), options)->best.empty());
}

// 357 million parameters take 6.4 GB, of which 4.3 GB may lie on the host.
TEST_F(SearchLayoutsTest, LeavesTheOptimizerOnTheHostWhereNothingElseFits) {
  SearchOptions options;
  options.memory_bytes = 5 * kGiB;
  const auto found = Search(Config("gpt3_857m"), options);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_FALSE(found->best.empty());
  EXPECT_TRUE(found->needs_host);
  for (const FoundLayout& layout : found->best) {
    EXPECT_GT(layout.axes.host_fraction, 0);
    EXPECT_LE(layout.memory_bytes, options.memory_bytes);
    EXPECT_GT(layout.host_bytes, 0.4 * 4.3e9);
    EXPECT_TRUE(layout.config.optimizer().optimizer_cpu_offload());
  }
  // Where there is room the GPU updates faster.
  options.memory_bytes = 0;
  const auto roomy = Search(Config("gpt3_857m"), options);
  ASSERT_TRUE(roomy.ok()) << roomy.status();
  EXPECT_FALSE(roomy->needs_host);
  EXPECT_EQ(roomy->best[0].axes.host_fraction, 0);
  EXPECT_LT(roomy->best[0].prediction.seconds.total, found->best[0].prediction.seconds.total);
}

// With the optimizer's states alone on the host it takes 2.1 GB and more.
TEST_F(SearchLayoutsTest, LeavesWeightsOnTheHostWhereNothingElseFits) {
  SearchOptions options;
  options.memory_bytes = 2.1 * kGiB;
  const auto found = Search(Config("gpt3_857m"), options);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_FALSE(found->best.empty()) << found->least_bytes;
  for (const FoundLayout& layout : found->best) {
    EXPECT_TRUE(layout.axes.weights_on_host);
    EXPECT_LE(layout.memory_bytes, options.memory_bytes);
    EXPECT_TRUE(layout.config.parallel().param_cpu_offload());
  }
  // With more room they stay on the GPU.
  options.memory_bytes = 5 * kGiB;
  EXPECT_FALSE(Search(Config("gpt3_857m"), options)->best[0].axes.weights_on_host);
}

// 48 inputs of layers take more than three windows, and weights in host memory leave them the rest.
TEST_F(SearchLayoutsTest, LeavesActivationsOnTheHostWhereNothingElseFits) {
  config::PretrainConfig config = Config("gpt3_857m");
  config.mutable_model()->set_num_layers(48);
  SearchOptions options;
  options.memory_bytes = 0.1 * kGiB;
  const auto none = Search(config, options);
  ASSERT_TRUE(none.ok()) << none.status();
  ASSERT_TRUE(none->best.empty());
  EXPECT_FALSE(none->needs_activations_on_host);
  ASSERT_TRUE(none->least.activations_on_host) << DescribeLayout(none->least);
  EXPECT_GT(none->least_host_bytes, 0);
  // The estimate is within 1 %.
  options.memory_bytes = 1.02 * none->least_bytes;
  const auto found = Search(config, options);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_FALSE(found->best.empty()) << found->first_refusal;
  EXPECT_TRUE(found->needs_activations_on_host && found->needs_host);
  for (const FoundLayout& layout : found->best) {
    EXPECT_TRUE(layout.axes.activations_on_host);
    EXPECT_LE(layout.memory_bytes, options.memory_bytes);
    EXPECT_EQ(layout.config.recompute().cpu_offloading_num_layers(), 48);
    const auto loaded = LoadConfigFromString(layout.config.ShortDebugString(), "found",
                                             {"system.device=cuda"}, ConfigPurpose::kDryRun);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    const int64_t padded = ToRunOptions(loaded->config, kVocab).trainer.model.padded_vocab_size;
    const auto step =
        ExplainStep(loaded->config, padded, *planner_.hardware, *planner_.program, kernels_);
    ASSERT_TRUE(step.ok()) << step.status();
    EXPECT_EQ(step->seconds.total, layout.prediction.seconds.total);
  }
  const auto ranks = RanksThatFit(config, kVocab, planner_, options);
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  EXPECT_EQ(*ranks, 2);
  // Without the host, or where there is room, they stay on the GPU, whatever the configuration has.
  options.offloads = false;
  EXPECT_TRUE(Search(config, options)->best.empty());
  options.offloads = true;
  options.memory_bytes = 0;
  config.mutable_recompute()->set_cpu_offloading_num_layers(48);
  const auto roomy = Search(config, options);
  ASSERT_TRUE(roomy.ok()) << roomy.status();
  ASSERT_FALSE(roomy->best.empty()) << roomy->first_refusal;
  EXPECT_FALSE(roomy->needs_activations_on_host);
  EXPECT_EQ(roomy->best[0].config.recompute().cpu_offloading_num_layers(), 0);
}

// Samples of 32,768 tokens, whose MLPs and logits are in chunks: what attention has of all tokens
// is most of what layers that are recomputed take.
config::PretrainConfig LongSamples(config::PretrainConfig config, int64_t layers) {
  config.mutable_model()->set_num_layers(layers);
  config.mutable_model()->set_seq_length(32768);
  config.mutable_recompute()->set_mlp_chunk_tokens(4096);
  config.mutable_train()->set_logits_chunk_tokens(1024);
  return config;
}

// One rank takes 2519 MiB with all other states and weights on the host, 2703 with the activations
// of 4 layers there, and 1915 with attention in chunks of 4,096 tokens.
TEST_F(SearchLayoutsTest, LeavesAttentionInChunksOnTheHostWhereNothingElseFits) {
  config::PretrainConfig config = LongSamples(Config("gpt3_857m"), 4);
  SearchOptions options;
  options.memory_bytes = 2.1 * kGiB;
  const auto found = Search(config, options);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_FALSE(found->best.empty()) << found->first_refusal;
  EXPECT_TRUE(found->needs_attention_on_host && found->needs_host);
  EXPECT_FALSE(found->needs_activations_on_host);
  for (const FoundLayout& layout : found->best) {
    EXPECT_EQ(layout.axes.attention_chunk_on_host, 4096) << DescribeLayout(layout.axes);
    EXPECT_FALSE(layout.axes.activations_on_host);
    EXPECT_LE(layout.memory_bytes, options.memory_bytes);
    // The formulas leave out no layout that fits.
    EXPECT_LT(layout.prediction.memory_bytes, 2 * double(layout.memory_bytes));
    EXPECT_EQ(layout.config.recompute().attention_chunk_tokens(), 4096);
    EXPECT_TRUE(layout.config.recompute().attention_chunks_on_host());
    EXPECT_TRUE(layout.run.layout.attention_chunks_on_host);
    const auto loaded = LoadConfigFromString(layout.config.ShortDebugString(), "found",
                                             {"system.device=cuda"}, ConfigPurpose::kDryRun);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    const int64_t padded = ToRunOptions(loaded->config, kVocab).trainer.model.padded_vocab_size;
    const auto step =
        ExplainStep(loaded->config, padded, *planner_.hardware, *planner_.program, kernels_);
    ASSERT_TRUE(step.ok()) << step.status();
    EXPECT_EQ(step->seconds.total, layout.prediction.seconds.total);
  }
  // Chunks that are written keep their length, and stay where the configuration says.
  config.mutable_recompute()->set_attention_chunk_tokens(2048);
  const auto written = Search(config, options);
  ASSERT_TRUE(written.ok()) << written.status();
  ASSERT_FALSE(written->best.empty()) << written->first_refusal;
  EXPECT_EQ(written->best[0].axes.attention_chunk_on_host, 2048);
  config.mutable_recompute()->set_attention_chunks_on_host(false);
  EXPECT_TRUE(Search(config, options)->best.empty());
  config = LongSamples(Config("gpt3_857m"), 4);
  options.offloads = false;
  EXPECT_TRUE(Search(config, options)->best.empty());
  // Where there is room, attention stays on the GPU.
  options.offloads = true;
  options.memory_bytes = 0;
  const auto roomy = Search(config, options);
  ASSERT_TRUE(roomy.ok()) << roomy.status();
  ASSERT_FALSE(roomy->best.empty()) << roomy->first_refusal;
  EXPECT_FALSE(roomy->needs_attention_on_host);
  EXPECT_FALSE(roomy->best[0].config.recompute().has_attention_chunk_tokens());
}

// 24 layers need 2703 MiB with activations on the host, 3195 with attention there, 2099 with both.
TEST_F(SearchLayoutsTest, LeavesActivationsAndAttentionOnTheHostWhereNothingElseFits) {
  const config::PretrainConfig config = LongSamples(Config("gpt3_857m"), 24);
  SearchOptions options;
  options.memory_bytes = 2.2 * kGiB;
  const auto found = Search(config, options);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_FALSE(found->best.empty()) << found->first_refusal;
  EXPECT_TRUE(found->needs_activations_on_host && found->needs_attention_on_host);
  for (const FoundLayout& layout : found->best) {
    EXPECT_TRUE(layout.axes.activations_on_host);
    EXPECT_EQ(layout.axes.attention_chunk_on_host, 4096) << DescribeLayout(layout.axes);
    EXPECT_EQ(layout.config.recompute().cpu_offloading_num_layers(), 24);
    EXPECT_TRUE(layout.run.layout.activations_on_host);
    EXPECT_TRUE(layout.run.layout.attention_chunks_on_host);
  }
  // What fits nowhere has the smallest one of all of these.
  options.memory_bytes = 0.5 * kGiB;
  const auto none = Search(config, options);
  ASSERT_TRUE(none.ok()) << none.status();
  ASSERT_TRUE(none->best.empty());
  EXPECT_TRUE(none->least.activations_on_host);
  EXPECT_EQ(none->least.attention_chunk_on_host, 4096) << DescribeLayout(none->least);
  EXPECT_NEAR(none->least_bytes / (2099 * 1048576.0), 1, 0.02);
}

TEST_F(SearchLayoutsTest, KeepsTheLimitOfTheHostAndItsUnknowns) {
  SearchOptions options;
  options.memory_bytes = 5 * kGiB;
  options.host_bytes = 1 * kGiB;
  EXPECT_TRUE(Search(Config("gpt3_857m"), options)->best.empty());
  options.host_bytes = 0;
  options.offloads = false;
  EXPECT_TRUE(Search(Config("gpt3_857m"), options)->best.empty());
  options.offloads = true;
  Hardware unknown = *planner_.hardware;
  unknown.clear_host_link_gb_per_s();
  planner_.hardware = &unknown;
  EXPECT_TRUE(Search(Config("gpt3_857m"), options)->best.empty());
}

// Where the host's memory has no room for 4.3 GB of states, a disk has.
TEST_F(SearchLayoutsTest, LeavesStatesInFilesWhereNothingElseFits) {
  Hardware hardware = *planner_.hardware;
  hardware.set_disk_read_gb_per_s(3);
  hardware.set_disk_write_gb_per_s(2);
  hardware.set_disk_gb(100);
  planner_.hardware = &hardware;
  config::PretrainConfig config = Config("gpt3_857m");
  SearchOptions options;
  options.memory_bytes = 5 * kGiB;
  options.host_bytes = 1 * kGiB;
  // A folder must be known.
  EXPECT_TRUE(Search(config, options)->best.empty());
  hardware.set_disk_directory("/nvme");
  const auto found = Search(config, options);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_FALSE(found->best.empty()) << found->first_refusal;
  EXPECT_TRUE(found->needs_files);
  for (const FoundLayout& layout : found->best) {
    EXPECT_TRUE(layout.axes.states_in_files) << DescribeLayout(layout.axes);
    EXPECT_GT(layout.file_bytes, 0.4 * 4.3e9);
    EXPECT_LE(layout.memory_bytes, options.memory_bytes);
    EXPECT_LE(layout.host_bytes, options.host_bytes);
    EXPECT_EQ(layout.config.optimizer().optimizer_offload_path(), "/nvme");
    const auto loaded = LoadConfigFromString(layout.config.ShortDebugString(), "found",
                                             {"system.device=cuda"}, ConfigPurpose::kDryRun);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    const int64_t padded = ToRunOptions(loaded->config, kVocab).trainer.model.padded_vocab_size;
    const auto step = ExplainStep(loaded->config, padded, hardware, *planner_.program, kernels_);
    ASSERT_TRUE(step.ok()) << step.status();
    EXPECT_EQ(step->seconds.total, layout.prediction.seconds.total);
    // Each step writes them all.
    EXPECT_GT(step->seconds.optimizer, 0.9 * double(layout.file_bytes) / 2e9);
  }
  // The configuration's folder goes before that of the hardware.
  config.mutable_optimizer()->set_optimizer_cpu_offload(true);
  config.mutable_optimizer()->set_optimizer_offload_path("/mine");
  const auto mine = Search(config, options);
  ASSERT_TRUE(mine.ok()) << mine.status();
  ASSERT_FALSE(mine->best.empty()) << mine->first_refusal;
  EXPECT_EQ(mine->best[0].config.optimizer().optimizer_offload_path(), "/mine");
  // In host memory it takes less time.
  options.host_bytes = 0;
  const auto roomy = Search(config, options);
  ASSERT_TRUE(roomy.ok()) << roomy.status();
  ASSERT_FALSE(roomy->best.empty()) << roomy->first_refusal;
  EXPECT_FALSE(roomy->needs_files);
  EXPECT_FALSE(roomy->best[0].config.optimizer().has_optimizer_offload_path());
  EXPECT_LT(roomy->best[0].prediction.seconds.total, found->best[0].prediction.seconds.total);
  // A disk that is too small holds nothing.
  options.host_bytes = 1 * kGiB;
  hardware.set_disk_gb(1);
  const auto small = Search(config, options);
  ASSERT_TRUE(small.ok()) << small.status();
  EXPECT_TRUE(small->best.empty());
}

TEST_F(SearchLayoutsTest, AFileIsNoFolderOfADisk) {
  Hardware hardware = *planner_.hardware;
  hardware.set_disk_read_gb_per_s(3);
  hardware.set_disk_write_gb_per_s(2);
  planner_.hardware = &hardware;
  config::PretrainConfig config = Config("gpt3_857m");
  for (const char* file : {"/proc/version", "/proc/version/states"}) {
    hardware.set_disk_directory(file);
    const absl::Status refused = Search(config, {/*ranks=*/1}).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(refused.message(),
                ::testing::HasSubstr("hardware 'H100'.disk_directory is '" + std::string(file) +
                                     "', which is no folder"));
  }
  // Nobody needs it where the configuration has another folder.
  config.mutable_optimizer()->set_optimizer_cpu_offload(true);
  config.mutable_optimizer()->set_optimizer_offload_path("/mine");
  EXPECT_TRUE(Search(config, {/*ranks=*/1}).ok());
}

// One rank alone refuses each of them.
TEST_F(SearchLayoutsTest, WhatNeedsSeveralRanksIsJudgedWithEachLayout) {
  config::PretrainConfig plain = Config("gpt3_857m");
  plain.mutable_precision()->set_fp16(false);
  plain.mutable_precision()->set_bf16(true);
  SearchOptions options;
  options.ranks = 2;
  options.allows = [](const LayoutAxes& axes) {
    return axes.micro_batch == 1 && axes.recompute == PlanRecompute::kNone &&
           axes.host_fraction == 0;
  };
  const auto expect_all = [&](const config::PretrainConfig& config, auto keeps) {
    const auto found = Search(config, options);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_FALSE(found->best.empty()) << found->first_refusal;
    for (const FoundLayout& layout : found->best)
      EXPECT_TRUE(keeps(layout)) << DescribeLayout(layout.axes);
  };
  config::PretrainConfig logs = plain;
  logs.mutable_logging()->set_profile(true);
  logs.mutable_logging()->add_profile_ranks(1);
  expect_all(logs, [](const FoundLayout& layout) { return layout.axes.ranks() == 2; });
  config::PretrainConfig gathers = plain;
  gathers.mutable_precision()->set_fp8_format(config::Fp8Format::hybrid);
  gathers.mutable_precision()->set_fp8_param_gather(true);
  expect_all(gathers, [](const FoundLayout& layout) {
    return layout.config.parallel().use_distributed_optimizer();
  });
  config::PretrainConfig copies = plain;
  copies.mutable_parallel()->set_ranks_as(config::RanksAs::processes);
  copies.mutable_checkpoint()->set_save("save");
  copies.mutable_checkpoint()->set_local_save("local");
  copies.mutable_checkpoint()->set_peer_copies(1);
  expect_all(copies, [](const FoundLayout& layout) {
    return layout.config.checkpoint().peer_copies() == 1;
  });
  config::PretrainConfig sends = plain;
  sends.mutable_gradient_compression()->set_type(config::GradientCompression::int8);
  expect_all(sends, [](const FoundLayout& layout) {
    return layout.axes.data * layout.axes.context == 2 &&
           layout.run.layout.compression.form == PlanCompression::kCodes;
  });
  options.ranks = 1;
  const auto alone = Search(sends, options);
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_TRUE(alone->best.empty());
  EXPECT_THAT(alone->first_refusal, ::testing::HasSubstr("with one data-parallel rank"));
  // What no layout can have is refused at once.
  sends.mutable_parallel()->set_grad_reduce_in_bf16(true);
  EXPECT_THAT(Search(sends, options).status().message(),
              ::testing::HasSubstr("gradients are rounded once, by one of the two"));
}

TEST_F(SearchLayoutsTest, ChoosesOffloadAnew) {
  config::PretrainConfig config = Config("gpt3_857m");
  config.mutable_optimizer()->set_optimizer_cpu_offload(true);
  config.mutable_optimizer()->set_optimizer_offload_fraction(0.25);
  config.mutable_optimizer()->set_optimizer_offload_path("/nowhere");
  const auto found = Search(config, {/*ranks=*/1});
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_FALSE(found->best.empty()) << found->first_refusal;
  const config::PretrainConfig& chosen = found->best[0].config;
  EXPECT_FALSE(chosen.optimizer().optimizer_cpu_offload());
  EXPECT_FALSE(chosen.optimizer().has_optimizer_offload_path());
}

TEST_F(SearchLayoutsTest, WithTheHostAModelFitsOnFewerRanks) {
  SearchOptions options;
  options.memory_bytes = 2.5 * kGiB;
  options.offloads = false;
  const auto without = RanksThatFit(Config("gpt3_857m"), kVocab, planner_, options);
  options.offloads = true;
  const auto with = RanksThatFit(Config("gpt3_857m"), kVocab, planner_, options);
  ASSERT_TRUE(without.ok() && with.ok());
  EXPECT_LT(*with, *without);
}

TEST_F(SearchLayoutsTest, ExpertsAreSharedOutToo) {
  const auto found = Search(Config("moe_tiny"), {/*ranks=*/4});
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_FALSE(found->best.empty()) << found->first_refusal;
}

// Weights that are shared out over two hosts of four ranks.
SearchOptions SharedWeights() {
  SearchOptions options;
  options.ranks = 8;
  options.best = 1;
  options.allows = [](const LayoutAxes& axes) {
    return axes.data == 8 && axes.shared_out == SharedOut::kWeights && axes.instances == 1;
  };
  return options;
}

// Eight tensor-parallel ranks of micro-batches of 8192 tokens and more, 8 times the hidden size.
TEST_F(SearchLayoutsTest, TakesGridsOfTensorParallelRanksWhereTheySendLess) {
  Hardware slow = *planner_.hardware;
  slow.set_link_gb_per_s(5);
  planner_.hardware = &slow;
  SearchOptions options;
  options.ranks = 8;
  options.allows = [](const LayoutAxes& axes) { return axes.tensor == 8 && axes.micro_batch >= 4; };
  const auto found = Search(Config("gpt3_857m"), options);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_FALSE(found->best.empty());
  const FoundLayout& best = found->best[0];
  EXPECT_TRUE(best.axes.grid.is_grid()) << DescribeLayout(best.axes);
  EXPECT_NE(best.config.parallel().tensor_parallel_mode(), "1d");
  const auto loaded = LoadConfigFromString(best.config.ShortDebugString(), "grid",
                                           {"system.device=cuda"}, ConfigPurpose::kDryRun);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const int64_t padded = ToRunOptions(loaded->config, kVocab).trainer.model.padded_vocab_size;
  const auto step = ExplainStep(loaded->config, padded, slow, *planner_.program, kernels_);
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_EQ(step->seconds.total, best.prediction.seconds.total);
  // Experts are cut along one dim.
  const auto experts = Search(Config("moe_tiny"), {/*ranks=*/8});
  ASSERT_TRUE(experts.ok()) << experts.status();
  for (const FoundLayout& layout : experts->best) EXPECT_FALSE(layout.axes.grid.is_grid());
}

TEST_F(SearchLayoutsTest, TakesTwoLevelsWhereTheNetworkIsSlow) {
  const config::PretrainConfig config = Config("gpt3_857m");
  Hardware hardware = *planner_.hardware;
  hardware.set_domain(4);
  planner_.hardware = &hardware;
  hardware.set_network_gb_per_s(0.1);
  const auto slow = Search(config, SharedWeights());
  ASSERT_TRUE(slow.ok()) << slow.status();
  ASSERT_FALSE(slow->best.empty()) << slow->first_refusal;
  EXPECT_EQ(slow->best[0].axes.hosts, 2);
  EXPECT_EQ(slow->best[0].config.parallel().zero_hpz_partition_size(), 4);
  EXPECT_FALSE(slow->best[0].axes.quantizes_weights);
  hardware.set_domain(8);
  const auto fast = Search(config, SharedWeights());
  ASSERT_FALSE(fast->best.empty()) << fast->first_refusal;
  EXPECT_EQ(fast->best[0].axes.hosts, 1);
  EXPECT_EQ(fast->best[0].axes.ranks_per_host, 0);
  EXPECT_LT(fast->layouts, slow->layouts);
}

// Codes change the loss.
TEST_F(SearchLayoutsTest, TakesCodesWhereTheyPayAndTheConfigurationHasThem) {
  config::PretrainConfig config = Config("gpt3_857m");
  Hardware hardware = **FindHardware(facts_, "CPU");
  hardware.set_domain(4);
  hardware.set_memory_gib(1000);
  hardware.set_network_gb_per_s(0.001);
  planner_.hardware = &hardware;
  planner_.is_gpu = false;
  const auto first = [&] {
    const auto found = Search(config, SharedWeights());
    EXPECT_TRUE(found.ok()) << found.status();
    EXPECT_FALSE(found->best.empty()) << found->first_refusal;
    return found->best.empty() ? LayoutAxes() : found->best[0].axes;
  };
  EXPECT_FALSE(first().quantizes_weights || first().quantizes_gradients);
  EXPECT_EQ(DescribeLosses(first()), "");
  config.mutable_parallel()->set_zero_quantized_gradients(true);
  EXPECT_TRUE(first().quantizes_gradients);
  EXPECT_EQ(DescribeLosses(first()),
            "parallel.zero_quantized_gradients changes the loss, and a layout has it because the "
            "configuration does");
  EXPECT_FALSE(first().quantizes_weights);
  config.mutable_parallel()->set_zero_quantized_weights(true);
  EXPECT_TRUE(first().quantizes_weights);
  // Inside one host nothing is slow but coding.
  hardware.set_domain(8);
  EXPECT_FALSE(first().quantizes_weights || first().quantizes_gradients);
}

// Two hosts of four ranks, over which experts lie; each token goes to four of eight.
TEST_F(SearchLayoutsTest, TakesDeduplicatedDispatchWhereTheNetworkIsSlow) {
  config::PretrainConfig config = Config("moe_tiny");
  config.mutable_train()->set_global_batch_size(64);
  config.mutable_model()->set_num_experts(8);
  config.mutable_model()->set_moe_router_topk(4);
  Hardware hardware = *planner_.hardware;
  hardware.set_domain(4);
  planner_.hardware = &hardware;
  SearchOptions options;
  options.ranks = 8;
  options.best = 1;
  options.allows = [](const LayoutAxes& axes) {
    return axes.expert == 8 && axes.instances == 1 && axes.shared_out == SharedOut::kNothing;
  };
  const auto first = [&] {
    const auto found = Search(config, options);
    EXPECT_TRUE(found.ok()) << found.status();
    EXPECT_FALSE(found->best.empty()) << found->first_refusal;
    return found->best.empty() ? FoundLayout() : found->best[0];
  };
  hardware.set_network_gb_per_s(0.1);
  const FoundLayout slow = first();
  EXPECT_TRUE(slow.axes.deduplicates_dispatch) << DescribeLayout(slow.axes);
  EXPECT_TRUE(slow.config.parallel().moe_deduplicated_dispatch());
  EXPECT_EQ(slow.config.parallel().hierarchical_collectives_ranks_per_host(), 4);
  // A configuration that is chosen anew has it where it pays alone.
  config.mutable_parallel()->set_moe_deduplicated_dispatch(true);
  hardware.set_network_gb_per_s(300);
  hardware.set_domain(8);
  const FoundLayout fast = first();
  EXPECT_FALSE(fast.axes.deduplicates_dispatch) << DescribeLayout(fast.axes);
  EXPECT_FALSE(fast.config.parallel().has_moe_deduplicated_dispatch());
  // One choice is on one host.
  hardware.set_domain(4);
  hardware.set_network_gb_per_s(0.1);
  config.mutable_model()->set_moe_router_topk(1);
  config.mutable_model()->set_moe_router_pre_softmax(true);
  EXPECT_FALSE(first().axes.deduplicates_dispatch);
}

// Messages of many small micro-batches between nodes take longer than gradients once a step.
TEST_F(SearchLayoutsTest, TakesAnOrderOfRanksByWhatTheySend) {
  const config::PretrainConfig config = Config("gpt3_857m");
  Hardware hardware = *planner_.hardware;
  hardware.set_domain(4);
  hardware.set_network_latency_us(500);
  planner_.hardware = &hardware;
  SearchOptions options;
  options.ranks = 8;
  options.best = 1;
  options.allows = [](const LayoutAxes& axes) {
    return axes.pipeline == 2 && axes.data == 4 && axes.chunks == 12 && axes.micro_batch == 1;
  };
  const auto found = Search(config, options);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_FALSE(found->best.empty()) << found->first_refusal;
  const FoundLayout& first = found->best[0];
  EXPECT_TRUE(first.axes.data_is_outermost) << DescribeLayout(first.axes);
  EXPECT_EQ(first.config.parallel().rank_order(), "tp-cp-ep-pp-dp");
  hardware.set_network_latency_us(0.1);
  hardware.set_network_gb_per_s(1);
  options.allows = [](const LayoutAxes& axes) {
    return axes.pipeline == 2 && axes.data == 4 && axes.chunks == 1 && axes.micro_batch == 4;
  };
  const auto slow = Search(config, options);
  ASSERT_FALSE(slow->best.empty()) << slow->first_refusal;
  EXPECT_FALSE(slow->best[0].axes.data_is_outermost) << DescribeLayout(slow->best[0].axes);
}

TEST_F(SearchLayoutsTest, TakesTheScheduleThatIsWritten) {
  for (const char* schedule : {"gpipe", "zb_v"}) {
    config::PretrainConfig config = Config("gpt3_857m");
    config.mutable_parallel()->set_pipeline_schedule(schedule);
    SearchOptions options;
    options.ranks = 4;
    options.best = 1;
    options.allows = [](const LayoutAxes& axes) {
      return axes.pipeline == 4 &&
             (axes.schedule == PlanSchedule::kGPipe || axes.schedule == PlanSchedule::kZeroBubbleV);
    };
    const auto found = Search(config, options);
    ASSERT_TRUE(found.ok()) << found.status();
    ASSERT_FALSE(found->best.empty()) << found->first_refusal;
    EXPECT_EQ(found->best[0].config.parallel().pipeline_schedule(), schedule);
    // The order of ZB-V is that for the predicted costs, in forward passes.
    const auto& costs = found->best[0].config.parallel().pipeline_pass_costs();
    ASSERT_EQ(costs.size(), schedule == std::string("zb_v") ? 3 : 0);
    if (costs.empty()) continue;
    EXPECT_EQ(costs[0], 1);
    EXPECT_GT(costs[1], costs[2]);
    EXPECT_GT(costs[2], 0.5);
  }
}

// A T5 and a BERT are searched as a GPT is.
TEST_F(SearchLayoutsTest, FindsLayoutsOfModelsWithEncoders) {
  for (const char* name : {"t5_220m", "bert_demo"}) {
    config::PretrainConfig config = Config(name);
    config.mutable_train()->set_global_batch_size(64);
    SearchOptions options;
    options.ranks = 8;
    options.best = 20;
    const auto found = Search(config, options);
    ASSERT_TRUE(found.ok()) << found.status();
    ASSERT_GT(found->best.size(), 5) << name << ": " << found->first_refusal;
    // The search and the configuration of what it finds are predicted alike.
    for (const FoundLayout& layout : found->best) {
      const auto loaded = LoadConfigFromString(layout.config.ShortDebugString(), name,
                                               {"system.device=cuda"}, ConfigPurpose::kDryRun);
      ASSERT_TRUE(loaded.ok()) << loaded.status();
      const int64_t padded = ToRunOptions(loaded->config, kVocab).trainer.model.padded_vocab_size;
      const auto step =
          ExplainStep(loaded->config, padded, *planner_.hardware, *planner_.program, kernels_);
      ASSERT_TRUE(step.ok()) << step.status();
      EXPECT_EQ(step->seconds.total, layout.prediction.seconds.total)
          << name << ": " << DescribeLayout(layout.axes);
    }
  }
}

// Each stage has other layers, and ranks share out groups of heads.
TEST_F(SearchLayoutsTest, FindsLayoutsOfHybridModels) {
  Hardware cpu;
  cpu.set_name("processor");
  cpu.set_cores(4);
  cpu.set_thread_efficiency(1);
  cpu.set_bf16_tflops(0.1);
  cpu.set_fp32_tflops(0.1);
  cpu.set_memory_gib(32);
  cpu.set_memory_gb_per_s(10);
  cpu.set_link_gb_per_s(10);
  cpu.set_network_gb_per_s(1);
  cpu.set_domain(4);
  planner_.hardware = &cpu;
  planner_.is_gpu = false;
  config::PretrainConfig config = Config("hybrid_tiny");
  config.mutable_train()->set_global_batch_size(16);
  SearchOptions options;
  options.ranks = 4;
  options.best = 100;  // on a processor the first ones have no pipeline
  const auto found = Search(config, options);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_GT(found->best.size(), 5) << found->first_refusal;
  std::set<int64_t> pipelines;
  for (const FoundLayout& layout : found->best) {
    pipelines.insert(layout.axes.pipeline);
    EXPECT_LE(layout.axes.tensor * layout.axes.context, 2) << DescribeLayout(layout.axes);
    const auto loaded = LoadConfigFromString(layout.config.ShortDebugString(), "hybrid_tiny", {},
                                             ConfigPurpose::kDryRun);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    const int64_t padded = ToRunOptions(loaded->config, kVocab).trainer.model.padded_vocab_size;
    const auto step = ExplainStep(loaded->config, padded, cpu, *planner_.program, kernels_);
    ASSERT_TRUE(step.ok()) << step.status();
    EXPECT_EQ(step->seconds.total, layout.prediction.seconds.total) << DescribeLayout(layout.axes);
  }
  EXPECT_GT(pipelines.size(), 1);
}

// On even stages the first has 8 of the encoder's 12 layers, which take longer than the decoder's.
TEST_F(SearchLayoutsTest, ATextToTextModelMayHaveStagesForItsEncoderAlone) {
  config::PretrainConfig config = Config("t5_220m");
  config.mutable_train()->set_global_batch_size(256);
  SearchOptions options;
  options.ranks = 3;
  options.best = 1;
  options.allows = [](const LayoutAxes& axes) {
    return axes.pipeline == 3 && axes.chunks == 1 && axes.micro_batch == 8 &&
           axes.schedule == PlanSchedule::kOneForwardOneBackward;
  };
  const auto found = Search(config, options);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_FALSE(found->best.empty()) << found->first_refusal;
  EXPECT_EQ(found->best[0].axes.encoder_stages, 2) << DescribeLayout(found->best[0].axes);
  EXPECT_EQ(found->best[0].config.parallel().pipeline_model_parallel_split_rank(), 2);
}

// A head of 250,000 words takes as long as many layers: the stage that has it has fewer of them.
TEST_F(SearchLayoutsTest, TheLastStageHasFewerLayersWhereTheHeadIsLarge) {
  config::PretrainConfig config = Config("gpt3_857m");
  config.mutable_train()->set_global_batch_size(64);
  SearchOptions options;
  options.ranks = 4;
  options.best = 1;
  options.allows = [](const LayoutAxes& axes) {
    return axes.pipeline == 4 && axes.chunks == 1 && axes.micro_batch == 1 &&
           axes.schedule == PlanSchedule::kOneForwardOneBackward;
  };
  const auto found = SearchLayouts(config, /*vocab_size=*/250000, planner_, options);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_FALSE(found->best.empty()) << found->first_refusal;
  EXPECT_EQ(found->best[0].axes.last_layers, 3) << DescribeLayout(found->best[0].axes);
  EXPECT_EQ(found->best[0].config.parallel().decoder_last_pipeline_num_layers(), 3);
}

TEST_F(SearchLayoutsTest, RefusesWhatCantBePlanned) {
  config::PretrainConfig islands = Config("gpt3_857m");
  islands.mutable_diloco()->set_sync_every(10);
  EXPECT_EQ(Search(islands, {/*ranks=*/8}).status().code(), absl::StatusCode::kUnimplemented);
  config::PretrainConfig counts = Config("gpt3_857m");
  counts.mutable_recompute()->set_cpu_offloading_auto(true);
  EXPECT_EQ(Search(counts, {/*ranks=*/8}).status().code(), absl::StatusCode::kUnimplemented);
  config::PretrainConfig config = Config("gpt3_857m");
  EXPECT_EQ(Search(config, {/*ranks=*/0}).status().code(), absl::StatusCode::kInvalidArgument);
  config.mutable_train()->clear_global_batch_size();
  EXPECT_EQ(Search(config, {/*ranks=*/1}).status().code(), absl::StatusCode::kInvalidArgument);
  config = Config("gpt3_857m");
  config.mutable_model()->set_num_attention_heads(7);
  EXPECT_EQ(Search(config, {/*ranks=*/1}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SearchLayoutsTest, NamesThePartThatCostsMost) {
  StepSeconds first, other;
  first.compute = first.total = 1;
  other.compute = 1;
  other.bubble = 0.25;
  other.total = 1.25;
  EXPECT_EQ(WhyItLoses(first, other), "pipeline bubble +0.25 s, 20 % of its step");
  other.host_link = 0.5;
  other.total = 2;
  EXPECT_EQ(WhyItLoses(first, other),
            "weights and gradients on the link to the host +0.5 s, 25 % of its step");
  EXPECT_EQ(WhyItLoses(first, first), "as fast, and cut in more ways");
}

}  // namespace
}  // namespace megatron
