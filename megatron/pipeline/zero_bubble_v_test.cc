#include "megatron/pipeline/zero_bubble_v.h"

#include <algorithm>
#include <map>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/pipeline/check_schedule.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;

constexpr int kMaxStages = 9;

int MaxMicrobatches(int stages) { return 3 * stages + 4; }

TEST(ZeroBubbleVTest, EverySmallScheduleIsRight) {
  for (int stages = 1; stages <= kMaxStages; ++stages) {
    for (int microbatches = 1; microbatches <= MaxMicrobatches(stages); ++microbatches) {
      EXPECT_THAT(CheckSchedule(ZeroBubbleVSchedule(stages, microbatches)), IsOk())
          << stages << " stages, " << microbatches << " micro-batches";
    }
  }
}

// The least that any schedule can take: the last stage gets its first micro-batch `stages - 1`
// late, and has 6 units of work for each.
TEST(ZeroBubbleVTest, OnlyTheWayToTheLastStageIsIdle) {
  for (int stages = 1; stages <= kMaxStages; ++stages) {
    for (int microbatches = 1; microbatches <= MaxMicrobatches(stages); ++microbatches) {
      const auto report = CheckSchedule(ZeroBubbleVSchedule(stages, microbatches));
      ASSERT_THAT(report, IsOk());
      const int least = 6 * microbatches + stages - 1;
      if (microbatches == stages || microbatches >= stages + (stages + 1) / 2) {
        EXPECT_EQ(report->time, least) << stages << " stages, " << microbatches << " micro-batches";
      } else {
        // A schedule of few micro-batches has nothing with which to fill the way there and back.
        EXPECT_LE(report->time, std::max(least + stages - 1, 4 * stages + 2 * microbatches - 1))
            << stages << " stages, " << microbatches << " micro-batches";
      }
    }
  }
}

TEST(ZeroBubbleVTest, HoldsNoMoreThanOneForwardOneBackwardDoesOnItsFirstStage) {
  for (int stages = 1; stages <= kMaxStages; ++stages) {
    for (int microbatches = 1; microbatches <= MaxMicrobatches(stages); ++microbatches) {
      const auto report = CheckSchedule(ZeroBubbleVSchedule(stages, microbatches));
      ASSERT_THAT(report, IsOk());
      for (int halves : report->in_flight)
        EXPECT_LE(halves, 2 * std::min(stages, microbatches))
            << stages << " stages, " << microbatches << " micro-batches";
    }
  }
}

TEST(ZeroBubbleVTest, LargePipelinesComeCloseToTheLeastToo) {
  for (int stages : {16, 32}) {
    for (int microbatches : {2 * stages, 4 * stages + 1}) {
      const auto report = CheckSchedule(ZeroBubbleVSchedule(stages, microbatches));
      ASSERT_THAT(report, IsOk());
      EXPECT_LE(report->time, 6 * microbatches + stages + 1) << stages;
    }
  }
}

// The same holds where the parts take different times, if the order is made for them.
TEST(ZeroBubbleVTest, IsFasterThanZbH1ForAnyLikelyCosts) {
  for (double input : {0.8, 1.0, 1.3, 2.0}) {
    for (double weight : {0.6, 0.8, 1.0}) {
      const ActionCosts whole = {1, input, weight}, half = {0.5, 0.5 * input, 0.5 * weight};
      for (int stages = 2; stages <= 8; ++stages) {
        const int microbatches = 2 * stages;
        const auto v = CheckSchedule(ZeroBubbleVSchedule(stages, microbatches, half), half);
        const auto h1 = CheckSchedule(ZeroBubbleSchedule(stages, microbatches), whole);
        ASSERT_THAT(v, IsOk());
        EXPECT_LT(v->time, h1->time) << stages << " stages, " << input << ", " << weight;
      }
    }
  }
}

// The order of sums of parameter gradients must not depend on the schedule.
TEST(ZeroBubbleVTest, TakesTheMicroBatchesOfAChunkInOrder) {
  const Schedule schedule = ZeroBubbleVSchedule(4, 9);
  for (const auto& actions : schedule.actions) {
    std::map<std::pair<ActionKind, int>, int> next;
    for (const Action& action : actions) {
      const int expected = next[std::make_pair(action.kind, action.chunk)]++;
      EXPECT_EQ(action.microbatch, expected);
    }
  }
}

// docs/pipeline.md has these bubbles. A backward of two parts of about the same time leaves few
// pauses; one that recomputes all leaves more.
TEST(ZeroBubbleVTest, OrdersFitTheCostsTheyAreMadeFor) {
  struct Case {
    int microbatches;
    ActionCosts costs;
    double bubble;
  };
  for (const Case& c : {Case{32, {1, 1, 1}, 0.0365}, Case{32, {1, 1.1, 0.9}, 0.0525},
                        Case{32, {1, 1.3, 0.7}, 0.0685}, Case{16, {1, 2.1, 0.68}, 0.1905}}) {
    const auto report = CheckSchedule(ZeroBubbleVSchedule(8, c.microbatches, c.costs), c.costs);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_LE(report->bubble, c.bubble) << c.costs.backward_input;
    // An order for parts that take as long does not fit others.
    const auto other = CheckSchedule(ZeroBubbleVSchedule(8, c.microbatches), c.costs);
    ASSERT_TRUE(other.ok()) << other.status();
    EXPECT_GE(other->bubble, report->bubble);
  }
}

}  // namespace
}  // namespace megatron
