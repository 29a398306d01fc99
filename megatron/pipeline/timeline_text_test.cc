#include "megatron/pipeline/timeline_text.h"

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/pipeline/zero_bubble_v.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

TEST(TimelineTextTest, AWrittenTimelineIsReadBack) {
  const Schedule schedule = ZeroBubbleVSchedule(3, 5);
  const MeasuredSchedule written = {schedule, CheckSchedule(schedule)->stages};
  const auto read = ParseTimelineText(TimelineText(written));
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(read->schedule.actions, schedule.actions);
  EXPECT_EQ(read->schedule.order, schedule.order);
  EXPECT_EQ(TimelineText(*read), TimelineText(written));
  EXPECT_DOUBLE_EQ(CheckSchedule(read->schedule)->time, CheckSchedule(schedule)->time);
}

TEST(TimelineTextTest, SaysWhichLineIsWrong) {
  const auto expect = [](absl::string_view text, const std::string& message) {
    EXPECT_THAT(ParseTimelineText(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)))
        << text;
  };
  const std::string head = "pipeline 1 1 1 round-robin\n";
  EXPECT_THAT(ParseTimelineText(head + "0 F0 0 1\n0 B0 1 3\n"), IsOk());
  expect("", "line 1: expects 'pipeline");
  expect("pipeline 0 1 1 round-robin\n", "line 1");
  expect("pipeline 1 1 1 sideways\n0 F0 0 1\n", "line 1");
  expect("pipeline 1000000 1 1 round-robin\n0 F0 0 1\n", "fewer actions than");
  expect("pipeline 1 1048576 1048576 round-robin\n0 F0 0 1\n", "fewer actions than");
  expect(head + "0 F0 0\n", "line 2: expects 'STAGE");
  expect(head + "0 X0 0 1\n", "line 2: expects 'STAGE");
  expect(head + "0 F0.1.2 0 1\n", "line 2: expects 'STAGE");
  expect(head + "0 F-1 0 1\n", "line 2: expects 'STAGE");
  expect(head + "1 F0 0 1\n", "line 2: there is no stage 1");
  expect(head + "0 F0.5 0 1\n", "line 2: there is no chunk 5");
  expect(head + "0 F0 0 1\n0 B1 1 2\n", "line 3: there is no micro-batch 1");
  expect(head + "0 F0 0 nan\n", "line 2: an action begins before");
  expect(head + "0 F0 0 1\n0 B0 0.5 2\n", "line 3: an action begins before");
}

TEST(TimelineTextTest, CostsAreMeansOfWhatWasMeasured) {
  MeasuredSchedule measured;
  measured.schedule.stages = 2;
  measured.timelines = {
      {{{ActionKind::kForward, 0, 0}, 0, 1},
       {{ActionKind::kForward, 1, 0}, 1, 4},
       {{ActionKind::kBackward, 0, 0}, 4, 10}},
      {{{ActionKind::kBackwardInput, 0, 0}, 0, 1}, {{ActionKind::kBackwardWeight, 0, 0}, 1, 1.5}}};
  const PartCosts costs = MeanCosts(measured);
  const ActionCosts whole = costs.At(0), parts = costs.At(1);
  EXPECT_DOUBLE_EQ(whole.forward, 2);
  EXPECT_DOUBLE_EQ(whole.backward_input, 3);
  EXPECT_DOUBLE_EQ(whole.backward_weight, 3);
  EXPECT_DOUBLE_EQ(parts.backward_input, 1);
  EXPECT_DOUBLE_EQ(parts.backward_weight, 0.5);
}

}  // namespace
}  // namespace megatron
