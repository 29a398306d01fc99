#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/validate/validation_errors.h"

namespace megatron {
namespace {

constexpr char kLatent[] = "model.multi_latent_attention=true";
constexpr char kRope[] = "model.position_embedding_type=rope";
constexpr char kMtp[] = "model.mtp_num_layers=1";

TEST(ValidateLatentTest, RefusesWhatLatentAttentionCannotBeUsedWith) {
  ExpectOnlyError({
      {{kLatent}, "needs model.position_embedding_type: rope or yarn"},
      {{kLatent, kRope, "model.qk_pos_emb_head_dim=5"}, "must be even"},
      {{kLatent, kRope, "model.kv_channels=64"}, "plus model.qk_pos_emb_head_dim = 64"},
      {{kLatent, kRope, "model.rotary_interleaved=true"},
       "has no effect with model.multi_latent_attention = true"},
      {{kLatent, kRope, "model.group_query_attention=true", "model.num_query_groups=2"},
       "cannot be used with model.group_query_attention = true"},
      {{kLatent, kRope, "model.softmax_type=learnable"}, "its heads have no sinks"},
      {{kLatent, kRope, "model.post_norm=true"}, "norms stand in front of its layers"},
      {{kLatent, kRope, "model.disable_bias_linear=true", "model.add_qkv_bias=true"},
       "queries, keys and values have no biases"},
      {{kLatent, kRope, "recompute.attention_chunk_tokens=8",
        "recompute.recompute_granularity=selective", "recompute.recompute_modules=[mla_up_proj]"},
       "has no effect with recompute.attention_chunk_tokens = 8"},
      {{kLatent, kRope, "optimizer.optimizer=muon", "optimizer.qk_clip=true"},
       "cannot be used with optimizer.qk_clip = true"},
      {{"model.kv_lora_rank=8"}, "has no effect with model.multi_latent_attention = false"},
      {{"model.q_lora_rank=8"}, "has no effect with model.multi_latent_attention = false"},
      {{"model.qk_head_dim=8"}, "has no effect with model.multi_latent_attention = false"},
      {{"model.model_type=bert", "model.v_head_dim=8"},
       "has no effect with model.model_type = bert"},
      {{"model.v_head_dim=8", "optimizer.optimizer=muon", "optimizer.qk_clip=true"},
       "cannot be used with optimizer.qk_clip = true"},
      {{"recompute.recompute_granularity=selective", "recompute.recompute_modules=[mla_up_proj]"},
       "has no effect without model.multi_latent_attention"},
  });
}

TEST(ValidateLatentTest, AcceptsLatentAttentionAndWidths) {
  EXPECT_THAT(ErrorsOf(kGoodConfig, {kLatent, kRope}), testing::IsEmpty());
  EXPECT_THAT(
      ErrorsOf(kGoodConfig, {kLatent, "model.position_embedding_type=yarn", "model.q_lora_rank=24",
                             "model.qk_layernorm=true", "recompute.recompute_granularity=selective",
                             "recompute.recompute_modules=[mla_up_proj]"}),
      testing::IsEmpty());
  EXPECT_THAT(ErrorsOf(kGoodConfig, {kLatent, kRope, "recompute.attention_chunk_tokens=8",
                                     "recompute.recompute_granularity=selective",
                                     "recompute.recompute_modules=[core_attn, layernorm]"}),
              testing::IsEmpty());
  EXPECT_THAT(ErrorsOf(kGoodConfig, {kLatent, kRope, "precision.bf16=true",
                                     "precision.fp8_format=hybrid", "model.q_lora_rank=48"}),
              testing::IsEmpty());
  EXPECT_THAT(ErrorsOf(kGoodConfig, {"model.v_head_dim=8"}), testing::IsEmpty());
}

TEST(ValidateMtpTest, RefusesWhatMultiTokenPredictionCannotBeUsedWith) {
  ExpectOnlyError({
      {{kMtp}, "its layers know positions by rotation alone"},
      {{kMtp, kRope, "model.add_output_bias=true"}, "its heads have no biases"},
      {{kMtp, kRope, "model.post_norm=true"}, "norms stand in front of its layers"},
      {{kMtp, kRope, "optimizer.optimizer=muon", "optimizer.qk_clip=true"},
       "the scores of its layers are not measured"},
      {{kMtp, kRope, "data.random_ltd={min_value: 8 require_steps: 10}"},
       "cannot be used with data.random_ltd (--set data.random_ltd="},
      {{"model.mtp_loss_scaling_factor=0.5"}, "has no effect without model.mtp_num_layers"},
      {{"model.mtp_num_layers=5", kRope}, "expects an integer from 1 to 4"},
      {{kMtp, kRope, "parallel.pipeline_model_parallel_size=2",
        "parallel.pipeline_model_parallel_layout=\"Ett|ttL\""},
       "has 0 layers m of multi-token prediction, not 1"},
      {{"parallel.pipeline_model_parallel_size=2",
        "parallel.pipeline_model_parallel_layout=\"Ett|ttmL\""},
       "has 1 layers m of multi-token prediction, not 0"},
      {{kMtp, kRope, "parallel.pipeline_model_parallel_size=2",
        "parallel.pipeline_model_parallel_layout=\"Ettm|ttL\""},
       "must stand in one part behind all t"},
      {{kMtp, kRope, "parallel.pipeline_model_parallel_size=2",
        "parallel.pipeline_model_parallel_layout=\"Et|ttt|m||L\""},
       "must stand in one part behind all t"},
      {{"model.mtp_num_layers=2", kRope, "parallel.pipeline_model_parallel_size=4",
        "parallel.pipeline_model_parallel_layout=\"Ett|tt|m|L\""},
       "has 1 layers m of multi-token prediction, not 2"},
  });
  EXPECT_THAT(
      ErrorsOf(kGoodConfig, {kMtp, kRope, "precision.bf16=true", "precision.fp8_format=hybrid"}),
      testing::IsEmpty());
  for (const auto& [stages, layout] : {std::pair<std::string, std::string>{"2", "Ett|ttmL"},
                                       {"2", "Ettttm|L"},
                                       {"4", "Ett|tt|m|L"},
                                       {"4", "E|ttt|tm|L"}}) {
    EXPECT_THAT(
        ErrorsOf(kGoodConfig, {kMtp, kRope, "parallel.pipeline_model_parallel_size=" + stages,
                               "parallel.pipeline_model_parallel_layout=\"" + layout + "\""}),
        testing::IsEmpty())
        << layout;
  }
}

}  // namespace
}  // namespace megatron
