#include "megatron/data/tokenizer/training/bpe_trainer.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/data/tokenizer/bpe/split_pattern.h"
#include "megatron/data/tokenizer/training/word_counts.h"

// tokenizers 0.23.3 trained the expected vocabularies.
namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

absl::StatusOr<TrainedBpe> Train(const std::string& text, const BpeTrainerOptions& options,
                                 int threads = 1) {
  WordCounts words;
  words.AddText(text, FirstPieceOf(SplitPattern::kGpt2));
  ThreadPool pool(threads);
  return TrainBpe(words, options, &pool, [](int32_t) {});
}

std::vector<std::string> Merges(const TrainedBpe& bpe) {
  std::vector<std::string> merges;
  for (const auto& [left, right] : bpe.merges)
    merges.push_back(absl::StrCat(bpe.tokens[left], " ", bpe.tokens[right]));
  return merges;
}

BpeTrainerOptions SeenBytes(int64_t min_frequency) {
  BpeTrainerOptions options;
  options.vocab_size = 100;
  options.min_frequency = min_frequency;
  options.all_bytes = false;
  return options;
}

TEST(BpeTrainerTest, TheMostFrequentPairMergesFirst) {
  BpeTrainerOptions options = SeenBytes(2);
  options.vocab_size = 40;
  options.special_tokens = {"<eos>"};
  const auto bpe = Train(
      "low low low low low lower lower newest newest newest newest newest newest widest widest "
      "widest",
      options);
  ASSERT_THAT(bpe, IsOk());
  EXPECT_THAT(bpe->tokens,
              ElementsAre("<eos>", "d", "e", "i", "l", "n", "o", "r", "s", "t", "w", "Ġ", "es",
                          "est", "lo", "low", "ew", "new", "Ġlow", "Ġnew", "Ġnewest", "dest",
                          "idest", "widest", "Ġwidest", "er", "Ġlower"));
  EXPECT_THAT(Merges(*bpe),
              ElementsAre("e s", "es t", "l o", "lo w", "e w", "n ew", "Ġ low", "Ġ new", "Ġnew est",
                          "d est", "i dest", "w idest", "Ġ widest", "e r", "Ġlow er"));
  EXPECT_EQ(bpe->num_special_tokens, 1);
}

TEST(BpeTrainerTest, RunsOfOneLetterMergeFromTheLeft) {
  const auto bpe = Train("aaaa aaa aa baaab", SeenBytes(1));
  ASSERT_THAT(bpe, IsOk());
  EXPECT_THAT(Merges(*bpe),
              ElementsAre("a a", "Ġ aa", "a b", "b aa", "Ġ baa", "aa aa", "Ġaa a", "Ġbaa ab"));
}

TEST(BpeTrainerTest, PairsOfEqualFrequencyMergeInTheOrderOfTheirIds) {
  const auto bpe = Train("ab ba ab ba cd dc", SeenBytes(0));
  ASSERT_THAT(bpe, IsOk());
  EXPECT_THAT(Merges(*bpe),
              ElementsAre("a b", "b a", "Ġ ba", "c d", "d c", "Ġ ab", "Ġ cd", "Ġ dc"));
}

TEST(BpeTrainerTest, ATokenSpelledLikeASpecialTokenHasItsId) {
  BpeTrainerOptions options = SeenBytes(0);
  options.special_tokens = {"the", "e"};
  const auto bpe = Train("the then them the", options);
  ASSERT_THAT(bpe, IsOk());
  EXPECT_THAT(bpe->tokens,
              ElementsAre("the", "e", "h", "m", "n", "t", "Ġ", "he", "Ġthe", "Ġthem", "Ġthen"));
  EXPECT_THAT(Merges(*bpe), ElementsAre("h e", "t he", "Ġ the", "Ġthe m", "Ġthe n"));
  EXPECT_EQ(bpe->num_special_tokens, 2);
}

TEST(BpeTrainerTest, TokensAreShorterThanTheLimit) {
  BpeTrainerOptions options = SeenBytes(0);
  options.max_token_length = 4;
  const auto bpe = Train("abcdefgh abcdefgh", options);
  ASSERT_THAT(bpe, IsOk());
  EXPECT_THAT(Merges(*bpe), ElementsAre("a b", "c d", "e f", "g h", "Ġ ab"));
}

TEST(BpeTrainerTest, TheAlphabetIsTheBytesOfTheText) {
  const auto bpe = Train("é é\n", SeenBytes(0));
  ASSERT_THAT(bpe, IsOk());
  EXPECT_THAT(bpe->tokens, ElementsAre("©", "Ã", "Ċ", "Ġ", "Ã©", "ĠÃ©"));
}

TEST(BpeTrainerTest, AllBytesAreTokensByDefault) {
  BpeTrainerOptions options;
  options.vocab_size = 256;
  const auto bpe = Train("aa aa aa", options);
  ASSERT_THAT(bpe, IsOk());
  EXPECT_THAT(bpe->tokens, SizeIs(256));
  EXPECT_EQ(bpe->tokens.front(), "!");
  EXPECT_EQ(bpe->tokens.back(), "Ń");
  EXPECT_THAT(bpe->merges, SizeIs(0));
}

TEST(BpeTrainerTest, TrainingStopsAtTheVocabularySizeAndTheMinimumFrequency) {
  const std::string text = "aa aa aa bb bb cc";
  BpeTrainerOptions options = SeenBytes(2);
  EXPECT_THAT(Merges(*Train(text, options)), ElementsAre("a a", "b b", "Ġ aa", "Ġ bb"));
  options.vocab_size = 6;
  EXPECT_THAT(Merges(*Train(text, options)), SizeIs(2));
  options.vocab_size = 100;
  options.min_frequency = 3;
  EXPECT_THAT(Merges(*Train(text, options)), ElementsAre("a a"));
}

// There are enough words to use several threads.
TEST(BpeTrainerTest, ThreadsDoNotChangeTheResult) {
  std::string text;
  uint64_t state = 1;
  for (int word = 0; word < 20000; ++word) {
    for (int i = 0; i < 6; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      text.push_back("abcdeee"[state >> 61]);
      if (text.back() == '\0') text.back() = 'f';
    }
    text.push_back(' ');
  }
  BpeTrainerOptions options;
  options.vocab_size = 600;
  const auto one = Train(text, options, 1);
  const auto three = Train(text, options, 3);
  ASSERT_THAT(one, IsOk());
  ASSERT_THAT(three, IsOk());
  EXPECT_THAT(one->tokens, SizeIs(600));
  EXPECT_EQ(one->tokens, three->tokens);
  EXPECT_EQ(one->merges, three->merges);
}

TEST(BpeTrainerTest, AnEmptyTextGivesOnlyBytes) {
  const auto bpe = Train("", BpeTrainerOptions());
  ASSERT_THAT(bpe, IsOk());
  EXPECT_THAT(bpe->tokens, SizeIs(256));
}

TEST(BpeTrainerTest, OptionsOutOfRangeAreErrors) {
  BpeTrainerOptions options;
  options.vocab_size = 256;
  options.special_tokens = {"<eos>"};
  EXPECT_THAT(Train("a", options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("256 is too small for 256 bytes and 1 special tokens")));
  options.vocab_size = 1000;
  options.special_tokens = {"\xff"};
  EXPECT_THAT(Train("a", options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("UTF-8")));
  options.special_tokens = {""};
  EXPECT_THAT(Train("a", options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("empty")));
  options.special_tokens = {"<a>", "<b>", "<a>"};
  EXPECT_THAT(Train("a", options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'<a>' stands twice")));
  options.special_tokens = {};
  options.min_frequency = -1;
  EXPECT_THAT(Train("a", options), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace megatron
