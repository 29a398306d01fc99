#include "megatron/data/tokenizer/wordpiece/story_vocabulary.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/data/text/stories.h"
#include "megatron/data/tokenizer/wordpiece/wordpiece_tokenizer.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::testing::ElementsAre;

std::unique_ptr<WordPieceTokenizer> Tokenizer() {
  auto tokenizer = WordPieceTokenizer::FromBytes(StoryVocabulary(), {});
  EXPECT_THAT(tokenizer, IsOk());
  return *std::move(tokenizer);
}

std::vector<std::string> Pieces(const std::string& text) {
  const auto tokenizer = Tokenizer();
  std::vector<int32_t> ids;
  EXPECT_THAT(tokenizer->Encode(text, &ids), IsOk());
  std::vector<std::string> pieces;
  for (const int32_t id : ids) pieces.push_back(tokenizer->Piece(id));
  return pieces;
}

TEST(StoryVocabularyTest, EveryWordOfAStoryExceptPluralsIsOnePiece) {
  const auto tokenizer = Tokenizer();
  for (uint64_t story = 0; story < 200; ++story) {
    std::vector<int32_t> ids;
    ASSERT_THAT(tokenizer->Encode(MakeStory(1, story), &ids), IsOk());
    for (const int32_t id : ids) {
      EXPECT_NE(id, tokenizer->special().unk) << story;
      const std::string piece = tokenizer->Piece(id);
      EXPECT_TRUE(piece[0] != '#' || piece == "##s") << piece;
    }
  }
}

TEST(StoryVocabularyTest, OtherWordsAreSpelledByLetters) {
  EXPECT_THAT(Pieces("Tom the owl took 15 sad cones."),
              ElementsAre("tom", "the", "owl", "took", "15", "sad", "cone", "##s", "."));
  EXPECT_THAT(Pieces("xyz 7"), ElementsAre("x", "##y", "##z", "7"));
}

}  // namespace
}  // namespace megatron
