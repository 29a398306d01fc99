#include "megatron/optim/batch_size_ramp.h"

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

BatchSizeRampOptions Options(int64_t global, int64_t granularity, int64_t start, int64_t increment,
                             int64_t samples) {
  BatchSizeRampOptions options;
  options.global_batch_size = global;
  options.granularity = granularity;
  options.start = start;
  options.increment = increment;
  options.samples = samples;
  return options;
}

TEST(BatchSizeRampTest, WithoutRampTheSizeIsConstant) {
  auto ramp = BatchSizeRamp::Create(Options(64, 8, 0, 0, 0));
  ASSERT_TRUE(ramp.ok()) << ramp.status();
  EXPECT_EQ(ramp->GlobalBatchSize(0), 64);
  EXPECT_EQ(ramp->GlobalBatchSize(1 << 30), 64);
  EXPECT_EQ(ramp->NumMicrobatches(0), 8);
}

TEST(BatchSizeRampTest, GrowsInEqualStepsOverTheSamples) {
  auto ramp = BatchSizeRamp::Create(Options(64, 8, 16, 16, 300));  // 3 steps of 100 samples
  ASSERT_TRUE(ramp.ok()) << ramp.status();
  EXPECT_EQ(ramp->GlobalBatchSize(0), 16);
  EXPECT_EQ(ramp->GlobalBatchSize(99), 16);
  EXPECT_EQ(ramp->GlobalBatchSize(100), 32);
  EXPECT_EQ(ramp->GlobalBatchSize(299), 48);
  EXPECT_EQ(ramp->GlobalBatchSize(300), 64);
  EXPECT_EQ(ramp->GlobalBatchSize(301), 64);
  EXPECT_EQ(ramp->NumMicrobatches(100), 4);
}

// GPT-3's recipe: --rampup-batch-size 16 16 5859375 --global-batch-size 1536 has 95 steps of
// 61677.6 samples.
TEST(BatchSizeRampTest, StepsNeedNotBeWholeNumbersOfSamples) {
  auto ramp = BatchSizeRamp::Create(Options(1536, 16, 16, 16, 5859375));
  ASSERT_TRUE(ramp.ok()) << ramp.status();
  EXPECT_EQ(ramp->GlobalBatchSize(61677), 16);
  EXPECT_EQ(ramp->GlobalBatchSize(61678), 32);
  EXPECT_EQ(ramp->GlobalBatchSize(123355), 32);
  EXPECT_EQ(ramp->GlobalBatchSize(123356), 48);
  EXPECT_EQ(ramp->GlobalBatchSize(5859374), 1520);
  EXPECT_EQ(ramp->GlobalBatchSize(5859376), 1536);
}

TEST(BatchSizeRampTest, ARampThatStartsAtTheFinalSizeIsConstant) {
  auto ramp = BatchSizeRamp::Create(Options(64, 8, 64, 8, 100));
  ASSERT_TRUE(ramp.ok()) << ramp.status();
  EXPECT_EQ(ramp->GlobalBatchSize(0), 64);
}

TEST(BatchSizeRampTest, TheErrorNamesEveryBrokenRule) {
  EXPECT_THAT(BatchSizeRamp::Create(Options(60, 8, 20, 7, 100)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("global_batch_size 60"), HasSubstr("start 20"),
                             HasSubstr("increment 7"), HasSubstr("do not lead from 20"))));
  EXPECT_THAT(BatchSizeRamp::Create(Options(64, 8, 72, 8, 100)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("do not lead from 72")));
  EXPECT_THAT(BatchSizeRamp::Create(Options(64, 8, 8, 0, 100)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("increment 0")));
  EXPECT_THAT(BatchSizeRamp::Create(Options(64, 0, 0, 0, 0)),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace megatron
