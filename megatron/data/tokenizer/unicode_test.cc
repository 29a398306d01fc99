#include "megatron/data/tokenizer/unicode.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace megatron {
namespace {

std::string Utf8(char32_t c) {
  std::string text;
  AppendUtf8(c, &text);
  return text;
}

TEST(Utf8Test, EveryCodePointIsReadBack) {
  for (char32_t c = 0; c <= 0x10ffff; ++c) {
    if (c >= 0xd800 && c <= 0xdfff) continue;
    const std::string text = Utf8(c) + "x";
    const Utf8Char read = DecodeUtf8(text, 0);
    ASSERT_EQ(read.code_point, c);
    ASSERT_EQ(read.length, text.size() - 1);
    ASSERT_TRUE(IsValidUtf8(text));
  }
}

TEST(Utf8Test, EachInvalidByteIsReadAsAReplacementCharacter) {
  for (const std::string& bad :
       {std::string("\x80"), std::string("\xc0\x80"), std::string("\xc1\xbf"),
        std::string("\xe0\x80\x80"), std::string("\xed\xa0\x80"), std::string("\xf0\x80\x80\x80"),
        std::string("\xf4\x90\x80\x80"), std::string("\xf8\x88\x80\x80\x80"), std::string("\xff"),
        std::string("\xe3\x81"), std::string("\xf0\x9f\x98")}) {
    EXPECT_FALSE(IsValidUtf8(bad));
    for (size_t i = 0; i < bad.size(); ++i) EXPECT_TRUE(IsInvalidByte(DecodeUtf8(bad, i)));
    std::string replaced;
    for (size_t i = 0; i < bad.size(); ++i) replaced += "\ufffd";
    EXPECT_EQ(ReplaceInvalidUtf8(bad), replaced);
  }
  EXPECT_FALSE(IsInvalidByte(DecodeUtf8("\ufffd", 0)));
}

TEST(CharClassesTest, SelectedCharactersHaveTheirCategories) {
  const CharClasses& classes = CharClasses::Get();
  const auto category = [&](char32_t c) {
    return classes[c] & (0x3fff | kPrivateUse) & ~kWhiteSpace;
  };
  EXPECT_EQ(category('A'), kUpper);
  EXPECT_EQ(category('a'), kLower);
  EXPECT_EQ(category(0x1c5), kTitle);
  EXPECT_EQ(category(0x2b0), kModifier);
  EXPECT_EQ(category(0x3042), kOtherLetter);
  EXPECT_EQ(category(0x301), kNonspacing);
  EXPECT_EQ(category(0x903), kOtherMark);
  EXPECT_EQ(category(0x20dd), kOtherMark);
  EXPECT_EQ(category('7'), kNumber);
  EXPECT_EQ(category(0x2160), kNumber);
  EXPECT_EQ(category(0xbd), kNumber);
  EXPECT_EQ(category('_'), kPunctuation);
  EXPECT_EQ(category('+'), kSymbol);
  EXPECT_EQ(category('\n'), kControl);
  EXPECT_EQ(category(0x200b), kFormat);
  EXPECT_EQ(category(0xe000), kPrivateUse);
  EXPECT_EQ(category(0x10ffff), kUnassigned);
}

TEST(CharClassesTest, WhiteSpaceIsUnicodesProperty) {
  std::vector<char32_t> found;
  for (char32_t c = 0; c <= 0x10ffff; ++c) {
    if (CharClasses::Get().Is(c, kWhiteSpace)) found.push_back(c);
  }
  EXPECT_EQ(found.size(), 25u);
  EXPECT_FALSE(CharClasses::Get().Is(0x200b, kWhiteSpace));
  EXPECT_TRUE(CharClasses::Get().Is(0x85, kWhiteSpace));
}

TEST(ToLowerTest, EachCharacterIsLoweredIndependently) {
  std::vector<size_t> origins;
  EXPECT_EQ(ToLower("ÀΣ AZ İ日", &origins), "àσ az i\u0307日");
  const std::vector<size_t> want = {0, 0, 2, 2, 4, 5, 6, 7, 8, 8, 8, 10, 10, 10, 13};
  EXPECT_EQ(origins, want);
}

TEST(NormalizeUnicodeTest, EachFormComposesOrDecomposesAsNamed) {
  const auto all = [](absl::string_view text) {
    std::vector<std::string> forms;
    for (const NormalizationForm form : {NormalizationForm::kNfc, NormalizationForm::kNfd,
                                         NormalizationForm::kNfkc, NormalizationForm::kNfkd}) {
      forms.push_back(NormalizeUnicode(form, text));
    }
    return forms;
  };
  using Forms = std::vector<std::string>;
  EXPECT_EQ(all("plain"), (Forms{"plain", "plain", "plain", "plain"}));
  EXPECT_EQ(all("é"), (Forms{"é", "e\u0301", "é", "e\u0301"}));
  EXPECT_EQ(all("a\u0301\u0323"),
            (Forms{"\u1ea1\u0301", "a\u0323\u0301", "\u1ea1\u0301", "a\u0323\u0301"}));
  EXPECT_EQ(all("\u1e9b\u0323"),
            (Forms{"\u1e9b\u0323", "\u017f\u0323\u0307", "\u1e69", "s\u0323\u0307"}));
  EXPECT_EQ(all("ﬁ①"), (Forms{"ﬁ①", "ﬁ①", "fi1", "fi1"}));
  EXPECT_EQ(all("각"), (Forms{"각", "\u1100\u1161\u11a8", "각", "\u1100\u1161\u11a8"}));
  EXPECT_EQ(all("\u1100\u1161\u11a7"),
            (Forms{"가\u11a7", "\u1100\u1161\u11a7", "가\u11a7", "\u1100\u1161\u11a7"}));
  EXPECT_EQ(all("\u0344\u0958"), (Forms{"\u0308\u0301\u0915\u093c", "\u0308\u0301\u0915\u093c",
                                        "\u0308\u0301\u0915\u093c", "\u0308\u0301\u0915\u093c"}));
}

// A mark is blocked by an earlier one of its class and does not compose; one of a lower class may
// compose.
TEST(NormalizeUnicodeTest, MarksOfTheSameClassBlockEachOther) {
  EXPECT_EQ(NormalizeUnicode(NormalizationForm::kNfc, "a\u0300\u0301"), "à\u0301");
  EXPECT_EQ(NormalizeUnicode(NormalizationForm::kNfc, "\u00c0\u0301\u0300"), "À\u0301\u0300");
  EXPECT_EQ(NormalizeUnicode(NormalizationForm::kNfc, "a\u0334\u0300"), "à\u0334");
}

TEST(NormalizeUnicodeTest, OriginsTellWhereEachByteComesFrom) {
  std::vector<size_t> origins;
  EXPECT_EQ(NormalizeUnicode(NormalizationForm::kNfc, "xe\u0301①", &origins), "xé①");
  EXPECT_EQ(origins, (std::vector<size_t>{0, 1, 1, 4, 4, 4, 7}));
  EXPECT_EQ(NormalizeUnicode(NormalizationForm::kNfkd, "éﬁ", &origins), "e\u0301fi");
  EXPECT_EQ(origins, (std::vector<size_t>{0, 0, 0, 2, 2, 5}));
  // The two marks are reordered.
  EXPECT_EQ(NormalizeUnicode(NormalizationForm::kNfd, "xa\u0301\u0323", &origins),
            "xa\u0323\u0301");
  EXPECT_EQ(origins, (std::vector<size_t>{0, 1, 2, 2, 2, 2, 6}));
}

TEST(NormalizeUnicodeTest, NormalizingTwiceChangesNothing) {
  std::string text;
  for (char32_t c = 0; c <= 0x10ffff; ++c) {
    if (c >= 0xd800 && c <= 0xdfff) continue;
    AppendUtf8(c, &text);
  }
  for (const NormalizationForm form : {NormalizationForm::kNfc, NormalizationForm::kNfd,
                                       NormalizationForm::kNfkc, NormalizationForm::kNfkd}) {
    const std::string once = NormalizeUnicode(form, text);
    EXPECT_NE(once, text);
    EXPECT_EQ(NormalizeUnicode(form, once), once);
  }
}

// Sorting these marks by insertion would take hours.
TEST(NormalizeUnicodeTest, AMegabyteOfMarksTakesLittleTime) {
  std::string marks = "a";
  for (int i = 0; i < 250000; ++i) marks += "\u0301\u0323";
  const std::string nfc = NormalizeUnicode(NormalizationForm::kNfc, marks);
  EXPECT_EQ(nfc.substr(0, 5), "\u1ea1\u0323");
  EXPECT_EQ(nfc.size(), marks.size() - 1 - 2 + 3);
}

}  // namespace
}  // namespace megatron
