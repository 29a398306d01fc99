#include "megatron/train/console/wrap_text.h"

#include "gtest/gtest.h"

namespace megatron {
namespace {

TEST(WrapTextTest, BreaksLinesAtSpaces) {
  EXPECT_EQ(WrapText("one two three", "  ", 9), "one two\n  three");
  EXPECT_EQ(WrapText("one two three", "  ", 13), "one two three");
  EXPECT_EQ(WrapText("  - indented words", "    ", 12), "  - indented\n    words");
}

TEST(WrapTextTest, AWordLongerThanALineStandsAlone) {
  EXPECT_EQ(WrapText("a windowless room", "", 5), "a\nwindowless\nroom");
}

TEST(WrapTextTest, AnOperatorStaysBetweenItsOperands) {
  EXPECT_EQ(WrapText("sum x + y here", "", 5), "sum\nx + y\nhere");
}

}  // namespace
}  // namespace megatron
