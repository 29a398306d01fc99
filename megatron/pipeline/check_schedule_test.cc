#include "megatron/pipeline/check_schedule.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::PrintToString;

constexpr ActionKind kF = ActionKind::kForward, kB = ActionKind::kBackward;
constexpr ActionKind kI = ActionKind::kBackwardInput, kW = ActionKind::kBackwardWeight;
constexpr int kMaxStages = 7, kMaxMicrobatches = 12;

// The bubble of GPipe and 1F1B is (stages - 1) / microbatches; what differs is memory.
TEST(CheckScheduleTest, GPipeHasTheBubbleAndMemoryOfItsPaper) {
  for (int stages = 1; stages <= kMaxStages; ++stages) {
    for (int microbatches = 1; microbatches <= kMaxMicrobatches; ++microbatches) {
      const auto report = CheckSchedule(GPipeSchedule(stages, microbatches));
      ASSERT_THAT(report, IsOk());
      EXPECT_DOUBLE_EQ(report->time, 3 * (microbatches + stages - 1));
      EXPECT_NEAR(report->bubble, double(stages - 1) / microbatches, 1e-12);
      for (int in_flight : report->in_flight) EXPECT_EQ(in_flight, microbatches);
    }
  }
}

TEST(CheckScheduleTest, OneForwardOneBackwardHasTheBubbleAndMemoryOfItsPaper) {
  for (int stages = 1; stages <= kMaxStages; ++stages) {
    for (int microbatches = 1; microbatches <= kMaxMicrobatches; ++microbatches) {
      const auto report = CheckSchedule(InterleavedSchedule({stages, microbatches}));
      ASSERT_THAT(report, IsOk());
      EXPECT_DOUBLE_EQ(report->time, 3 * (microbatches + stages - 1));
      for (int s = 0; s < stages; ++s) {
        EXPECT_EQ(report->in_flight[s], std::min(microbatches, stages - s));
      }
    }
  }
}

TEST(CheckScheduleTest, InterleavingDividesTheBubbleByTheChunks) {
  for (int stages = 2; stages <= 5; ++stages) {
    for (int chunks = 1; chunks <= 4; ++chunks) {
      for (int groups = 1; groups <= 4; ++groups) {
        const int microbatches = groups * stages;
        const auto report = CheckSchedule(InterleavedSchedule({stages, microbatches, chunks, 0}));
        ASSERT_THAT(report, IsOk());
        EXPECT_NEAR(report->bubble, double(stages - 1) / (microbatches * chunks), 1e-12)
            << stages << " stages, " << chunks << " chunks, " << microbatches << " micro-batches";
        for (int s = 0; s < stages; ++s) {
          const int warmup =
              chunks == 1 ? stages - 1 - s : 2 * (stages - 1 - s) + (chunks - 1) * stages;
          EXPECT_EQ(report->in_flight[s], std::min(microbatches * chunks, warmup + 1));
        }
      }
    }
  }
}

TEST(CheckScheduleTest, InterleavingRunsWithAnyGroupsNotSmallerThanThePipeline) {
  for (int stages = 1; stages <= 5; ++stages) {
    for (int chunks = 1; chunks <= 3; ++chunks) {
      for (int group = stages; group <= stages + 3; ++group) {
        for (int microbatches = 1; microbatches <= 3 * group; ++microbatches) {
          const int last = microbatches % group;
          if (microbatches > group && last != 0 && last < stages) continue;
          EXPECT_THAT(CheckSchedule(InterleavedSchedule({stages, microbatches, chunks, group})),
                      IsOk())
              << stages << " stages, " << chunks << " chunks, groups of " << group << ", "
              << microbatches << " micro-batches";
        }
      }
    }
  }
}

// This is also the least that any schedule can take: the last stage starts `stages - 1` late.
TEST(CheckScheduleTest, SplitBackwardsLeaveAThirdOfTheBubble) {
  for (int stages = 1; stages <= kMaxStages; ++stages) {
    for (int microbatches = 1; microbatches <= kMaxMicrobatches; ++microbatches) {
      const auto report = CheckSchedule(ZeroBubbleSchedule(stages, microbatches));
      ASSERT_THAT(report, IsOk());
      // A schedule of few micro-batches has nothing with which to fill the way there and back.
      const int idle = std::max(stages - 1, 2 * (stages - 1) - (microbatches - 1));
      EXPECT_DOUBLE_EQ(report->time, 3 * microbatches + idle)
          << stages << " stages, " << microbatches << " micro-batches";
      for (int in_flight : report->in_flight) EXPECT_LE(in_flight, std::min(stages, microbatches));
    }
  }
}

TEST(CheckScheduleTest, SplitBackwardsNeverTakeLongerThan1F1B) {
  ActionCosts costs;
  for (double weight : {0.25, 0.5, 1.0, 2.0}) {
    costs.backward_weight = weight;
    for (int stages = 1; stages <= kMaxStages; ++stages) {
      for (int microbatches = 1; microbatches <= kMaxMicrobatches; ++microbatches) {
        const auto zero_bubble = CheckSchedule(ZeroBubbleSchedule(stages, microbatches), costs);
        const auto plain = CheckSchedule(InterleavedSchedule({stages, microbatches}), costs);
        ASSERT_THAT(zero_bubble, IsOk());
        ASSERT_THAT(plain, IsOk());
        EXPECT_LE(zero_bubble->time, plain->time + 1e-9)
            << stages << " stages, " << microbatches << " micro-batches, weights " << weight;
      }
    }
  }
}

// Two stages of an encoder, which cost 1 a forward, and two of a decoder, which cost 2: the
// decoder's work of 8 micro-batches, and what fills and empties the pipeline around it.
TEST(CheckScheduleTest, PartsMayCostDifferently) {
  const PartCosts costs({{1, 1, 1}, {1, 1, 1}, {2, 2, 2}, {2, 2, 2}});
  EXPECT_EQ(costs.Mean().forward, 1.5);
  const auto report = CheckSchedule(GPipeSchedule(4, 8), costs);
  ASSERT_THAT(report, IsOk());
  EXPECT_DOUBLE_EQ(report->time, (1 + 1 + 8 * 2 + 2) + (4 + 8 * 4 + 2 + 2));
  EXPECT_DOUBLE_EQ(report->bubble, report->time / (8 * 6) - 1);
  const auto even = CheckSchedule(GPipeSchedule(4, 8), costs.Mean());
  ASSERT_THAT(even, IsOk());
  EXPECT_LT(even->time, report->time);
}

TEST(CheckScheduleTest, EveryScheduleIsRightForPartsOfAnyCost) {
  for (int stages = 1; stages <= 4; ++stages) {
    for (int microbatches = stages; microbatches <= 8; microbatches += stages) {
      for (const Schedule& schedule :
           {GPipeSchedule(stages, microbatches), InterleavedSchedule({stages, microbatches}),
            InterleavedSchedule({stages, microbatches, 2, 0}),
            ZeroBubbleSchedule(stages, microbatches)}) {
        std::vector<ActionCosts> costs;
        for (int position = 0; position < schedule.positions(); ++position)
          costs.push_back({1.0 + position % 3, 1.5 + position % 2, 0.5});
        EXPECT_THAT(CheckSchedule(schedule, PartCosts(costs)), IsOk());
      }
    }
  }
}

TEST(CheckScheduleTest, ForwardsAloneHoldOneItem) {
  const auto report = CheckSchedule(ForwardSchedule({4, 8, 2, 0}));
  ASSERT_THAT(report, IsOk());
  EXPECT_DOUBLE_EQ(report->time, 16 + 3);
  EXPECT_EQ(report->in_flight, std::vector<int>(4, 1));
}

TEST(CheckScheduleTest, SplitBackwardsLetTheStageBeforeGoOnEarlier) {
  Schedule whole{2, 1, 1, {{{kF, 0, 0}, {kB, 0, 0}}, {{kF, 0, 0}, {kB, 0, 0}}}};
  Schedule split{2, 1, 1, {{{kF, 0, 0}, {kB, 0, 0}}, {{kF, 0, 0}, {kI, 0, 0}, {kW, 0, 0}}}};
  EXPECT_DOUBLE_EQ(CheckSchedule(whole)->time, 6);
  EXPECT_DOUBLE_EQ(CheckSchedule(split)->time, 5);
}

TEST(CheckScheduleTest, CostsAreTakenAsGiven) {
  ActionCosts costs;
  costs.forward = 2;
  costs.backward_input = 3;
  costs.backward_weight = 4;
  EXPECT_DOUBLE_EQ(CheckSchedule(GPipeSchedule(2, 1), costs)->time, 2 * 2 + 2 * 7);
}

// Returns the error of a correct schedule after one change.
TEST(CheckScheduleTest, NamesWhatIsWrong) {
  const auto failure = [](const std::vector<Action>& first, const std::vector<Action>& second,
                          int microbatches = 1) {
    return CheckSchedule(Schedule{2, 1, microbatches, {first, second}});
  };
  const std::vector<Action> right = {{kF, 0, 0}, {kB, 0, 0}};
  const absl::StatusCode code = absl::StatusCode::kFailedPrecondition;
  EXPECT_THAT(failure({{kF, 0, 0}}, right), StatusIs(code, HasSubstr("B0 of stage 0 is missing")));
  EXPECT_THAT(failure(right, right, 2), StatusIs(code, HasSubstr("F1 of stage 0 is missing")));
  EXPECT_THAT(failure({{kF, 0, 0}, {kF, 0, 0}, {kB, 0, 0}}, right),
              StatusIs(code, HasSubstr("F0 of stage 0 is forwarded twice")));
  EXPECT_THAT(failure(right, {{kF, 0, 0}, {kB, 0, 0}, {kB, 0, 0}}),
              StatusIs(code, HasSubstr("B0 of stage 1 is backwarded twice")));
  EXPECT_THAT(failure(right, {{kB, 0, 0}, {kF, 0, 0}}),
              StatusIs(code, HasSubstr("B0 of stage 1 comes before its forward")));
  EXPECT_THAT(failure({{kF, 0, 0}, {kW, 0, 0}, {kI, 0, 0}}, right),
              StatusIs(code, HasSubstr("W0 of stage 0 comes before")));
  EXPECT_THAT(failure({{kF, 0, 0}, {kI, 0, 0}}, right),
              StatusIs(code, HasSubstr("B0 of stage 0 is missing")));
  EXPECT_THAT(failure({{kF, 7, 0}}, right), StatusIs(code, HasSubstr("F7 of stage 0 has no such")));
  EXPECT_THAT(failure({{kF, 0, 3}}, right), StatusIs(code, HasSubstr("F0.3")));
  EXPECT_THAT(CheckSchedule(Schedule{2, 1, 1, {right}}), StatusIs(code));
}

TEST(CheckScheduleTest, FindsCirclesOfWaiting) {
  // Stage 0 wants the backward of 0 before it forwards 1; stage 1 wants it the other way round.
  const Schedule schedule{2,
                          1,
                          2,
                          {{{kF, 0, 0}, {kB, 0, 0}, {kF, 1, 0}, {kB, 1, 0}},
                           {{kF, 0, 0}, {kF, 1, 0}, {kB, 0, 0}, {kB, 1, 0}}}};
  EXPECT_THAT(CheckSchedule(schedule),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("stage 0 at B0"), HasSubstr("stage 1 at F1"))));
}

// Returns a line of text for each stage, with a column for each unit of time: "F0 F1 B0 B0 ..".
std::string DrawSchedule(const ScheduleReport& report) {
  size_t width = 1;
  for (const auto& stage : report.stages) {
    for (const TimedAction& timed : stage)
      width = std::max(width, PrintToString(timed.action).size() + 1);
  }
  std::string picture;
  for (const auto& stage : report.stages) {
    std::string line(static_cast<size_t>(std::ceil(report.time)) * width, ' ');
    for (size_t i = 0; i < line.size(); i += width) line[i] = '.';
    for (const TimedAction& timed : stage) {
      const std::string text = PrintToString(timed.action);
      for (int column = std::lround(timed.start); column < std::lround(timed.end); ++column) {
        line.replace(column * width, text.size(), text);
      }
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&picture, line, "\n");
  }
  return picture;
}

TEST(CheckScheduleTest, SaysWhenEachStageRunsWhichAction) {
  EXPECT_EQ(DrawSchedule(*CheckSchedule(InterleavedSchedule({3, 4}))),
            "F0 F1 F2 .  .  .  .  B0 B0 F3 B1 B1 .  B2 B2 .  B3 B3\n"
            ".  F0 F1 .  .  B0 B0 F2 B1 B1 F3 B2 B2 .  B3 B3 .  .\n"
            ".  .  F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 .  .  .  .\n");
}

}  // namespace
}  // namespace megatron
