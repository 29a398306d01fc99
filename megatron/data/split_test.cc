#include "megatron/data/split.h"

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

SequenceRange Range(absl::string_view text, Split split, int64_t num_sequences) {
  return SplitRange(split, ParseSplit(text).value(), num_sequences);
}

TEST(ParseSplitTest, SharesAreNormalizedAndMissingOnesAreZero) {
  EXPECT_THAT(ParseSplit("969,30,1"), IsOkAndHolds(ElementsAre(0.969, 0.03, 0.001)));
  EXPECT_THAT(ParseSplit("969, 30, 1"), IsOkAndHolds(ElementsAre(0.969, 0.03, 0.001)));
  EXPECT_THAT(ParseSplit("1"), IsOkAndHolds(ElementsAre(1, 0, 0)));
  EXPECT_THAT(ParseSplit(".5/.5"), IsOkAndHolds(ElementsAre(0.5, 0.5, 0)));
}

TEST(ParseSplitTest, InvalidSplitsAreErrors) {
  for (const char* text : {"", "0,0,0", "1,2,3,4", "a", "-1,2", "1,nan", "inf", "1e308,1e308"}) {
    EXPECT_THAT(ParseSplit(text), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)))
        << text;
  }
}

TEST(SplitRangeTest, SplitsFollowEachOtherAndCoverAll) {
  for (const char* text : {"969,30,1", "1,1,1", "1,0,1", "0,0,1", "949,50,1", ".1,.2,.3"}) {
    for (int64_t n : {0, 1, 2, 7, 1000, 99999}) {
      const SequenceRange train = Range(text, Split::kTrain, n);
      const SequenceRange valid = Range(text, Split::kValid, n);
      const SequenceRange test = Range(text, Split::kTest, n);
      EXPECT_EQ(train.begin, 0);
      EXPECT_EQ(train.end, valid.begin);
      EXPECT_EQ(valid.end, test.begin);
      EXPECT_EQ(test.end, n);
    }
  }
}

TEST(SplitRangeTest, BoundsRoundHalvesToEvenAsInMegatron) {
  EXPECT_EQ(Range("1,1", Split::kTrain, 5).end, 2);
  EXPECT_EQ(Range("1,1", Split::kTrain, 7).end, 4);
  EXPECT_EQ(Range("969,30,1", Split::kTrain, 1000).end, 969);
  EXPECT_EQ(Range("969,30,1", Split::kTest, 100).begin, 100);
}

TEST(SamplesNeededTest, SamplesAreCountedAsInMegatron) {
  RunLength run;
  run.train_iters = 10000;
  run.global_batch_size = 16;
  run.eval_interval = 1000;
  run.eval_iters = 10;
  EXPECT_EQ(SamplesNeeded(Split::kTrain, run), 160000);
  EXPECT_EQ(SamplesNeeded(Split::kValid, run), 11 * 10 * 16);
  EXPECT_EQ(SamplesNeeded(Split::kTest, run), 10 * 16);
  run.eval_interval = 0;
  EXPECT_EQ(SamplesNeeded(Split::kValid, run), 0);
}

}  // namespace
}  // namespace megatron
