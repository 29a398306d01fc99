#include "megatron/tensor/name_patterns.h"

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(NamePatternsTest, AnExpressionIsFoundAnywhereInAName) {
  const auto patterns = NamePatterns::Create({R"(layers\.[01]\.)", "^embedding"});
  ASSERT_THAT(patterns, IsOk());
  EXPECT_TRUE(patterns->Match("decoder.layers.1.mlp.linear_fc1.weight"));
  EXPECT_TRUE(patterns->Match("embedding.word_embeddings.weight"));
  EXPECT_FALSE(patterns->Match("decoder.layers.10.mlp.linear_fc1.weight"));
  EXPECT_FALSE(patterns->Match("decoder.embedding.weight"));
  EXPECT_FALSE(NamePatterns::Create({})->Match("a"));
}

TEST(NamePatternsTest, ExpressionsThatChooseNothingAreFound) {
  const auto patterns = NamePatterns::Create({"a", "b$", "c"});
  ASSERT_THAT(patterns, IsOk());
  EXPECT_THAT(patterns->Unused({"xa", "bx"}), ElementsAre("b$", "c"));
}

TEST(NamePatternsTest, WrongExpressionsAreRefused) {
  for (const char* wrong : {"(", "a[", "*"}) {
    EXPECT_THAT(NamePatterns::Create({"a", wrong}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no regular expression")));
  }
  EXPECT_THAT(NamePatterns::Create({""}), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace megatron
