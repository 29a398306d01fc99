#include "megatron/data/tokenizer/sentencepiece/unigram_model.h"

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using Kind = UnigramPiece::Kind;

UnigramModel Make(const std::vector<UnigramPiece>& pieces, const UnigramOptions& options) {
  auto model = UnigramModel::Create(pieces, options);
  EXPECT_THAT(model.status(), IsOk());
  return *std::move(model);
}

UnigramOptions WithUnk(int32_t unk_id) {
  UnigramOptions options;
  options.unk_id = unk_id;
  return options;
}

std::vector<int32_t> Encode(const UnigramModel& model, const std::string& text) {
  std::vector<int32_t> ids;
  EXPECT_THAT(model.Encode(text, &ids, nullptr), IsOk());
  return ids;
}

TEST(UnigramModelTest, TheSplitHasTheGreatestSum) {
  const UnigramModel model = Make({{"<unk>", 0},
                                   {"a", 0},
                                   {"b", 0},
                                   {"c", 0},
                                   {"d", 0},
                                   {"cd", 1},
                                   {"ab", 2},
                                   {"abc", 5},
                                   {"abcd", 10}},
                                  WithUnk(0));
  EXPECT_THAT(Encode(model, "abcdacdxx"), ElementsAre(8, 1, 5, 0));
  EXPECT_THAT(Encode(model, "abcd<unk>abc"), ElementsAre(8, 0, 7));
  EXPECT_THAT(Encode(model, ""), ElementsAre());
}

TEST(UnigramModelTest, NoTextIsASpecialPiece) {
  const UnigramModel model =
      Make({{"<unk>", 0}, {"</s>", 0, Kind::kSpecial}, {"s", -2}, {"<", -2}}, WithUnk(0));
  EXPECT_THAT(Encode(model, "s</s>s"), ElementsAre(2, 3, 0, 2, 0, 2));
}

// "b" is unknown. Its score is 10 below the lowest one: -11, which with that of "a" makes 1; or
// -15, which makes -3.
TEST(UnigramModelTest, TheScoreOfASpecialPieceCounts) {
  EXPECT_THAT(
      Encode(Make({{"<unk>", 0}, {"</s>", -5, Kind::kHidden}, {"a", 12}, {"ab", -1}}, WithUnk(0)),
             "ab"),
      ElementsAre(2, 0));
  EXPECT_THAT(
      Encode(Make({{"<unk>", 0}, {"</s>", -5, Kind::kSpecial}, {"a", 12}, {"ab", -1}}, WithUnk(0)),
             "ab"),
      ElementsAre(3));
}

TEST(UnigramModelTest, SpansTellThePositionsOfThePieces) {
  const UnigramModel model = Make({{"<unk>", 0}, {"ab", -1}, {"é", -2}}, WithUnk(0));
  std::vector<int32_t> ids;
  std::vector<TextSpan> spans;
  ASSERT_THAT(model.Encode("abxyé", &ids, &spans), IsOk());
  EXPECT_THAT(ids, ElementsAre(1, 0, 2));
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_EQ(spans[1].begin, 2u);
  EXPECT_EQ(spans[1].end, 4u);
  EXPECT_EQ(spans[2].end, 6u);
}

TEST(UnigramModelTest, UnknownCharactersFallBackToBytes) {
  std::vector<UnigramPiece> pieces = {{"<unk>", 0}, {"a", -1}};
  for (int i = 0; i < 256; ++i) {
    char text[8];
    snprintf(text, sizeof(text), "<0x%02X>", i);
    pieces.push_back({text, -5});
  }
  UnigramOptions options = WithUnk(0);
  options.byte_fallback = true;
  EXPECT_THAT(Encode(Make(pieces, options), "aéa"), ElementsAre(1, 2 + 0xc3, 2 + 0xa9, 1));
  EXPECT_THAT(Encode(Make(pieces, WithUnk(0)), "aéa"), ElementsAre(1, 0, 1));
  pieces.pop_back();
  EXPECT_THAT(Encode(Make(pieces, options), "aéa"), ElementsAre(1, 0, 1));
}

TEST(UnigramModelTest, UserDefinedPiecesAreAlwaysChosenAndHiddenPiecesNever) {
  const UnigramModel model = Make({{"<unk>", 0, Kind::kHidden},
                                   {"a", -1},
                                   {"b", -1},
                                   {"ab", -0.01},
                                   {"ba", 0, Kind::kUserDefined},
                                   {"bb", 0, Kind::kHidden}},
                                  WithUnk(0));
  EXPECT_THAT(Encode(model, "aba"), ElementsAre(3, 1));
  EXPECT_THAT(Encode(model, "bba"), ElementsAre(2, 4));
  EXPECT_THAT(Encode(model, "bb"), ElementsAre(2, 2));
  EXPECT_THAT(Encode(model, "<unk>"), ElementsAre(0));
}

TEST(UnigramModelTest, AnUnknownCharacterWithoutATokenIsAnError) {
  const UnigramModel model = Make({{"a", -1}}, UnigramOptions());
  std::vector<int32_t> ids = {7};
  EXPECT_THAT(model.Encode("ab", &ids, nullptr), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(ids, ElementsAre(7));
  EXPECT_THAT(Encode(model, "aa"), ElementsAre(0, 0));
}

TEST(UnigramModelTest, InvalidVocabulariesAreRefused) {
  const auto create = [](const std::vector<UnigramPiece>& pieces, int32_t unk_id) {
    return UnigramModel::Create(pieces, WithUnk(unk_id)).status();
  };
  EXPECT_THAT(create({{"", 0}}, -1), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(create({{"a", NAN}}, -1), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(create({{"a", 0}, {"a", 1}}, -1), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(create({{"a", 0}}, 1), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(create({}, -1), IsOk());
}

// The result is compared with every possible split.
TEST(UnigramModelTest, NoOtherSplitHasAGreaterSum) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<UnigramPiece> pieces = {{"a", -3}, {"b", -4}};
    for (const char* const text : {"ab", "ba", "aa", "aba", "bab", "abb", "bbaa"}) {
      if (random() % 2 == 0) pieces.push_back({text, -static_cast<double>(random() % 1000) / 100});
    }
    const UnigramModel model = Make(pieces, UnigramOptions());
    std::string text;
    for (int i = 0; i < 10; ++i) text.push_back(random() % 2 == 0 ? 'a' : 'b');
    double best = -1e9;
    for (int cuts = 0; cuts < 1 << 9; ++cuts) {
      double sum = 0;
      for (size_t begin = 0; begin < text.size();) {
        size_t end = begin + 1;
        while (end < text.size() && (cuts >> (end - 1) & 1) == 0) ++end;
        double score = -1e9;
        for (const UnigramPiece& piece : pieces) {
          if (piece.text == text.substr(begin, end - begin)) score = piece.score;
        }
        sum += score;
        begin = end;
      }
      best = std::max(best, sum);
    }
    double sum = 0;
    std::string joined;
    for (const int32_t id : Encode(model, text)) {
      sum += pieces[static_cast<size_t>(id)].score;
      joined += pieces[static_cast<size_t>(id)].text;
    }
    EXPECT_EQ(joined, text);
    EXPECT_NEAR(sum, best, 1e-9);
  }
}

TEST(UnigramModelTest, AMegabyteOfOneLetterTakesLittleTime) {
  std::vector<UnigramPiece> pieces = {{"<unk>", 0}};
  for (size_t n = 1; n <= 16; ++n) pieces.push_back({std::string(n, 'a'), -static_cast<double>(n)});
  const UnigramModel model = Make(pieces, WithUnk(0));
  EXPECT_EQ(Encode(model, std::string(1 << 20, 'a')).size(), size_t{1} << 16);
  EXPECT_THAT(Encode(model, std::string(1 << 20, 'x')), ElementsAre(0));
}

}  // namespace
}  // namespace megatron
