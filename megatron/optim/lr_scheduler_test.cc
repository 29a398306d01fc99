#include "megatron/optim/lr_scheduler.h"

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

OptimizerParamSchedule Schedule(LrDecayStyle style) {
  OptimizerParamSchedule schedule;
  schedule.max_lr = 3e-4;
  schedule.min_lr = 3e-5;
  schedule.init_lr = 1e-6;
  schedule.lr_warmup_steps = 1000;
  schedule.lr_decay_steps = 10000;
  schedule.lr_decay_style = style;
  schedule.wsd_decay_steps = 2000;
  return schedule;
}

// The steps of every golden list below: in the warm-up, at its end, in the decay, in WSD's last
// phase and at the end.
constexpr int64_t kSteps[] = {0, 250, 1000, 1001, 4000, 8000, 8500, 9999, 10000, 10001};

void ExpectLearningRates(const OptimizerParamSchedule& schedule,
                         const std::vector<double>& golden) {
  ASSERT_EQ(golden.size(), std::size(kSteps));
  for (size_t i = 0; i < golden.size(); ++i) {
    EXPECT_NEAR(LearningRate(schedule, kSteps[i]), golden[i], 1e-15 * 3e-4) << kSteps[i];
  }
}

// Golden values, computed in Python's double precision from the formulas of the header.
TEST(LearningRateTest, ConstantStaysAfterWarmUpWithoutEnd) {
  ExpectLearningRates(Schedule(LrDecayStyle::kConstant),
                      {1e-6, 7.575e-05, 3e-4, 3e-4, 3e-4, 3e-4, 3e-4, 3e-4, 3e-4, 3e-4});
}

TEST(LearningRateTest, LinearFallsFromTheEndOfWarmUpToTheMinimum) {
  ExpectLearningRates(Schedule(LrDecayStyle::kLinear),
                      {1e-6, 7.575e-05, 3e-4, 0.00029997, 0.00021, 9e-5, 7.5e-5,
                       3.0029999999999989e-05, 3e-5, 3e-5});
}

TEST(LearningRateTest, CosineFallsAsHalfAWave) {
  ExpectLearningRates(
      Schedule(LrDecayStyle::kCosine),
      {1e-6, 7.575e-05, 3e-4, 0.00029999999177532973, 0.0002325, 6.1584000178937972e-05,
       4.808657048910077e-05, 3.0000008224670257e-05, 3e-5, 3e-5});
}

TEST(LearningRateTest, InverseSquareRootFallsByTheWarmUpsLength) {
  ExpectLearningRates(
      Schedule(LrDecayStyle::kInverseSquareRoot),
      {1e-6, 7.575e-05, 3e-4, 0.00029985011240633196, 0.00015, 0.00010606601717798212,
       0.00010289915108550529, 9.487307357732751e-05, 9.4868329805051379e-05, 3e-5});
}

TEST(LearningRateTest, InverseSquareRootDoesNotFallBelowTheMinimum) {
  OptimizerParamSchedule schedule = Schedule(LrDecayStyle::kInverseSquareRoot);
  schedule.min_lr = 1.2e-4;
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 8000), 1.2e-4);
}

TEST(LearningRateTest, InverseSquareRootWithoutWarmUpStartsAtTheMaximum) {
  OptimizerParamSchedule schedule = Schedule(LrDecayStyle::kInverseSquareRoot);
  schedule.lr_warmup_steps = 0;
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 0), 3e-4);
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 4), 1.5e-4);
}

TEST(LearningRateTest, WsdIsStableAndThenDecaysInItsStyle) {
  struct {
    WsdDecayStyle style;
    double at_a_quarter, almost_at_the_end;
  } const kCases[] = {
      {WsdDecayStyle::kExponential, 0.00021408406423700579, 3.0093591086538247e-05},
      {WsdDecayStyle::kLinear, 0.0002325, 3.0134999999999985e-05},
      {WsdDecayStyle::kCosine, 0.00026045941546018388, 3.0000166549540026e-05},
      {WsdDecayStyle::kMinusSqrt, 0.000165, 3.0067508439610013e-05},
  };
  for (const auto& c : kCases) {
    OptimizerParamSchedule schedule = Schedule(LrDecayStyle::kWsd);
    schedule.wsd_decay_style = c.style;
    ExpectLearningRates(schedule, {1e-6, 7.575e-05, 3e-4, 3e-4, 3e-4, 3e-4, c.at_a_quarter,
                                   c.almost_at_the_end, 3e-5, 3e-5});
  }
}

TEST(LearningRateTest, WithoutWarmUpTheFirstStepHasTheMaximum) {
  OptimizerParamSchedule schedule = Schedule(LrDecayStyle::kCosine);
  schedule.lr_warmup_steps = 0;
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 0), 3e-4);
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 5000), 1.65e-4);
}

TEST(WeightDecayTest, RisesInItsStyleAndThenStays) {
  OptimizerParamSchedule schedule;
  schedule.start_weight_decay = 0.01;
  schedule.end_weight_decay = 0.11;
  schedule.weight_decay_steps = 400;
  schedule.weight_decay_style = WeightDecayStyle::kLinear;
  EXPECT_DOUBLE_EQ(WeightDecay(schedule, 0), 0.01);
  EXPECT_DOUBLE_EQ(WeightDecay(schedule, 100), 0.035);
  EXPECT_DOUBLE_EQ(WeightDecay(schedule, 400), 0.11);
  EXPECT_DOUBLE_EQ(WeightDecay(schedule, 401), 0.11);
  schedule.weight_decay_style = WeightDecayStyle::kCosine;
  EXPECT_DOUBLE_EQ(WeightDecay(schedule, 0), 0.01);
  EXPECT_NEAR(WeightDecay(schedule, 100), 0.01 + 0.1 * (2 - std::sqrt(2.0)) / 4, 1e-16);
  EXPECT_DOUBLE_EQ(WeightDecay(schedule, 200), 0.06);
  EXPECT_DOUBLE_EQ(WeightDecay(schedule, 400), 0.11);
}

TEST(WeightDecayTest, ConstantNeedsNoSteps) {
  OptimizerParamSchedule schedule;
  schedule.start_weight_decay = schedule.end_weight_decay = 0.1;
  EXPECT_DOUBLE_EQ(WeightDecay(schedule, 0), 0.1);
  EXPECT_DOUBLE_EQ(WeightDecay(schedule, 1000), 0.1);
}

TEST(OptimizerParamSchedulerTest, ContinuesFromItsState) {
  auto first = OptimizerParamScheduler::Create(Schedule(LrDecayStyle::kLinear));
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_DOUBLE_EQ(first->learning_rate(), 1e-6);
  first->Advance(1500);
  first->Advance(2500);
  EXPECT_DOUBLE_EQ(first->learning_rate(), 0.00021);
  auto second = OptimizerParamScheduler::Create(Schedule(LrDecayStyle::kLinear));
  ASSERT_TRUE(second.ok()) << second.status();
  second->set_state(first->state());
  EXPECT_EQ(second->learning_rate(), first->learning_rate());
}

TEST(OptimizerParamSchedulerTest, TheErrorNamesEveryBrokenRule) {
  OptimizerParamSchedule schedule = Schedule(LrDecayStyle::kWsd);
  schedule.min_lr = 1;
  schedule.init_lr = std::numeric_limits<double>::quiet_NaN();
  schedule.lr_decay_steps = 1000;
  schedule.wsd_decay_steps = 0;
  schedule.end_weight_decay = 0.1;
  EXPECT_THAT(OptimizerParamScheduler::Create(schedule),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("min_lr 1 "), HasSubstr("lr_warmup_init nan"),
                             HasSubstr("decays until sample 1000"), HasSubstr("WSD decay over 0"),
                             HasSubstr("constant weight decay"))));
}

TEST(OptimizerParamSchedulerTest, AConstantRateNeedsNoDecayLength) {
  OptimizerParamSchedule schedule;
  schedule.max_lr = 1e-3;
  schedule.lr_decay_style = LrDecayStyle::kConstant;
  EXPECT_TRUE(OptimizerParamScheduler::Create(schedule).ok());
}

TEST(LearningRateTest, DecoupledRatesHaveEndsOfTheirOwn) {
  OptimizerParamSchedule schedule;
  schedule.max_lr = 2;
  schedule.min_lr = 1;
  schedule.init_lr = 0.5;
  schedule.lr_warmup_steps = 10;
  schedule.lr_decay_steps = 30;
  EXPECT_EQ(DecoupledLearningRate(schedule, 5), std::nullopt);
  schedule.decoupled_max_lr = 4.5;
  schedule.decoupled_min_lr = 0.5;
  EXPECT_EQ(DecoupledLearningRate(schedule, 0), 0.5);
  EXPECT_EQ(DecoupledLearningRate(schedule, 5), 2.5);
  EXPECT_EQ(DecoupledLearningRate(schedule, 10), 4.5);
  EXPECT_EQ(DecoupledLearningRate(schedule, 20), 2.5);
  EXPECT_EQ(DecoupledLearningRate(schedule, 31), 0.5);
  EXPECT_EQ(LearningRate(schedule, 10), 2);
  schedule.decoupled_min_lr = 5;
  EXPECT_FALSE(Validate(schedule).ok());
}

}  // namespace
}  // namespace megatron
