#include "megatron/data/masked/word_masking.h"

#include <cstdint>
#include <numeric>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/data/tokenizer/null_tokenizer.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Positions = std::vector<int32_t>;

constexpr int32_t kCls = 1;
constexpr int32_t kSep = 2;

// Returns a vocabulary in which ids that are 3 modulo 4 continue words.
WordPieces Pieces() {
  WordPieces pieces;
  pieces.special.cls = kCls;
  pieces.special.sep = kSep;
  pieces.continues_word.resize(100);
  for (size_t id = 3; id < 100; id += 4) pieces.continues_word[id] = true;
  return pieces;
}

// The text is [CLS], 20 tokens, [SEP], 7 tokens, [SEP].
std::vector<int32_t> Text() {
  std::vector<int32_t> text(30);
  text.front() = kCls;
  text[21] = text[29] = kSep;
  std::iota(text.begin() + 1, text.begin() + 21, 20);
  std::iota(text.begin() + 22, text.begin() + 29, 43);
  return text;
}

struct Drawn {
  std::vector<Positions> ngrams;
  std::vector<int32_t> words;  // a number drawn at each masked token
};

Drawn Draw(const WordMaskingOptions& options, absl::Span<const int32_t> text,
           int32_t target_length = 40) {
  const absl::StatusOr<WordMasker> masker = WordMasker::Create(options);
  EXPECT_THAT(masker, IsOk());
  NumpyRandomState random(5);
  Drawn drawn;
  const MaskedNgrams ngrams =
      masker->Draw(text, Pieces(), target_length, &random, [&](int32_t position) {
        drawn.words.push_back(static_cast<int32_t>(random.RandInt(0, 1 << 16)));
      });
  for (const MaskedNgrams::Range& range : ngrams.ngrams) {
    drawn.ngrams.emplace_back(ngrams.positions.begin() + range.begin,
                              ngrams.positions.begin() + range.end);
  }
  return drawn;
}

WordMaskingOptions Options() {
  WordMaskingOptions options;
  options.probability = 0.3;
  return options;
}

// Megatron-LM core 0.11 drew these three.
TEST(WordMaskingTest, MaskedWordsAreMegatrons) {
  const Drawn drawn = Draw(Options(), Text());
  EXPECT_THAT(drawn.ngrams, ElementsAre(Positions{3, 4}, Positions{7, 8}, Positions{17, 18},
                                        Positions{25, 26}, Positions{28}));
  EXPECT_THAT(drawn.words,
              ElementsAre(36271, 65054, 20093, 2194, 16009, 38250, 62910, 36967, 11408));
}

TEST(WordMaskingTest, LongNgramsAreMegatrons) {
  WordMaskingOptions options = Options();
  options.max_ngram = 9;
  options.use_longer_ngrams = true;
  const Drawn drawn = Draw(options, Text());
  EXPECT_THAT(drawn.ngrams, ElementsAre(Positions{3, 4, 5, 6, 7, 8}, Positions{25, 26, 27}));
  EXPECT_THAT(drawn.words,
              ElementsAre(36271, 65054, 34772, 31830, 20093, 2194, 16425, 40937, 62910));
}

TEST(WordMaskingTest, GeometricNgramsOfPiecesAreMegatrons) {
  WordMaskingOptions options = Options();
  options.max_ngram = 4;
  options.use_geometric_distribution = true;
  options.full_word = false;
  const Drawn drawn = Draw(options, Text());
  EXPECT_THAT(drawn.ngrams,
              ElementsAre(Positions{3, 4, 5}, Positions{20, 22, 23, 24}, Positions{25, 26}));
  EXPECT_THAT(drawn.words,
              ElementsAre(2194, 58622, 38250, 16425, 40937, 62910, 36967, 11408, 41934));
}

TEST(WordMaskingTest, AWordLongerThanTheBudgetIsNotMasked) {
  EXPECT_THAT(Draw(Options(), {kCls, 20, 23, 27, 31, kSep}).ngrams, IsEmpty());
}

TEST(WordMaskingTest, NothingIsMaskedIfThereAreOnlyClsAndSep) {
  EXPECT_THAT(Draw(Options(), {kCls, kSep}).ngrams, IsEmpty());
}

TEST(WordMaskingTest, AShortTargetLimitsTheNumberOfMaskedTokens) {
  EXPECT_THAT(Draw(Options(), Text(), 10).words, ::testing::SizeIs(3));
}

TEST(WordMaskingTest, OptionsOutOfRangeAreErrors) {
  WordMaskingOptions options;
  options.probability = 1;
  EXPECT_THAT(WordMasker::Create(options), StatusIs(absl::StatusCode::kInvalidArgument));
  options = WordMaskingOptions();
  options.max_ngram = 0;
  EXPECT_THAT(WordMasker::Create(options), StatusIs(absl::StatusCode::kInvalidArgument));
  options.max_ngram = 129;
  EXPECT_THAT(WordMasker::Create(options), StatusIs(absl::StatusCode::kInvalidArgument));
}

class ThreePieces : public NullTokenizer {
 public:
  ThreePieces() : NullTokenizer(3) {}
  std::string Piece(int32_t id) const override { return id == 1 ? "##ing" : "#x"; }
};

TEST(WordMaskingTest, PiecesAfterTwoHashesContinueAWord) {
  const WordPieces pieces = WordPiecesOf(ThreePieces());
  EXPECT_THAT(pieces.continues_word, ElementsAre(false, true, false));
  EXPECT_EQ(pieces.special.eod, 2);
}

}  // namespace
}  // namespace megatron
