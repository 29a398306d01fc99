#include "tools/pictures/schedule_svg.h"

#include <string>

#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/pipeline/check_schedule.h"
#include "megatron/pipeline/schedule.h"

namespace megatron {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

int Count(absl::string_view text, absl::string_view part) {
  int count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(ScheduleSvgTest, EachActionHasABoxAndEachStageALane) {
  const std::string svg = ScheduleSvg({{"three & five", *CheckSchedule(ZeroBubbleSchedule(3, 5))}});
  EXPECT_EQ(Count(svg, "<g><title>"), 3 * 5 * 3);
  EXPECT_EQ(Count(svg, ">stage "), 3);
  EXPECT_THAT(svg, HasSubstr("three &amp; five"));
  EXPECT_THAT(svg, HasSubstr(">backward, weights</text>"));
}

TEST(ScheduleSvgTest, TheLegendNamesOnlyWhatIsThere) {
  const std::string svg = ScheduleSvg({{"", *CheckSchedule(GPipeSchedule(2, 2))}});
  EXPECT_THAT(svg, HasSubstr(">backward</text>"));
  EXPECT_THAT(svg, Not(HasSubstr(">backward, weights</text>")));
}

// The second is half as long on the same scale, and begins below the first's lanes.
TEST(ScheduleSvgTest, PanelsLieUnderEachOtherOnOneScale) {
  const ScheduleReport one = *CheckSchedule(GPipeSchedule(1, 1)),
                       two = *CheckSchedule(GPipeSchedule(1, 2));
  const std::string svg = ScheduleSvg({{"first", two}, {"second", one}});
  EXPECT_EQ(Count(svg, ">stage 0</text>"), 2);
  EXPECT_THAT(svg, HasSubstr("y=\"36\" width=\"86.7\""));   // one of six units
  EXPECT_THAT(svg, HasSubstr("y=\"98\" width=\"173.3\""));  // the backward below
}

TEST(ScheduleSvgTest, BoxesLieWhereTheirTimesSay) {
  const std::string svg = ScheduleSvg({{"", *CheckSchedule(GPipeSchedule(1, 1))}});
  // One unit of forward and two of backward, from the left edge of the lanes on.
  EXPECT_THAT(svg, HasSubstr("forward of micro-batch 0, 0 to 1</title><rect class=\"f5\" "
                             "x=\"65.0\" y=\"6\" width=\"173.3\""));
  EXPECT_THAT(svg, HasSubstr("backward of micro-batch 0, 1 to 3</title><rect class=\"f4\" "
                             "x=\"238.3\" y=\"6\" width=\"346.7\""));
}

}  // namespace
}  // namespace megatron
