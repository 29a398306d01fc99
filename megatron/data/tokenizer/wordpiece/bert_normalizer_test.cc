#include "megatron/data/tokenizer/wordpiece/bert_normalizer.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/data/tokenizer/unicode.h"

namespace megatron {
namespace {

std::vector<std::string> Words(const std::string& text) {
  std::vector<std::string> words;
  for (const TextSpan& span : SplitBertWords(text)) {
    words.push_back(text.substr(span.begin, span.end - span.begin));
  }
  return words;
}

BertNormalizerOptions Options(BertDialect dialect) {
  BertNormalizerOptions options;
  options.dialect = dialect;
  return options;
}

TEST(NormalizeBertTest, TextIsCleanedLoweredAndStrippedOfAccents) {
  EXPECT_EQ(NormalizeBert("Héllo\tWÖRLD\x01\u200b\ufffd!", {}), "hello world!");
  EXPECT_EQ(NormalizeBert("İSTANBUL Ⅷ Ⓐ", {}), "istanbul ⅷ ⓐ");
  EXPECT_EQ(NormalizeBert("日本go", {}), " 日  本 go");
  EXPECT_EQ(NormalizeBert("각", {}), "\u1100\u1161\u11a8");
}

TEST(NormalizeBertTest, EachStepCanBeDisabled) {
  BertNormalizerOptions options;
  options.strip_accents = false;
  EXPECT_EQ(NormalizeBert("É\x01日", options), "é 日 ");
  options.lowercase = false;
  EXPECT_EQ(NormalizeBert("É\x01日", options), "É 日 ");
  options.handle_chinese_chars = false;
  EXPECT_EQ(NormalizeBert("É\x01日", options), "É日");
  options.clean_text = false;
  EXPECT_EQ(NormalizeBert("É\x01日", options), "É\x01日");
}

TEST(NormalizeBertTest, TheDialectsDifferInSigmaPrivateUseAndSomeIdeographs) {
  const BertNormalizerOptions megatron = Options(BertDialect::kMegatron);
  const BertNormalizerOptions hugging_face = Options(BertDialect::kHuggingFace);
  EXPECT_EQ(NormalizeBert("ΟΔΟΣ ΣΑΣ'Σ Σ Σ.", megatron), "οδος σασ'ς σ σ.");
  EXPECT_EQ(NormalizeBert("ΟΔΟΣ", hugging_face), "οδοσ");
  EXPECT_EQ(NormalizeBert("ΟΔΟΣ\u0301Α", megatron), "οδοσα");
  // These are a modifier, an enclosing mark, a circled letter and an emoji; some of them separate
  // words.
  EXPECT_EQ(NormalizeBert("ΑΣ\u02c2Α ΑΣ\u02c2", megatron), "ασ\u02c2α ας\u02c2");
  EXPECT_EQ(NormalizeBert("ΑΣ\U0001f3fdΑ ΑΣ\u20ddΑ", megatron), "ασ\U0001f3fdα ασ\u20ddα");
  EXPECT_EQ(NormalizeBert("ΑΣ\u24d0 ΑΣ\U0001f600Α", megatron), "ασ\u24d0 ας\U0001f600α");
  EXPECT_EQ(NormalizeBert("a\ue000", megatron), "a\ue000");
  EXPECT_EQ(NormalizeBert("a\ue000", hugging_face), "a");
  EXPECT_EQ(NormalizeBert("\U0002b820", megatron), " \U0002b820 ");
  EXPECT_EQ(NormalizeBert("\U0002b820", hugging_face), "\U0002b820");
}

TEST(NormalizeBertTest, OriginsTellWhereBytesComeFrom) {
  std::vector<size_t> origins;
  EXPECT_EQ(NormalizeBert("A\x01É日", {}, &origins), "ae 日 ");
  EXPECT_EQ(origins, (std::vector<size_t>{0, 2, 4, 4, 4, 4, 7, 7}));
}

// Marks other than nonspacing ones are kept, in canonical order.
TEST(NormalizeBertTest, KeptMarksAreSorted) {
  EXPECT_EQ(NormalizeBert("a\u302f\u0301\U00016ff0", {}), "a\U00016ff0\u302f");
}

TEST(NormalizeBertTest, AMegabyteOfAccentsTakesLittleTime) {
  std::string text = "a";
  for (int i = 0; i < 250000; ++i) text += "\u0301\u0323";
  EXPECT_EQ(NormalizeBert(text, {}), "a");
  std::string sigmas = "a";
  for (int i = 0; i < 250000; ++i) sigmas += "Σ'";
  EXPECT_EQ(NormalizeBert(sigmas, Options(BertDialect::kMegatron)).size(), sigmas.size());
}

TEST(SplitBertWordsTest, EachPunctuationCharacterIsAWord) {
  using Strings = std::vector<std::string>;
  EXPECT_EQ(Words("  it's $5\u3000«a_b» "),
            (Strings{"it", "'", "s", "$", "5", "«", "a", "_", "b", "»"}));
  EXPECT_EQ(Words(""), Strings());
  EXPECT_EQ(Words(" \n"), Strings());
}

}  // namespace
}  // namespace megatron
