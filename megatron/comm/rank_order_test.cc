#include "megatron/comm/rank_order.h"

#include <set>
#include <string>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(RankOrderTest, IsMegatronsDefaultUnlessTold) {
  EXPECT_EQ(RankOrder().ToString(), "tp-cp-ep-dp-pp");
  EXPECT_THAT(RankOrder::Parse("tp-cp-ep-dp-pp"), IsOkAndHolds(RankOrder()));
}

TEST(RankOrderTest, ReadsTheAxesFastestFirst) {
  EXPECT_THAT(
      RankOrder::Parse("tp-cp-ep-pp-dp")->axes(),
      ElementsAre(Axis::kTensor, Axis::kContext, Axis::kExpert, Axis::kPipeline, Axis::kData));
}

TEST(RankOrderTest, ReadsAllThatItWrites) {
  std::set<std::string> texts;
  for (const RankOrder& order : RankOrder::All()) {
    EXPECT_THAT(RankOrder::Parse(order.ToString()), IsOkAndHolds(order));
    texts.insert(order.ToString());
  }
  EXPECT_EQ(texts.size(), 120u);
  EXPECT_EQ(RankOrder::All().front(), RankOrder());
}

TEST(RankOrderTest, RefusesWhatDoesNotNameEachAxisOnce) {
  for (const char* text : {"", "tp", "tp-cp-ep-dp", "tp-cp-ep-dp-dp", "tp-cp-ep-dp-pp-tp",
                           "tp-cp-ep-dp-pp-", "tp_cp_ep_dp_pp", "TP-CP-EP-DP-PP", "-----"}) {
    EXPECT_THAT(RankOrder::Parse(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("each once")))
        << text;
  }
}

}  // namespace
}  // namespace megatron
