#include "megatron/optim/loss_scaler.h"

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

LossScaler Dynamic(double initial_scale, int64_t window, int64_t hysteresis) {
  DynamicLossScaleOptions options;
  options.initial_scale = initial_scale;
  options.window = window;
  options.hysteresis = hysteresis;
  auto scaler = LossScaler::CreateDynamic(options);
  EXPECT_TRUE(scaler.ok()) << scaler.status();
  return *scaler;
}

TEST(LossScalerTest, StartsWhereMegatronStarts) {
  auto scaler = LossScaler::CreateDynamic({});
  ASSERT_TRUE(scaler.ok());
  EXPECT_EQ(scaler->scale(), 4294967296.0f);
}

TEST(LossScalerTest, AConstantScaleIgnoresOverflows) {
  LossScaler scaler = LossScaler::MakeConstant(128);
  for (int i = 0; i < 2000; ++i) scaler.Update(i % 2 == 0);
  EXPECT_EQ(scaler.scale(), 128);
  scaler.set_state({});
  EXPECT_EQ(scaler.scale(), 128);
}

TEST(LossScalerTest, HalvesAtTheOverflowThatSpendsTheHysteresis) {
  LossScaler scaler = Dynamic(1024, 1000, 2);
  scaler.Update(true);
  EXPECT_EQ(scaler.scale(), 1024);
  scaler.Update(true);
  EXPECT_EQ(scaler.scale(), 512);
}

TEST(LossScalerTest, OnceTheHysteresisIsSpentEveryOverflowHalvesUntilTheScaleHasGrown) {
  LossScaler scaler = Dynamic(1024, 4, 2);
  scaler.Update(true);
  scaler.Update(false);  // clean steps alone do not refill it
  scaler.Update(true);
  EXPECT_EQ(scaler.scale(), 512);
  scaler.Update(false);
  scaler.Update(true);
  EXPECT_EQ(scaler.scale(), 256);
  for (int i = 0; i < 4; ++i) scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 512);
  scaler.Update(true);  // refilled by the growth
  EXPECT_EQ(scaler.scale(), 512);
  scaler.Update(true);
  EXPECT_EQ(scaler.scale(), 256);
}

TEST(LossScalerTest, GrowsAfterAWindowOfCleanStepsInARow) {
  LossScaler scaler = Dynamic(1024, 3, 2);
  scaler.Update(false);
  scaler.Update(false);
  scaler.Update(true);
  scaler.Update(false);
  scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 1024);
  scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 2048);
  for (int i = 0; i < 3; ++i) scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 4096);
}

TEST(LossScalerTest, DoesNotFallBelowTheMinimum) {
  LossScaler scaler = Dynamic(4, 1000, 1);
  for (int i = 0; i < 10; ++i) scaler.Update(true);
  EXPECT_EQ(scaler.scale(), 1);
}

TEST(LossScalerTest, ContinuesFromItsState) {
  LossScaler first = Dynamic(1024, 3, 2);
  first.Update(true);
  first.Update(false);
  first.Update(false);
  LossScaler second = Dynamic(1024, 3, 2);
  second.set_state(first.state());
  for (bool overflow : {false, true, true, true, false}) {
    first.Update(overflow);
    second.Update(overflow);
    EXPECT_EQ(first.scale(), second.scale());
  }
  EXPECT_EQ(first.scale(), 512);
}

TEST(LossScalerTest, TheErrorNamesEveryBrokenRule) {
  DynamicLossScaleOptions options;
  options.initial_scale = 0.5;
  options.window = 0;
  options.hysteresis = 0;
  options.growth_factor = 1;
  options.backoff_factor = 1;
  EXPECT_THAT(LossScaler::CreateDynamic(options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("initial_loss_scale 0.5"), HasSubstr("window 0"),
                             HasSubstr("hysteresis 0"), HasSubstr("growth factor 1"),
                             HasSubstr("backoff factor 1"))));
}

}  // namespace
}  // namespace megatron
