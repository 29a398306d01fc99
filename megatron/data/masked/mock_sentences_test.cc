#include "megatron/data/masked/mock_sentences.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::testing::ElementsAre;

TEST(MockSentencesTest, SpecialTokensAreTheLastIdsOfTheVocabulary) {
  const WordPieces pieces = MockWordPieces(20, 3);
  EXPECT_EQ(pieces.vocab_size(), 20);
  EXPECT_EQ(pieces.special.cls, 11);
  EXPECT_EQ(pieces.special.eos, 16);
  EXPECT_THAT(pieces.special.sentinels, ElementsAre(17, 18, 19));
}

TEST(MockSentencesTest, EveryDocumentHasTwoTo32SentencesOf4To64Tokens) {
  const MockSentences corpus(MockWordPieces(20, 3));
  EXPECT_EQ(corpus.num_documents(), 10000);
  int64_t next = 0;
  for (int64_t i = 0; i < corpus.num_documents(); ++i) {
    const auto [first, last] = corpus.DocumentSequences(i);
    ASSERT_EQ(first, next);
    ASSERT_GE(last - first, 2);
    ASSERT_LE(last - first, 32);
    next = last;
  }
  EXPECT_EQ(next, corpus.num_sequences());
  for (int64_t i = 0; i < corpus.num_sequences(); ++i) {
    ASSERT_GE(corpus.SequenceLength(i), 4);
    ASSERT_LE(corpus.SequenceLength(i), 64);
  }
}

TEST(MockSentencesTest, SentencesCountThroughTheWords) {
  WordPieces pieces = MockWordPieces(11, 0);
  pieces.special.unk = 2;
  const MockSentences corpus(pieces);
  int32_t last_of_first;
  ASSERT_TRUE(
      corpus.ReadTokens(0, corpus.SequenceLength(0) - 1, absl::MakeSpan(&last_of_first, 1)).ok());
  std::vector<int32_t> second(4);
  ASSERT_TRUE(corpus.ReadTokens(1, 0, absl::MakeSpan(second)).ok());
  const std::vector<int32_t> words = {0, 1, 3, 4};
  size_t at = std::find(words.begin(), words.end(), last_of_first) - words.begin();
  ASSERT_LT(at, words.size());
  for (const int32_t token : second) EXPECT_EQ(token, words[++at % words.size()]);
}

}  // namespace
}  // namespace megatron
