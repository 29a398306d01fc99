#include "megatron/data/text/sentence_splitter.h"

#include <chrono>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> Split(absl::string_view text,
                               const SentenceSplitterOptions& options = {}) {
  std::vector<absl::string_view> sentences;
  SplitSentences(text, options, &sentences);
  return std::vector<std::string>(sentences.begin(), sentences.end());
}

TEST(SentenceSplitterTest, TerminatorsBeforeWhiteSpaceEndSentences) {
  EXPECT_THAT(Split("One is here. Two? Three!\tFour... Five"),
              ElementsAre("One is here.", "Two?", "Three!", "Four...", "Five"));
  EXPECT_THAT(Split("  Leading and trailing.  \n"), ElementsAre("Leading and trailing."));
  EXPECT_THAT(Split("Wrapped over\ntwo lines. And\nmore."),
              ElementsAre("Wrapped over\ntwo lines.", "And\nmore."));
  EXPECT_THAT(Split("Really?! Yes."), ElementsAre("Really?!", "Yes."));
}

TEST(SentenceSplitterTest, TextWithoutSentencesHasNone) {
  EXPECT_THAT(Split(""), IsEmpty());
  EXPECT_THAT(Split(" \n\t "), IsEmpty());
  EXPECT_THAT(Split("no end"), ElementsAre("no end"));
  EXPECT_THAT(Split("."), ElementsAre("."));
}

TEST(SentenceSplitterTest, NumbersAndNamesAreNotCutAtTheirPeriods) {
  EXPECT_THAT(Split("It costs 3.50 at example.com. See v1.2."),
              ElementsAre("It costs 3.50 at example.com.", "See v1.2."));
  EXPECT_THAT(Split("It was 1999. The year ended."),
              ElementsAre("It was 1999.", "The year ended."));
  EXPECT_THAT(Split("He has 5. 3 are left."), ElementsAre("He has 5.", "3 are left."));
}

TEST(SentenceSplitterTest, ASmallLetterContinuesTheSentence) {
  EXPECT_THAT(Split("He works at Yahoo! and is happy."),
              ElementsAre("He works at Yahoo! and is happy."));
  EXPECT_THAT(Split("\"Why?\" she asked. \"So what?\" He left."),
              ElementsAre("\"Why?\" she asked.", "\"So what?\"", "He left."));
  EXPECT_THAT(Split("Well... maybe. Ещё… да. Нет."),
              ElementsAre("Well... maybe.", "Ещё… да.", "Нет."));
}

TEST(SentenceSplitterTest, TitlesDoNotEndASentence) {
  EXPECT_THAT(Split("Mr. Smith met Dr. Jones. They ate, e.g. Pizza, on Mt. Fuji."),
              ElementsAre("Mr. Smith met Dr. Jones.", "They ate, e.g. Pizza, on Mt. Fuji."));
  EXPECT_THAT(Split("(cf. Smith) It is so."), ElementsAre("(cf. Smith) It is so."));
  EXPECT_THAT(Split("Das sind z.B. Hunde. Gut."), ElementsAre("Das sind z.B. Hunde.", "Gut."));
}

TEST(SentenceSplitterTest, ReferencesBeforeNumbersDoNotEndASentence) {
  EXPECT_THAT(Split("See Fig. 2 and No. 5. He said no. Then he left."),
              ElementsAre("See Fig. 2 and No. 5.", "He said no.", "Then he left."));
}

TEST(SentenceSplitterTest, InitialsAndAcronymsEndASentenceOnlyBeforeACommonFirstWord) {
  EXPECT_THAT(Split("John F. Kennedy and J. R. R. Tolkien met."),
              ElementsAre("John F. Kennedy and J. R. R. Tolkien met."));
  EXPECT_THAT(Split("The U.S. Army left the U.S. The rest stayed."),
              ElementsAre("The U.S. Army left the U.S.", "The rest stayed."));
  EXPECT_THAT(Split("Apple Inc. Chief Cook spoke. He runs Apple Inc. They pay."),
              ElementsAre("Apple Inc. Chief Cook spoke.", "He runs Apple Inc.", "They pay."));
  EXPECT_THAT(Split("At 5 p.m. Ann came. It was 6 p.m. We ate."),
              ElementsAre("At 5 p.m. Ann came.", "It was 6 p.m.", "We ate."));
  EXPECT_THAT(Split("She has a Ph.D. Her site is x.org. Visit it."),
              ElementsAre("She has a Ph.D.", "Her site is x.org.", "Visit it."));
}

TEST(SentenceSplitterTest, TheNumberOfAListItemIsNoSentence) {
  EXPECT_THAT(Split("1. Begin. 2. Go on. A. Or so."),
              ElementsAre("1. Begin.", "2. Go on.", "A. Or so."));
}

TEST(SentenceSplitterTest, ClosingQuotesAndBracketsBelongToTheSentence) {
  EXPECT_THAT(
      Split("He said \"Go.\" She went. (It rained.) “Stop!” ‘No.’ End."),
      ElementsAre("He said \"Go.\"", "She went.", "(It rained.)", "“Stop!”", "‘No.’", "End."));
}

TEST(SentenceSplitterTest, ABlankLineEndsASentence) {
  EXPECT_THAT(Split("A heading  \n \nText here\r\n\r\nmore"),
              ElementsAre("A heading", "Text here", "more"));
}

TEST(SentenceSplitterTest, EastAsianFullStopsNeedNoSpace) {
  EXPECT_THAT(Split("私は猫である。名前はまだない。どこで生れたか！？知らん"),
              ElementsAre("私は猫である。", "名前はまだない。", "どこで生れたか！？", "知らん"));
  EXPECT_THAT(Split("他说：“我走了。”她哭了。"), ElementsAre("他说：“我走了。”", "她哭了。"));
}

TEST(SentenceSplitterTest, AQuotationIsNotSplit) {
  EXPECT_THAT(Split("「行く。もう行く。」と言った。彼は去った。"),
              ElementsAre("「行く。もう行く。」と言った。", "彼は去った。"));
  EXPECT_THAT(Split("「はい。」彼は答えた。"), ElementsAre("「はい。」", "彼は答えた。"));
  EXPECT_THAT(Split("彼（『本。』の著者。）は来た。"),
              ElementsAre("彼（『本。』の著者。）は来た。"));
  // A quotation that is never closed does not count as one.
  EXPECT_THAT(Split("「行く。彼は去った。"), ElementsAre("「行く。", "彼は去った。"));
}

TEST(SentenceSplitterTest, FullStopsOfOtherScriptsEndSentences) {
  EXPECT_THAT(Split("यह एक है। यह दो है।"), ElementsAre("यह एक है।", "यह दो है।"));
  EXPECT_THAT(Split("ما هذا؟ هذا كتاب."), ElementsAre("ما هذا؟", "هذا كتاب."));
}

TEST(SentenceSplitterTest, KeptNewlinesBelongToTheSentenceBeforeThem) {
  SentenceSplitterOptions options;
  options.keep_newlines = true;
  EXPECT_THAT(Split("One.  Two.\n\nThree \n", options),
              ElementsAre("One.  ", "Two.\n\n", "Three \n"));
}

TEST(SentenceSplitterTest, AbbreviationsCanBeAdded) {
  EXPECT_THAT(Split("The Xyz. Corporation."), ElementsAre("The Xyz.", "Corporation."));
  SentenceSplitterOptions options;
  options.abbreviations = {"Xyz"};
  EXPECT_THAT(Split("The Xyz. Corporation.", options), ElementsAre("The Xyz. Corporation."));
}

// An algorithm of quadratic time would take minutes for any of these.
TEST(SentenceSplitterTest, AdversarialTextTakesLinearTime) {
  const auto begin = std::chrono::steady_clock::now();
  for (const char* unit : {".", "?", "。", "「", "」。", "\n", " ", "\n \t", ".'", ". (", "(", "a.",
                           "\x80", "。」と", "1. ", "…", "Mr. "}) {
    std::string text;
    while (text.size() < (1 << 20)) text += unit;
    std::vector<absl::string_view> sentences;
    SplitSentences(text, {}, &sentences);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

}  // namespace
}  // namespace megatron
