#include "tools/from_megatron/shell_condition.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The tokens of `text`, which are parted by blanks; those in `operators` are operators.
std::vector<ConditionToken> Tokens(const std::string& text) {
  std::vector<ConditionToken> tokens;
  for (const auto& word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    const std::string token(word);
    const bool is_operator =
        token == "&&" || token == "||" || token == "!" || token == "(" || token == ")";
    tokens.push_back({token, is_operator});
  }
  return tokens;
}

bool Holds(const std::string& text) {
  const absl::StatusOr<ShellCondition> condition = EvaluateShellCondition(Tokens(text));
  EXPECT_TRUE(condition.ok()) << text << ": " << condition.status();
  if (!condition.ok()) return false;
  EXPECT_THAT(condition->notes, IsEmpty()) << text;
  return condition->holds;
}

TEST(ShellConditionTest, NumbersAndTextsAreCompared) {
  EXPECT_TRUE(Holds("8 -eq 8"));
  EXPECT_FALSE(Holds("8 -lt 8"));
  EXPECT_TRUE(Holds("8 -le 8"));
  EXPECT_TRUE(Holds("gpt = gpt"));
  EXPECT_TRUE(Holds("gpt3 == gpt*"));
  EXPECT_FALSE(Holds("gpt3 != gpt?"));
}

TEST(ShellConditionTest, ATextHoldsIfItIsNotEmpty) {
  EXPECT_TRUE(Holds("text"));
  EXPECT_TRUE(Holds("-n text"));
  EXPECT_FALSE(Holds("-z text"));
  const absl::StatusOr<ShellCondition> empty = EvaluateShellCondition({{"-z", false}, {"", false}});
  ASSERT_TRUE(empty.ok());
  EXPECT_TRUE(empty->holds);
}

TEST(ShellConditionTest, AndBindsMoreThanOrAndNotMoreThanAnd) {
  EXPECT_TRUE(Holds("1 -eq 1 || 1 -eq 1 && 1 -eq 2"));
  EXPECT_FALSE(Holds("( 1 -eq 1 || 1 -eq 1 ) && 1 -eq 2"));
  EXPECT_FALSE(Holds("! 1 -eq 1 && 1 -eq 1"));
  EXPECT_TRUE(Holds("! ( 1 -eq 1 && 1 -eq 2 )"));
}

TEST(ShellConditionTest, WhatIsNotUnderstoodIsFalseAndNoted) {
  for (const std::string text :
       {"", "( 1 -eq 1", "1 -eq 1 )", "&& 1 -eq 1", "a -nt b", "-f file"}) {
    const absl::StatusOr<ShellCondition> condition = EvaluateShellCondition(Tokens(text));
    ASSERT_TRUE(condition.ok()) << text;
    EXPECT_FALSE(condition->holds) << text;
    EXPECT_THAT(condition->notes, ElementsAre(HasSubstr("taken as false"))) << text;
  }
}

TEST(ShellConditionTest, DeepNestingIsAnError) {
  const std::vector<ConditionToken> many(100000, ConditionToken{"(", true});
  EXPECT_EQ(EvaluateShellCondition(many).status().code(), absl::StatusCode::kInvalidArgument);
  const std::vector<ConditionToken> negations(100000, ConditionToken{"!", true});
  EXPECT_EQ(EvaluateShellCondition(negations).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace megatron
