#include "megatron/train/metrics/step_comparer.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/trace/time_category.h"
#include "megatron/tensor/trace/trace.h"

namespace megatron {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kMillisecond = 1'000'000;

StepComparison Predicted() {
  StepComparison predicted;
  predicted.set_stage(1);
  predicted.set_predicted_seconds(0.010);
  const auto add = [&](const char* name, double seconds) {
    ComparedPart* const part = predicted.add_part();
    part->set_name(name);
    part->set_predicted_seconds(seconds);
  };
  add(Name(TimeCategory::kCompute), 0.008);
  add(Name(TimeCategory::kDataParallel), 0.002);
  add(Name(TimeCategory::kContextParallel), 0);
  add(kRestOfStep, 0);
  return predicted;
}

double Measured(const StepComparison& comparison, const std::string& name) {
  for (const ComparedPart& part : comparison.part()) {
    if (part.name() == name) return part.measured_seconds();
  }
  return -1;
}

class StepComparerTest : public ::testing::Test {
 protected:
  StepComparerTest()
      : pool_(1),
        trace_([this] { return now_; }),
        stream_(trace_.Follow(Stream::Cpu(&pool_), "compute")) {}

  void Work(TimeCategory category, int64_t milliseconds) {
    const TraceSpan span(stream_, category, "work");
    now_ += milliseconds * kMillisecond;
  }

  int64_t now_ = 0;
  ThreadPool pool_;
  Trace trace_;
  Stream stream_;
};

TEST_F(StepComparerTest, TheFirstStepsAreLeftOut) {
  StepComparer comparer(Predicted(), &trace_, {1, 2});
  int64_t step = 0;
  for (bool is_due = false; !is_due; ++step) {
    const bool warms_up = step < kWarmUpSteps;
    Work(TimeCategory::kCompute, warms_up ? 500 : 9);
    Work(TimeCategory::kDataParallel, 3);
    Work(TimeCategory::kData, 1);
    is_due = comparer.EndStep(warms_up ? 0.504 : 0.013);
  }
  EXPECT_EQ(step, kWarmUpSteps + kComparedSteps);
  RankTimes mine = comparer.Take();
  mine.stage = 1;
  RankTimes slow = mine;
  slow.by_category[static_cast<int>(TimeCategory::kCompute)] += kComparedSteps * 2 * kMillisecond;
  RankTimes other = slow;  // another stage's, and so left out
  other.stage = 0;
  const StepComparison comparison = comparer.Compare({other, mine, slow});
  EXPECT_EQ(comparison.steps(), kComparedSteps);
  EXPECT_NEAR(comparison.measured_seconds(), 0.013, 1e-9);
  EXPECT_NEAR(Measured(comparison, "compute"), 0.010, 1e-9);
  EXPECT_NEAR(Measured(comparison, "dp"), 0.003, 1e-9);
  EXPECT_NEAR(Measured(comparison, "cp"), 0, 1e-9);
  EXPECT_NEAR(Measured(comparison, kRestOfStep), 0, 1e-9);
  // It is compared once.
  EXPECT_FALSE(comparer.EndStep(1));
}

TEST_F(StepComparerTest, WhatNoPartHasIsTheRest) {
  StepComparer comparer(Predicted(), &trace_, {1, 2});
  for (int64_t step = 0; step < kWarmUpSteps + kComparedSteps; ++step) comparer.EndStep(0.020);
  RankTimes mine;
  mine.stage = 1;
  mine.by_category[static_cast<int>(TimeCategory::kCompute)] = kComparedSteps * 15 * kMillisecond;
  const StepComparison comparison = comparer.Compare({mine});
  EXPECT_NEAR(Measured(comparison, kRestOfStep), 0.005, 1e-9);
  const std::string line = FormatComparison(comparison);
  EXPECT_THAT(line, HasSubstr("a step takes 20 ms, +100.0 % beside the predicted 10; measured "
                              "(predicted) ms: compute 15 (8) | dp 0 (2) | rest 5 (0)"));
  EXPECT_THAT(line, Not(HasSubstr("cp")));
}

}  // namespace
}  // namespace megatron
