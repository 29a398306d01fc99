#include "megatron/pipeline/pipeline_layout.h"

#include <numeric>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(PipelineLayoutTest, CountsTheLayersOfEachPart) {
  EXPECT_THAT(ParsePipelineLayout("EtL"), IsOkAndHolds(ElementsAre(1)));
  EXPECT_THAT(ParsePipelineLayout("Ett|tL"), IsOkAndHolds(ElementsAre(2, 1)));
  EXPECT_THAT(ParsePipelineLayout("E|t||t|L"), IsOkAndHolds(ElementsAre(0, 1, 0, 1, 0)));
}

TEST(PipelineLayoutTest, RepeatsLettersAndGroupsWithTheirBars) {
  EXPECT_THAT(ParsePipelineLayout("Et*3|(tt|)*2,t,L"), IsOkAndHolds(ElementsAre(3, 2, 2, 1)));
  EXPECT_THAT(ParsePipelineLayout("E (t*2|)*2 t*1 |*2 L"),
              IsOkAndHolds(ElementsAre(2, 2, 1, 0, 0)));
  EXPECT_THAT(ParsePipelineLayout("E(t)*2(t)L"), IsOkAndHolds(ElementsAre(3)));
}

// The layout of Megatron's documentation, of 61 layers, with its multi-token prediction in the last
// part.
TEST(PipelineLayoutTest, ReadsTheLayoutThatUsersKnow) {
  const auto layers = ParsePipelineLayout("Et*3|(tt|)*29,|L");
  ASSERT_TRUE(layers.ok()) << layers.status();
  EXPECT_EQ(layers->size(), 32u);
  EXPECT_EQ(std::accumulate(layers->begin(), layers->end(), int64_t{0}), 61);
  EXPECT_THAT(CountMtpLayers("Et*3|(tt|)*29,|L"), IsOkAndHolds(0));
  EXPECT_THAT(ParsePipelineLayout("Et*3|(tt|)*29,|mL"), IsOkAndHolds(*layers));
  EXPECT_THAT(CountMtpLayers("Et*3|(tt|)*29,|mL"), IsOkAndHolds(1));
  EXPECT_THAT(CountMtpLayers("Et|tm*2L"), IsOkAndHolds(2));
  for (const char* elsewhere : {"Et*3|(tt|)*29,m|L", "Et|mtL", "EmL|t", "mEtL"}) {
    EXPECT_THAT(CountMtpLayers(elsewhere), StatusIs(absl::StatusCode::kInvalidArgument))
        << elsewhere;
  }
  EXPECT_THAT(ParsePipelineLayout("Et*3|(tt|)*29,m|L"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("must stand in the last part, in front of L")));
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
