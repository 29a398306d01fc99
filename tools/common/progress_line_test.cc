#include "tools/common/progress_line.h"

#include "gtest/gtest.h"

namespace megatron {
namespace {

TEST(ProgressLineTest, DurationsReadAsOnAClock) {
  EXPECT_EQ(FormatDuration(0), "0:00");
  EXPECT_EQ(FormatDuration(59.9), "0:59");
  EXPECT_EQ(FormatDuration(61), "1:01");
  EXPECT_EQ(FormatDuration(3723), "1:02:03");
  EXPECT_EQ(FormatDuration(360000), "100:00:00");
}

TEST(ProgressLineTest, CountsHaveThreeDigits) {
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(7), "7");
  EXPECT_EQ(FormatCount(7.25), "7.25");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(1000), "1.00 k");
  EXPECT_EQ(FormatCount(12345), "12.3 k");
  EXPECT_EQ(FormatCount(999600), "1.00 M");
  EXPECT_EQ(FormatCount(4.56e9), "4.56 G");
}

TEST(ProgressLineTest, TimeLeftFollowsFromTheTimeTaken) {
  EXPECT_EQ(FormatRemaining(25, 100, 30), ", 25 %, 1:30 left");
  EXPECT_EQ(FormatRemaining(100, 100, 30), ", 100 %, 0:00 left");
  EXPECT_EQ(FormatRemaining(120, 100, 30), ", 100 %, 0:00 left");
  EXPECT_EQ(FormatRemaining(25, -1, 30), "");
  EXPECT_EQ(FormatRemaining(0, 100, 30), "");
}

}  // namespace
}  // namespace megatron
