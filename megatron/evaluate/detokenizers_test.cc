#include "megatron/evaluate/detokenizers.h"

#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "megatron/evaluate/python_text.h"

namespace megatron {
namespace {

// What lm_eval 0.4.13 makes of these texts; Megatron's rules are the same.
TEST(DetokenizersTest, WikitextIsThatOfLmEval) {
  const std::pair<const char*, const char*> cases[] = {
      {" = Robert Boulter = \n \n Robert Boulter is an English film , television and theatre actor "
       ". He had a guest @-@ starring role on the television series The Bill in 2000 . \n",
       " = Robert Boulter =\n\nRobert Boulter is an English film, television and theatre actor. He "
       "had a guest-starring role on the television series The Bill in 2000.\n"},
      {"the dogs ' tails and James 's 1 @,@ 200 km ( 745 @.@ 6 mi ) ; see [ citation ] { x } : yes "
       "! no ? \" quoted \" ' single ' = = = = Head = = = = N N 20 \u00b0 C",
       "the dogs'tails and James's 1,200 km (745.6 mi); see [citation] {x}: yes! no? "
       "\"quoted\"'single' ==== Head ==== 1 N 20\u00b0C"},
      {"( a ( b ) c ) [ ] ( \u00a0\u3000x\u2003) \" \" ' '", "(a ( b) c ) [] (x) \"\" ''"},
      {"/' 5/ /' x/ /' 55/", "/'[0-9]/ /' x/ /' 55/"},
      {"unclosed ( one [ two { three \" four ' five",
       "unclosed ( one [ two { three \" four ' five"},
      {"= = A = = = B = = = = C = =", "== A === B ==== C =="},
      {"", ""},
      {" \n \n\n \n", "\n\n\n\n"},
      {"it 's s 's s ' s", "it's s's s' s"},
      {"a\x1c( \x1c"
       "b\x1d )\x1f",
       "a\x1c(b)\x1f"}};
  for (const auto& [given, expected] : cases)
    EXPECT_EQ(DetokenizeWikitext(given), expected) << given;
}

TEST(DetokenizersTest, PtbIsThatOfMegatron) {
  EXPECT_EQ(DetokenizePtb("he does n't pay $ N million 's worth \n a # N "),
            "he doesn't pay $1 million's worth\na #1 ");
}

TEST(PythonTextTest, WhiteSpaceIsPythons) {
  EXPECT_EQ(StripPythonSpace(" \t\x1f\u00a0 a\u3000b \u2028\x1c"), "a\u3000b");
  EXPECT_EQ(StripTrailingPythonSpace(" a \n"), " a");
  EXPECT_EQ(StripPythonSpace("\u00a0 "), "");
  EXPECT_FALSE(IsPythonSpace(0x200b));  // a space of no width
  EXPECT_EQ(CountCharacters("\u00e9a\U0001f600"), 3);
  EXPECT_EQ(CountWords("a b"), 2);
  EXPECT_EQ(CountWords(""), 1);
  EXPECT_EQ(CountWords(" a  b "), 4);
  EXPECT_EQ(CountWords("\ta\n"), 3);
}

TEST(PythonTextTest, CapitalizeIsPythons) {
  EXPECT_EQ(Capitalize("hello WORLD"), "Hello world");
  EXPECT_EQ(Capitalize("\u00c9COLE \u00dcnder"), "\u00c9cole \u00fcnder");
  EXPECT_EQ(Capitalize("\u01c6"), "\u01c5");
  EXPECT_EQ(Capitalize(" a B"), " a b");
  EXPECT_EQ(Capitalize(""), "");
}

}  // namespace
}  // namespace megatron
