#include "megatron/train/config/layer_pattern.h"

#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;

TEST(LayerPatternTest, ANumberIsEveryNthLayerFromTheFirstOn) {
  EXPECT_THAT(ParseLayerPattern("1", 3), IsOkAndHolds(ElementsAre(true, true, true)));
  EXPECT_THAT(ParseLayerPattern(" 2 ", 4), IsOkAndHolds(ElementsAre(true, false, true, false)));
}

TEST(LayerPatternTest, ListsAreRepeatedAndJoined) {
  EXPECT_THAT(ParseLayerPattern("[0]+[1]*3", 4),
              IsOkAndHolds(ElementsAre(false, true, true, true)));
  EXPECT_THAT(ParseLayerPattern("([1, 0] * 2 + [1])", 5),
              IsOkAndHolds(ElementsAre(true, false, true, false, true)));
}

TEST(LayerPatternTest, RefusesWhatIsNoPatternOfSoManyLayers) {
  for (const std::string text :
       {"", "0", "-1", "[1]*2", "[1]*4", "[1]*1000000000000", "[2]*3", "[1]*3*1", "[1*3", "1]*3",
        "[]*3", "([1]*3", "[1]**3", "[1]*-3", "[1]*3+", "a", "1.5"}) {
    EXPECT_THAT(ParseLayerPattern(text, 3), StatusIs(absl::StatusCode::kInvalidArgument)) << text;
  }
}

}  // namespace
}  // namespace megatron
