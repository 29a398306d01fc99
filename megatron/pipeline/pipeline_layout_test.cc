#include "megatron/pipeline/pipeline_layout.h"

#include <numeric>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;

MATCHER_P2(HasMtp, layers, before_last, "") {
  return arg.mtp_layers == layers && arg.mtp_before_last == before_last;
}

template <typename... Counts>
auto HoldsLayers(Counts... counts) {
  return IsOkAndHolds(Field("layers", &PipelineLayout::layers, ElementsAre(counts...)));
}

TEST(PipelineLayoutTest, CountsTheLayersOfEachPart) {
  EXPECT_THAT(ParsePipelineLayout("EtL"), HoldsLayers(1));
  EXPECT_THAT(ParsePipelineLayout("Ett|tL"), HoldsLayers(2, 1));
  EXPECT_THAT(ParsePipelineLayout("E|t||t|L"), HoldsLayers(0, 1, 0, 1, 0));
}

TEST(PipelineLayoutTest, RepeatsLettersAndGroupsWithTheirBars) {
  EXPECT_THAT(ParsePipelineLayout("Et*3|(tt|)*2,t,L"), HoldsLayers(3, 2, 2, 1));
  EXPECT_THAT(ParsePipelineLayout("E (t*2|)*2 t*1 |*2 L"), HoldsLayers(2, 2, 1, 0, 0));
  EXPECT_THAT(ParsePipelineLayout("E(t)*2(t)L"), HoldsLayers(3));
}

// The layout of Megatron's documentation, of 61 layers.
TEST(PipelineLayoutTest, ReadsTheLayoutThatUsersKnow) {
  const auto layout = ParsePipelineLayout("Et*3|(tt|)*29,m|L");
  ASSERT_TRUE(layout.ok()) << layout.status();
  const std::vector<int64_t>& layers = layout->layers;
  EXPECT_EQ(layers.size(), 32u);
  EXPECT_EQ(std::accumulate(layers.begin(), layers.end(), int64_t{0}), 61);
  EXPECT_EQ(layers[30], 0);
  EXPECT_EQ(layout->mtp_layers, 1);
  EXPECT_TRUE(layout->mtp_before_last);
}

TEST(PipelineLayoutTest, MultiTokenPredictionIsInTheLastPartOrInTheOneBefore) {
  EXPECT_THAT(ParsePipelineLayout("Et|L"), IsOkAndHolds(HasMtp(0, false)));
  EXPECT_THAT(ParsePipelineLayout("Et|mL"), IsOkAndHolds(HasMtp(1, false)));
  EXPECT_THAT(ParsePipelineLayout("Et|tm*2L"), IsOkAndHolds(HasMtp(2, false)));
  EXPECT_THAT(ParsePipelineLayout("Et|tmm|L"), IsOkAndHolds(HasMtp(2, true)));
  EXPECT_THAT(ParsePipelineLayout("Et|m*3|L"), IsOkAndHolds(HasMtp(3, true)));
  EXPECT_THAT(ParsePipelineLayout("Etm|L"), IsOkAndHolds(HasMtp(1, true)));
  EXPECT_THAT(ParsePipelineLayout("Et(|m)*1|L"), IsOkAndHolds(HasMtp(1, true)));
  for (const char* elsewhere : {"Et|mtL", "Etm|tL", "Etm||L", "Etm|mL", "Et|m|m|L", "Emt|L"}) {
    EXPECT_THAT(ParsePipelineLayout(elsewhere),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("must stand in one part")))
        << elsewhere;
  }
  for (const char* wrong : {"EmL|t", "mEtL", "Et|Lm"}) {
    EXPECT_THAT(ParsePipelineLayout(wrong), StatusIs(absl::StatusCode::kInvalidArgument)) << wrong;
  }
}

TEST(PipelineLayoutTest, SaysWhatIsWrongAndWhere) {
  const auto expect = [](absl::string_view text, absl::string_view message) {
    EXPECT_THAT(ParsePipelineLayout(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(std::string(message))))
        << text;
  };
  expect("", "must begin with E");
  expect("t|L", "must begin with E");
  expect("Et|Et|L", "hold no other");
  expect("Et|t", "must end with L");
  expect("EtL|t|L", "must end with L, the loss, and hold no other");
  expect("Etx|L", "'x' at character 3 is none of");
  expect("E(t(t|)*2)*2L", "'(' at character 4 is a group in a group");
  expect("E(t|L", "'(' at character 2 has no end");
  expect("E)tL", "')' at character 2");
  expect("E*tL", "'*' at character 2 must be followed by a number");
  expect("Et*2*3L", "'*' at character 5 repeats nothing");
  expect("E(*2)L", "'*' at character 3 repeats nothing");
  expect("Et*0L", "must be followed by a number");
  expect("Et*99999999999999999999L", "must be followed by a number");
  expect("Et*100000L", "more than 100000");
  expect("E(t*1000|)*1000L", "more than 100000");
  expect(absl::string_view("E\0tL", 4), "is none of");
}

}  // namespace
}  // namespace megatron
