#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/configs/config_loader.h"

namespace megatron {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kBase[] =
    "model { num_layers: 8 hidden_size: 64 num_attention_heads: 4 seq_length: 32 }\n"
    "optimizer { lr: 0.1 }\n"
    "train { micro_batch_size: 1 global_batch_size: 8 train_iters: 16 }\n"
    "parallel { pipeline_model_parallel_size: 2 }\n"
    "data { stories {} }\n";

absl::StatusOr<LoadedConfig> Load(std::vector<std::string> overrides) {
  for (std::string& override : overrides) {
    if (override.find("model.") != 0) override = "parallel." + override;
  }
  return LoadConfigFromString(kBase, "base", overrides, ConfigPurpose::kDryRun);
}

// Each case breaks one rule, and has a piece of the error that must result.
TEST(ValidatePipelineTest, RefusesEachBrokenRuleByName) {
  struct Case {
    std::vector<std::string> overrides;
    std::string error;
  };
  const std::vector<Case> cases = {
      {{"model.num_layers=7"}, "must be divisible by parallel.pipeline_model_parallel_size = 2"},
      {{"model.num_layers=6", "pipeline_schedule=zb_v"}, "times 2, or parallel.pipeline_model"},
      {{"account_for_loss_in_pipeline_split=true"}, "as model.num_layers = 8"},
      {{"pipeline_schedule=dualpipe"}, "expects \"gpipe\", \"1f1b\", "},
      {{"pipeline_schedule=interleaved"}, "needs several parts on each rank: set"},
      {{"pipeline_schedule=1f1b", "num_virtual_stages_per_pipeline_rank=2"},
       "takes one part on each rank, and there are 2 by "
       "parallel.num_virtual_stages_per_pipeline_rank = 2"},
      {{"pipeline_schedule=zb_h1", "pipeline_model_parallel_layout=E|t*4|t*4|L"},
       "takes one part on each rank, and there are 2 by parallel.pipeline_model_parallel_layout"},
      {{"pipeline_schedule=zb_v", "pipeline_model_parallel_layout=Et*4|t*4L"},
       "needs two parts on each rank, not the 1 of"},
      {{"pipeline_schedule=zb_v", "pipeline_pass_costs=[1, 2]"}, "has 2 numbers; expects three"},
      {{"pipeline_schedule=zb_v", "pipeline_pass_costs=[1, 0, 1]"},
       "holds 0; each is a number from 0"},
      {{"pipeline_schedule=zb_h1", "pipeline_pass_costs=[1, 2, 1]"}, "has no effect with"},
      {{"pipeline_schedule=zb_v", "decoder_first_pipeline_num_layers=2"},
       "decoder_first_pipeline_num_layers = 2: has no effect with parallel.pipeline_schedule"},
      {{"num_virtual_stages_per_pipeline_rank=2", "num_layers_per_virtual_pipeline_stage=2"},
       "contradicts parallel.num_layers_per_virtual_pipeline_stage = 2"},
      {{"pipeline_model_parallel_layout=Et*8|L|"}, "must end with L"},
      {{"pipeline_model_parallel_layout=Et*4|t*2|t*2L"}, "has 3 parts, which"},
      {{"pipeline_model_parallel_layout=Et*4|t*5L"}, "has 9 layers, not model.num_layers = 8"},
      {{"pipeline_model_parallel_layout=Et*4|t*4,mL"}, "multi-token prediction"},
      {{"pipeline_model_parallel_layout=Et*4|t*4L", "decoder_last_pipeline_num_layers=4"},
       "has no effect with parallel.pipeline_model_parallel_layout"},
      {{"microbatch_group_size_per_virtual_pipeline_stage=4"}, "without an interleaved schedule"},
      {{"microbatch_group_size_per_virtual_pipeline_stage=1",
        "num_virtual_stages_per_pipeline_rank=2"},
       "must be at least parallel.pipeline_model_parallel_size = 2"},
      {{"microbatch_group_size_per_virtual_pipeline_stage=7",
        "num_virtual_stages_per_pipeline_rank=2"},
       "leaves a group of less than parallel.pipeline_model_parallel_size = 2"},
      {{"data_parallel_size=8", "num_virtual_stages_per_pipeline_rank=2"},
       "makes 1 micro-batches, which parallel.num_virtual_stages_per_pipeline_rank = 2"},
      {{"pipeline_model_parallel_size=1", "pipeline_schedule=zb_h1"}, "has no effect with"},
      {{"pipeline_model_parallel_size=1", "pipeline_model_parallel_layout=Et*8L"},
       "has no effect with"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(Load(c.overrides),
                absl_testing::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(c.error)))
        << ::testing::PrintToString(c.overrides);
  }
}

// The first size and the last one fill groups of seven.
TEST(ValidatePipelineTest, RefusesARampWithASizeBetweenThatLeavesAGroupTooSmall) {
  const auto load = [](const std::string& group) {
    return LoadConfigFromString(
        kBase, "base",
        {"model.num_layers=12", "parallel.pipeline_model_parallel_size=6",
         "parallel.num_virtual_stages_per_pipeline_rank=2",
         "parallel.microbatch_group_size_per_virtual_pipeline_stage=" + group,
         "train.global_batch_size=42",
         "train.rampup_batch_size={start: 6 increment: 6 samples: 420}"},
        ConfigPurpose::kDryRun);
  };
  EXPECT_THAT(load("6"), absl_testing::IsOk());
  EXPECT_THAT(
      load("7"),
      absl_testing::StatusIs(
          absl::StatusCode::kInvalidArgument,
          AllOf(HasSubstr("train.rampup_batch_size.increment"),
                HasSubstr("makes 12 micro-batches, of which "
                          "parallel.microbatch_group_size_per_virtual_pipeline_stage = 7"))));
}

}  // namespace
}  // namespace megatron
