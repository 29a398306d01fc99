#include "megatron/optim/batch_size_schedule.h"

#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

BatchSizeOptions Options(int64_t global, int64_t granularity,
                         std::vector<BatchSizeStep> steps = {}) {
  BatchSizeOptions options;
  options.global_batch_size = global;
  options.granularity = granularity;
  options.steps = std::move(steps);
  return options;
}

BatchSizeSchedule Ramp(int64_t global, int64_t granularity, int64_t start, int64_t increment,
                       int64_t samples) {
  return *BatchSizeSchedule::Create(
      Options(global, granularity, RampUp(start, increment, samples, global)));
}

std::vector<std::pair<int64_t, int64_t>> Pairs(const std::vector<BatchSizeStep>& steps) {
  std::vector<std::pair<int64_t, int64_t>> pairs;
  for (const BatchSizeStep& step : steps) pairs.emplace_back(step.samples, step.size);
  return pairs;
}

TEST(BatchSizeScheduleTest, WithoutStepsTheSizeIsConstant) {
  const auto sizes = BatchSizeSchedule::Create(Options(64, 8));
  ASSERT_TRUE(sizes.ok()) << sizes.status();
  EXPECT_EQ(sizes->GlobalBatchSize(0), 64);
  EXPECT_EQ(sizes->GlobalBatchSize(1 << 30), 64);
  EXPECT_EQ(sizes->NumMicrobatches(0), 8);
}

TEST(BatchSizeScheduleTest, ARampGrowsInEqualStepsOverTheSamples) {
  const BatchSizeSchedule ramp = Ramp(64, 8, 16, 16, 300);  // 3 steps of 100 samples
  EXPECT_EQ(ramp.GlobalBatchSize(0), 16);
  EXPECT_EQ(ramp.GlobalBatchSize(99), 16);
  EXPECT_EQ(ramp.GlobalBatchSize(100), 32);
  EXPECT_EQ(ramp.GlobalBatchSize(299), 48);
  EXPECT_EQ(ramp.GlobalBatchSize(300), 64);
  EXPECT_EQ(ramp.GlobalBatchSize(301), 64);
  EXPECT_EQ(ramp.NumMicrobatches(100), 4);
}

// GPT-3's recipe: --rampup-batch-size 16 16 5859375 --global-batch-size 1536 has 95 steps of
// 61677.6 samples.
TEST(BatchSizeScheduleTest, StepsOfARampNeedNotBeWholeNumbersOfSamples) {
  const BatchSizeSchedule ramp = Ramp(1536, 16, 16, 16, 5859375);
  EXPECT_EQ(ramp.GlobalBatchSize(61677), 16);
  EXPECT_EQ(ramp.GlobalBatchSize(61678), 32);
  EXPECT_EQ(ramp.GlobalBatchSize(123355), 32);
  EXPECT_EQ(ramp.GlobalBatchSize(123356), 48);
  EXPECT_EQ(ramp.GlobalBatchSize(5859374), 1520);
  EXPECT_EQ(ramp.GlobalBatchSize(5859376), 1536);
}

// The size is Megatron's: start + int(consumed / (samples / steps)) * increment up to `samples`,
// and the last size after it.
TEST(BatchSizeScheduleTest, ARampIsMegatronsAtEverySample) {
  for (const int64_t samples : {1, 2, 7, 99, 100, 101, 1000}) {
    for (const int64_t count : {1, 2, 3, 7, 49}) {
      const BatchSizeSchedule ramp = Ramp(2 * (count + 1), 1, 2, 2, samples);
      const double length = static_cast<double>(samples) / static_cast<double>(count);
      for (int64_t consumed = 0; consumed <= samples + 2; ++consumed) {
        const int64_t expected =
            consumed > samples
                ? 2 * (count + 1)
                : 2 + 2 * static_cast<int64_t>(static_cast<double>(consumed) / length);
        ASSERT_EQ(ramp.GlobalBatchSize(consumed), expected)
            << consumed << " of " << samples << " in " << count << " steps";
      }
    }
  }
}

TEST(BatchSizeScheduleTest, ReadsStepsInTokens) {
  const auto steps = ParseBatchSizeSteps("0:16 2.4b:320, 4.8B:0.5K", 2048);
  ASSERT_TRUE(steps.ok()) << steps.status();
  EXPECT_THAT(Pairs(*steps), ElementsAre(Pair(0, 16), Pair(1171875, 320), Pair(2343750, 500)));
  const auto sizes = BatchSizeSchedule::Create(Options(500, 4, *steps));
  ASSERT_TRUE(sizes.ok()) << sizes.status();
  EXPECT_EQ(sizes->GlobalBatchSize(1171874), 16);
  EXPECT_EQ(sizes->GlobalBatchSize(1171875), 320);
  EXPECT_EQ(sizes->GlobalBatchSize(int64_t{1} << 50), 500);
}

TEST(BatchSizeScheduleTest, RefusesTextsThatAreNoSchedule) {
  for (const char* text : {"0", "0:", ":8", "0:8:8", "0:0", "0:-8", "-1:8", "x:8", "0:8 1Q:8",
                           "0:nan", "inf:8", "0:2B", "0:8 1e30:16", "0:1e99T"}) {
    EXPECT_THAT(ParseBatchSizeSteps(text, 8),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("such as 2.4B:320")))
        << text;
  }
  EXPECT_THAT(ParseBatchSizeSteps(" ", 8),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no batch size")));
  EXPECT_THAT(ParseBatchSizeSteps("8:8", 8),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("from 0 tokens on")));
  EXPECT_THAT(ParseBatchSizeSteps("1:8", 8),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("from 0 tokens on")));
  for (const char* text : {"0:8 64:8", "0:8 64:16 80:4"}) {
    EXPECT_THAT(ParseBatchSizeSteps(text, 8),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("batch sizes must grow")))
        << text;
  }
  EXPECT_THAT(ParseBatchSizeSteps("0:8 64:16 71:24", 8),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("'71:24' begins after 8 samples"),
                             HasSubstr("no later than what stands in front"))));
}

TEST(BatchSizeScheduleTest, CountsIterationsThatFindAllSamples) {
  EXPECT_EQ(CountIterations({{0, 4}}, 801), 200);
  EXPECT_EQ(CountIterations({{0, 4}}, 3), 0);
  // 2, 2, ... until 100 samples are consumed, then 4.
  EXPECT_EQ(CountIterations({{0, 2}, {100, 4}}, 500), 50 + 100);
  EXPECT_EQ(CountIterations({{0, 2}, {100, 4}}, 51), 25);
  // The third iteration of 4 begins at sample 8 and takes the run to 12, past the step at 10.
  EXPECT_EQ(CountIterations({{0, 4}, {10, 6}}, 30), 3 + 3);
  // An iteration may pass over a whole step.
  EXPECT_EQ(CountIterations({{0, 8}, {2, 4}, {6, 10}}, 28), 1 + 2);
}

TEST(BatchSizeScheduleTest, CountedIterationsAreThoseThatTheSizesGive) {
  for (const std::vector<BatchSizeStep>& steps :
       {RampUp(2, 2, 37, 12), RampUp(3, 3, 5, 30),
        std::vector<BatchSizeStep>{{0, 5}, {7, 2}, {9, 11}}}) {
    const auto sizes = BatchSizeSchedule::Create(Options(steps.back().size, 1, steps));
    ASSERT_TRUE(sizes.ok()) << sizes.status();
    for (int64_t samples = 0; samples < 120; ++samples) {
      int64_t consumed = 0, iterations = 0;
      while (consumed + sizes->GlobalBatchSize(consumed) <= samples) {
        consumed += sizes->GlobalBatchSize(consumed);
        ++iterations;
      }
      ASSERT_EQ(CountIterations(steps, samples), iterations) << samples;
    }
  }
}

TEST(BatchSizeScheduleTest, TheErrorNamesEveryBrokenRule) {
  EXPECT_THAT(BatchSizeSchedule::Create(Options(60, 8, {{0, 20}, {100, 64}})),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("global_batch_size 60"), HasSubstr("the batch size 20"),
                             HasSubstr("lead to 64 and not to global_batch_size 60"))));
  EXPECT_THAT(BatchSizeSchedule::Create(Options(64, 8, {{8, 16}, {2, 64}})),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("size 16 holds from sample 8 on, which is out of order"),
                             HasSubstr("size 64 holds from sample 2 on"))));
  EXPECT_THAT(BatchSizeSchedule::Create(Options(64, 0)),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace megatron
