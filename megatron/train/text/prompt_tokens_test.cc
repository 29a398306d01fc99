#include "megatron/train/text/prompt_tokens.h"

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/data/tokenizer/byte_level_tokenizer.h"
#include "megatron/data/tokenizer/tokenizer.h"

namespace megatron {
namespace {

using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TokenizerWithoutEnds : public ByteLevelTokenizer {
 public:
  const SpecialTokens& special() const override { return none_; }

 private:
  SpecialTokens none_;
};

TEST(PromptTokensTest, APromptWithoutTokensFollowsTheEndOfADocument) {
  EXPECT_THAT(PromptTokens("ab", ByteLevelTokenizer()), IsOkAndHolds(ElementsAre('a', 'b')));
  EXPECT_THAT(PromptTokens("", ByteLevelTokenizer()), IsOkAndHolds(ElementsAre(256)));
}

TEST(PromptTokensTest, WhereNoTokenEndsDocumentsAPromptIsNeeded) {
  const TokenizerWithoutEnds tokenizer;
  EXPECT_THAT(PromptTokens("ab", tokenizer), IsOkAndHolds(ElementsAre('a', 'b')));
  EXPECT_THAT(PromptTokens("", tokenizer), StatusIs(absl::StatusCode::kInvalidArgument,
                                                    HasSubstr("give the beginning of the text")));
}

}  // namespace
}  // namespace megatron
