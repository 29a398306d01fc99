#include "megatron/data/gpt/story_sequences.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/data/text/stories.h"
#include "megatron/data/tokenizer/byte_level_tokenizer.h"
#include "megatron/data/tokenizer/null_tokenizer.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;

TEST(StorySequencesTest, SequencesAreTheStoriesFollowedByEod) {
  const ByteLevelTokenizer tokenizer;
  const absl::StatusOr<InMemorySequences> sequences = MakeStorySequences(10000, 5, tokenizer);
  ASSERT_THAT(sequences, IsOk());
  EXPECT_GE(sequences->num_tokens() - sequences->num_sequences(), 10000);
  EXPECT_LT(sequences->num_tokens() - sequences->num_sequences(), 10500);
  for (int64_t i = 0; i < sequences->num_sequences(); ++i) {
    std::vector<int32_t> tokens(sequences->SequenceLength(i));
    ASSERT_TRUE(sequences->ReadTokens(i, 0, absl::MakeSpan(tokens)).ok());
    EXPECT_EQ(tokens.back(), tokenizer.eod());
    tokens.pop_back();
    EXPECT_EQ(tokenizer.Decode(tokens), MakeStory(5, static_cast<uint64_t>(i)));
  }
}

TEST(StorySequencesTest, ATokenizerOfNumbersCannotEncodeStories) {
  EXPECT_THAT(MakeStorySequences(100, 5, NullTokenizer(10)),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace megatron
