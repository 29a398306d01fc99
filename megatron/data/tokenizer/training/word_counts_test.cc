#include "megatron/data/tokenizer/training/word_counts.h"

#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/data/tokenizer/bpe/split_pattern.h"

namespace megatron {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

std::map<std::string, int64_t> Counts(const WordCounts& words) {
  std::map<std::string, int64_t> counts;
  words.ForEach([&](absl::string_view word, int64_t count) {
    EXPECT_TRUE(counts.emplace(std::string(word), count).second) << word;
  });
  return counts;
}

TEST(WordCountsTest, PiecesOfEachTextAreCounted) {
  WordCounts words;
  words.AddText("the cat, the", FirstPieceOf(SplitPattern::kGpt2));
  words.AddText("", FirstPieceOf(SplitPattern::kGpt2));
  words.AddText("the cat", FirstPieceOf(SplitPattern::kGpt2));
  EXPECT_THAT(Counts(words),
              ElementsAre(Pair(" cat", 2), Pair(" the", 1), Pair(",", 1), Pair("the", 2)));
  EXPECT_EQ(words.size(), 4u);
  EXPECT_EQ(words.total(), 6);
}

TEST(WordCountsTest, MergeAddsTheCountsOfAnotherObject) {
  WordCounts words, other;
  words.AddWord("a", 3);
  other.AddWord("a", 4);
  other.AddWord("b", 5);
  words.Merge(other);
  EXPECT_THAT(Counts(words), ElementsAre(Pair("a", 7), Pair("b", 5)));
  EXPECT_EQ(words.total(), 12);
}

TEST(WordCountsTest, WordsOutliveTheirText) {
  WordCounts words;
  const std::string letters(300000, 'x');
  for (int i = 0; i < 100000; ++i) words.AddWord(absl::StrCat("word ", i % 50000), 1);
  words.AddWord(letters, 2);
  words.AddWord(absl::string_view("\0\xff", 2), 1);
  const std::map<std::string, int64_t> counts = Counts(words);
  EXPECT_EQ(counts.size(), 50002u);
  EXPECT_EQ(counts.at("word 49999"), 2);
  EXPECT_EQ(counts.at(letters), 2);
  EXPECT_EQ(counts.at(std::string("\0\xff", 2)), 1);
}

}  // namespace
}  // namespace megatron
