#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/validate/validation_errors.h"

namespace megatron {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr char kGood[] =
    "model { num_layers: 4 hidden_size: 64 num_attention_heads: 4 seq_length: 32 }\n"
    "precision { bf16: true fp8_format: hybrid }\n"
    "optimizer { lr: 1e-3 }\n"
    "train { micro_batch_size: 2 train_iters: 10 }\n"
    "data { mock_data: true }\n";

std::vector<std::string> ErrorsWith(const ConfigOverrides& overrides) {
  return ErrorsOf(kGood, overrides);
}

TEST(ValidateFloat8Test, AcceptsWhatWorks) {
  EXPECT_THAT(ErrorsWith({}), IsEmpty());
  EXPECT_THAT(ErrorsWith({"precision.fp8_format=e4m3", "precision.fp8_wgrad=false"}), IsEmpty());
  EXPECT_THAT(ErrorsWith({"precision.first_last_layers_bf16=true"}), IsEmpty());
  EXPECT_THAT(ErrorsWith({"precision.first_last_layers_bf16=true",
                          "precision.num_layers_at_start_in_bf16=0",
                          "precision.num_layers_at_end_in_bf16=3"}),
              IsEmpty());
  EXPECT_THAT(ErrorsWith({"parallel.tensor_model_parallel_size=2", "model.swiglu=true",
                          "parallel.sequence_parallel=true"}),
              IsEmpty());
  for (const char* recipe : {"tensorwise", "delayed", "blockwise"}) {
    EXPECT_THAT(
        ErrorsWith({absl::StrCat("precision.fp8_recipe=", recipe),
                    "parallel.tensor_model_parallel_size=2", "parallel.tp_comm_overlap=true",
                    "model.kv_channels=128", "model.ffn_hidden_size=256"}),
        IsEmpty());
  }
  EXPECT_THAT(ErrorsWith({"model.num_experts=4", "model.disable_bias_linear=true"}), IsEmpty());
  EXPECT_THAT(ErrorsWith({"parallel.context_parallel_size=2"}), IsEmpty());
  EXPECT_THAT(ErrorsWith({"model.model_type=bert"}), IsEmpty());
  EXPECT_THAT(
      ErrorsWith({"precision.fp8_recipe=delayed", "precision.fp8_margin=1",
                  "precision.fp8_amax_history_len=1024", "precision.fp8_amax_compute_algo=max"}),
      IsEmpty());
  EXPECT_THAT(
      ErrorsWith({"precision.fp8_recipe=blockwise", "precision.fp8_power_of_two_scales=false"}),
      IsEmpty());
  EXPECT_THAT(
      ErrorsWith({"precision.fp8_recipe=blockwise", "precision.fp8_param_gather=true",
                  "parallel.use_distributed_optimizer=true", "parallel.data_parallel_size=2"}),
      IsEmpty());
  EXPECT_THAT(ErrorsWith({"precision.fp8_recipe=blockwise", "parallel.tensor_model_parallel_size=2",
                          "model.kv_channels=128", "model.ffn_hidden_size=256"}),
              IsEmpty());
}

// DeepSeek-V3's attention, on 4 heads.
ConfigOverrides Latent(const ConfigOverrides& more) {
  ConfigOverrides overrides = {"model.multi_latent_attention=true",
                               "model.position_embedding_type=rope",
                               "model.q_lora_rank=48",
                               "model.kv_lora_rank=32",
                               "model.qk_head_dim=128",
                               "model.qk_pos_emb_head_dim=64",
                               "model.v_head_dim=128"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  return overrides;
}

TEST(ValidateFloat8Test, LatentAttentionNeedsSizesOfItsOwn) {
  const std::string two = "parallel.tensor_model_parallel_size=2";
  const std::string blocks = "precision.fp8_recipe=blockwise";
  EXPECT_THAT(ErrorsWith(Latent({})), IsEmpty());
  EXPECT_THAT(ErrorsWith(Latent({two, "parallel.sequence_parallel=true"})), IsEmpty());
  EXPECT_THAT(ErrorsWith(Latent({blocks, two, "model.ffn_hidden_size=256"})), IsEmpty());
  const std::pair<ConfigOverrides, std::string> cases[] = {
      {{"model.q_lora_rank=40"}, "q_lora_rank = 40: makes matrices with 40 features on a rank"},
      {{"model.kv_lora_rank=24"}, "kv_lora_rank = 24: makes matrices with 24 features on a rank"},
      {{"model.qk_pos_emb_head_dim=8"}, "makes matrices with 40 features on a rank"},
      {{"model.qk_head_dim=34"}, "makes matrices with 392 features on a rank"},
      {{"model.qk_head_dim=64", "model.v_head_dim=30"}, "makes matrices with 376 features"},
      {{blocks, two, "model.ffn_hidden_size=256", "model.qk_head_dim=96"},
       "is cut into 320 features for each of several ranks"},
      {{blocks, two, "model.ffn_hidden_size=256", "model.qk_head_dim=64", "model.v_head_dim=32"},
       "is cut into 192 features for each of several ranks"},
  };
  for (const auto& [more, message] : cases)
    EXPECT_THAT(ErrorsWith(Latent(more)), Contains(HasSubstr(message))) << message;
}

TEST(ValidateFloat8Test, LatentAttentionMayHaveNoLatentOfQueriesAndValuesOfTheDefaultWidth) {
  const std::string blocks = "precision.fp8_recipe=blockwise";
  const auto errors_with = [](const ConfigOverrides& more) {
    ConfigOverrides overrides = {"model.multi_latent_attention=true",
                                 "model.position_embedding_type=rope"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    return ErrorsWith(overrides);
  };
  EXPECT_THAT(errors_with({}), IsEmpty());
  EXPECT_THAT(errors_with({"model.q_lora_rank=48"}), IsEmpty());
  EXPECT_THAT(errors_with({"model.kv_lora_rank=40"}),
              ElementsAre(HasSubstr("kv_lora_rank = 40: makes matrices with 40 features")));
  EXPECT_THAT(errors_with({"model.kv_lora_rank=40", "model.q_lora_rank=48"}),
              ElementsAre(HasSubstr("kv_lora_rank = 40: makes matrices with 40 features")));
  EXPECT_THAT(errors_with({"model.kv_lora_rank=40", "model.v_head_dim=128"}),
              ElementsAre(HasSubstr("kv_lora_rank = 40: makes matrices with 40 features")));
  EXPECT_THAT(errors_with({blocks, "parallel.tensor_model_parallel_size=2",
                           "model.ffn_hidden_size=256", "model.qk_head_dim=96"}),
              Contains(HasSubstr("is cut into 320 features for each of several ranks")));
  // The value itself is wrong, and is all that is told.
  EXPECT_THAT(errors_with({"model.qk_head_dim=34", "model.v_head_dim=0"}),
              ElementsAre(HasSubstr("v_head_dim = 0: expects an integer from 1")));
}

TEST(ValidateFloat8Test, RefusesUnsupportedSettings) {
  const std::vector<std::pair<ConfigOverrides, std::string>> cases = {
      {{"precision.bf16=false"}, "needs precision.bf16: true"},
      {{"precision.bf16=false", "precision.fp16=true"}, "needs precision.bf16: true"},
      {{"precision.fp8_recipe=mxfp8"},
       "is not available; expects one of tensorwise, delayed, blockwise"},
      {{"precision.fp8_param_gather=true"},
       "has no effect with parallel.use_distributed_optimizer = false"},
      {{"precision.fp8_margin=1"}, "has no effect with precision.fp8_recipe = tensorwise"},
      {{"precision.fp8_recipe=blockwise", "precision.fp8_amax_history_len=4"},
       "has no effect with precision.fp8_recipe = blockwise"},
      {{"precision.fp8_recipe=delayed", "precision.fp8_power_of_two_scales=false"},
       "has no effect with precision.fp8_recipe = delayed"},
      {{"precision.fp8_recipe=blockwise", "parallel.tensor_model_parallel_size=2",
        "model.kv_channels=128", "model.ffn_hidden_size=320"},
       "is cut into 160 features for each of several ranks"},
      {{"model.num_experts=4", "model.disable_bias_linear=true", "model.moe_ffn_hidden_size=72"},
       "moe_ffn_hidden_size = 72: makes matrices with 72 features on a rank"},
      {{"model.num_experts=4", "model.disable_bias_linear=true",
        "model.moe_shared_expert_intermediate_size=72"},
       "intermediate_size = 72: makes matrices with 72 features on a rank"},
      {{"model.num_experts=4", "model.disable_bias_linear=true", "model.moe_ffn_hidden_size=320",
        "precision.fp8_recipe=blockwise", "parallel.expert_model_parallel_size=1",
        "parallel.tensor_model_parallel_size=2", "model.kv_channels=128",
        "model.ffn_hidden_size=256"},
       "moe_ffn_hidden_size = 320: is cut into 160 features for each of several ranks"},
      {{"model.hidden_size=72", "model.kv_channels=16"}, "with 72 features on a rank"},
      {{"model.ffn_hidden_size=72"}, "with 72 features on a rank"},
      {{"model.ffn_hidden_size=144", "parallel.tensor_model_parallel_size=2"},
       "with 72 features on a rank"},
      {{"model.kv_channels=6"}, "with 24 features on a rank"},
      {{"model.group_query_attention=true", "model.num_query_groups=2",
        "parallel.tensor_model_parallel_size=4"},
       "is more than model.num_query_groups"},
      {{"precision.num_layers_at_end_in_bf16=2"},
       "has no effect with precision.first_last_layers_bf16 = false"},
      {{"precision.first_last_layers_bf16=true", "precision.num_layers_at_start_in_bf16=3"},
       "leaves no layer for precision.fp8_format"},
      {{"precision.fp8_format=none", "precision.fp8_wgrad=false"},
       "has no effect with precision.fp8_format = none"},
      {{"precision.fp8_format=none", "precision.first_last_layers_bf16=true"},
       "has no effect with precision.fp8_format = none"},
  };
  for (const auto& [overrides, message] : cases)
    EXPECT_THAT(ErrorsWith(overrides), ElementsAre(HasSubstr(message))) << message;
}

// A machine without a GPU refuses the device besides.
TEST(ValidateFloat8Test, OnAGpuBlocksNeedAMultipleOfFourTokens) {
  const ConfigOverrides base = {"system.device=cuda", "precision.fp8_recipe=blockwise"};
  const auto errors_with = [&](const std::string& more) {
    ConfigOverrides overrides = base;
    overrides.push_back(more);
    return ErrorsWith(overrides);
  };
  EXPECT_THAT(errors_with("model.model_type=bert"), Contains(HasSubstr("model_type: gpt alone")));
  EXPECT_THAT(errors_with("model.seq_length=30"), Contains(HasSubstr("30 tokens of a sample")));
  EXPECT_THAT(errors_with("model.seq_length=36"), Not(Contains(HasSubstr("tokens of a sample"))));
  // Each of two ranks has rows of latents.
  ConfigOverrides latent =
      Latent({"parallel.tensor_model_parallel_size=2", "parallel.sequence_parallel=true"});
  latent.insert(latent.end(), base.begin(), base.end());
  latent.push_back("model.seq_length=36");
  EXPECT_THAT(ErrorsWith(latent), Contains(HasSubstr("gives a rank 18 tokens of a sample")));
  // The rows of each of two ranks are multiplied alone.
  ConfigOverrides pieces = base;
  pieces.insert(pieces.end(), {"parallel.tensor_model_parallel_size=2",
                               "parallel.sequence_parallel=true", "model.seq_length=36"});
  EXPECT_THAT(ErrorsWith(pieces), Not(Contains(HasSubstr("tokens of a sample"))));
  pieces.push_back("parallel.tp_comm_overlap=true");
  EXPECT_THAT(ErrorsWith(pieces), Contains(HasSubstr("gives a rank 18 tokens of a sample")));
}

TEST(ValidateFloat8Test, ReportsAllErrorsAtOnce) {
  EXPECT_THAT(ErrorsWith({"precision.bf16=false", "precision.fp8_recipe=mxfp8",
                          "model.ffn_hidden_size=72"}),
              SizeIs(3));
}

}  // namespace
}  // namespace megatron
