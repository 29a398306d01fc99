#include "megatron/data/tokenizer/bpe/split_pattern.h"

#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Pieces(FirstPiece first_piece, absl::string_view text) {
  std::vector<std::string> pieces;
  while (!text.empty()) {
    pieces.emplace_back(text.substr(0, first_piece(text)));
    text.remove_prefix(pieces.back().size());
  }
  return pieces;
}

std::vector<std::string> Split(SplitPattern pattern, absl::string_view text) {
  return Pieces(FirstPieceOf(pattern), text);
}

constexpr SplitPattern kAll[] = {SplitPattern::kGpt2,          SplitPattern::kCl100k,
                                 SplitPattern::kQwen2,         SplitPattern::kO200k,
                                 SplitPattern::kTekken,        SplitPattern::kTiktokenV1,
                                 SplitPattern::kCl100kTiktoken};

TEST(SplitPatternTest, Gpt2KeepsOneSpaceBeforeWordsNumbersAndSymbols) {
  EXPECT_THAT(Split(SplitPattern::kGpt2, "Hello  world 2024!? it's"),
              ElementsAre("Hello", " ", " world", " 2024", "!?", " it", "'s"));
  EXPECT_THAT(Split(SplitPattern::kGpt2, "IT'S'll"), ElementsAre("IT", "'", "S", "'ll"));
  EXPECT_THAT(Split(SplitPattern::kGpt2, "a\n\n b\n"), ElementsAre("a", "\n\n", " b", "\n"));
  EXPECT_THAT(Split(SplitPattern::kGpt2, " 'sé"), ElementsAre(" '", "sé"));
}

TEST(SplitPatternTest, SpaceIsUnicodesWhiteSpace) {
  // U+3000 and U+0085 are white space, U+200B and U+001C are not.
  EXPECT_THAT(Split(SplitPattern::kGpt2, "a\u3000\u3000b\u0085"),
              ElementsAre("a", "\u3000", "\u3000", "b", "\u0085"));
  EXPECT_THAT(Split(SplitPattern::kGpt2,
                    "a\u200b\x1c"
                    "b"),
              ElementsAre("a", "\u200b\x1c", "b"));
}

TEST(SplitPatternTest, Cl100kTakesAnySymbolBeforeAWordAndLineBreaksAfterSymbols) {
  EXPECT_THAT(Split(SplitPattern::kCl100k, "(foo)\n\n  bar 12345"),
              ElementsAre("(foo", ")\n\n", " ", " bar", " ", "123", "45"));
  EXPECT_THAT(Split(SplitPattern::kCl100k, "IT'S x\u017f'\u017f"),
              ElementsAre("IT", "'S", " x\u017f", "'\u017f"));
  EXPECT_THAT(Split(SplitPattern::kCl100k, "a \n \n  b"), ElementsAre("a", " \n \n", " ", " b"));
  EXPECT_THAT(Split(SplitPattern::kCl100k, "a \n "), ElementsAre("a", " \n", " "));
  EXPECT_THAT(Split(SplitPattern::kCl100kTiktoken, "a \n "), ElementsAre("a", " \n "));
}

TEST(SplitPatternTest, Qwen2SplitsNumbersIntoDigits) {
  EXPECT_THAT(Split(SplitPattern::kQwen2, "in 2024"), ElementsAre("in", " ", "2", "0", "2", "4"));
}

TEST(SplitPatternTest, O200kStartsAWordAtACapital) {
  EXPECT_THAT(Split(SplitPattern::kO200k, "HelloWorld HTTPServer's a/b\n/"),
              ElementsAre("Hello", "World", " HTTPServer's", " a", "/b", "\n", "/"));
  EXPECT_THAT(Split(SplitPattern::kO200k, "漢字ABC漢D"), ElementsAre("漢字ABC漢", "D"));
  EXPECT_THAT(Split(SplitPattern::kTekken, "Don't 12"), ElementsAre("Don", "'t", " ", "1", "2"));
}

TEST(SplitPatternTest, AMarkIsPartOfAWordOrPrecedesIt) {
  EXPECT_THAT(Split(SplitPattern::kO200k, "\u0301a\u0301!"), ElementsAre("\u0301a\u0301", "!"));
  EXPECT_THAT(Split(SplitPattern::kO200k, "\u0301\u0301 "), ElementsAre("\u0301\u0301", " "));
  EXPECT_THAT(Split(SplitPattern::kGpt2, "a\u0301b"), ElementsAre("a", "\u0301", "b"));
}

TEST(SplitPatternTest, DigitsAreSeparatedFromOtherText) {
  EXPECT_THAT(Pieces(FirstPieceByDigits(true), "a12 b"), ElementsAre("a", "1", "2", " b"));
  EXPECT_THAT(Pieces(FirstPieceByDigits(false), "a12 b"), ElementsAre("a", "12", " b"));
}

TEST(SplitPatternTest, InvalidBytesAreSymbols) {
  EXPECT_THAT(Split(SplitPattern::kGpt2, "a\xff\xe3\x81 b"),
              ElementsAre("a", "\xff\xe3\x81", " b"));
}

TEST(SplitPatternTest, JoinedPiecesAreTheTextAndTakeLinearTime) {
  std::string bytes;
  for (int i = 0; i < 65536; ++i) bytes += static_cast<char>(i * 2654435761u >> 13);
  std::string capitals = "\u3042" + std::string(1 << 20, 'A');
  for (const SplitPattern pattern : kAll) {
    for (const std::string& text : {bytes, capitals, std::string(1 << 20, ' '),
                                    std::string(1 << 20, '\n'), std::string(1 << 20, '1')}) {
      std::string joined;
      for (const std::string& piece : Split(pattern, text)) joined += piece;
      ASSERT_EQ(joined, text);
    }
  }
}

TEST(SplitPatternTest, PatternsAreFoundByTheirRegularExpression) {
  EXPECT_THAT(FindSplitPattern(
                  R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"),
              IsOkAndHolds(SplitPattern::kGpt2));
  EXPECT_THAT(FindSplitPattern("[a-z]+"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("'[a-z]+'"), HasSubstr(R"(\p{N}{1,3})"))));
}

}  // namespace
}  // namespace megatron
