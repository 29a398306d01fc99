#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/validate/validation_errors.h"

namespace megatron {
namespace {

constexpr char kDrops[] = "model.lora={dim: 4 dropout: 0.1}";
constexpr char kAttentionChunks[] = "recompute.attention_chunk_tokens=8";
constexpr char kMlpChunks[] = "recompute.mlp_chunk_tokens=8";

TEST(ValidateLoraTest, DropoutIsRefusedWhereAnAdapterSeesAPartOfTheTokens) {
  ExpectOnlyError({
      {{kDrops, kMlpChunks}, "cannot be used with recompute.mlp_chunk_tokens = 8"},
      {{kDrops, kAttentionChunks}, "cannot be used with recompute.attention_chunk_tokens = 8"},
      {{"model.lora={dim: 4 dropout: 0.1 target_modules: \"linear_qkv\"}", kAttentionChunks},
       "cannot be used with recompute.attention_chunk_tokens = 8"},
      {{"model.lora={dim: 4 dropout: 0.1 target_modules: \"linear_proj\"}", kAttentionChunks},
       "model.lora.dropout sees all tokens at once"},
  });
}

TEST(ValidateLoraTest, OtherAdaptersAreAcceptedWithChunks) {
  EXPECT_THAT(ErrorsOf(kGoodConfig, {"model.lora={dim: 4}", kAttentionChunks, kMlpChunks}),
              testing::IsEmpty());
  EXPECT_THAT(
      ErrorsOf(kGoodConfig, {"model.lora={dim: 4 dropout: 0.1 target_modules: [\"linear_fc1\", "
                             "\"linear_fc2\"]}",
                             kAttentionChunks}),
      testing::IsEmpty());
}

}  // namespace
}  // namespace megatron
