// Tests what a run says of compressed gradients and of optimizers that send signs.
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/pretrain_harness.h"

namespace megatron {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const Arguments kTwoRanks = {"--set=parallel.data_parallel_size=2"};

class PretrainCompressionTest : public PretrainProgramTest {
 protected:
  // A run of two data-parallel ranks with these arguments, which ends well.
  std::string OutputOf(const Arguments& more) const {
    const Outcome outcome = Run(Joined(kTwoRanks, more));
    EXPECT_EQ(outcome.exit_code, kExitDone) << outcome.output;
    return outcome.output;
  }
};

TEST_F(PretrainCompressionTest, AThresholdThatNoElementReachesIsToldOnce) {
  const std::string far = OutputOf(
      {"--set=gradient_compression.type=threshold", "--set=gradient_compression.threshold=1e6"});
  EXPECT_EQ(CountOf(far,
                    "WARNING: in 10 steps in a row no element of a gradient was above "
                    "gradient_compression.threshold = 1e+06"),
            1)
      << far;
  const std::string near = OutputOf(
      {"--set=gradient_compression.type=threshold", "--set=gradient_compression.threshold=1e-4"});
  EXPECT_THAT(near, Not(HasSubstr("in a row")));
}

TEST_F(PretrainCompressionTest, SumsThatAreZeroInHalfPrecisionAreToldOnce) {
  const Arguments half = {"--set=parallel.communication_data_type=fp16"};
  const std::string zero =
      OutputOf(Joined(half, {"--set=parallel.gradient_predivide_factor=1e12"}));
  EXPECT_EQ(CountOf(zero, "WARNING: in 10 steps in a row all sums of gradients were 0 in fp16"), 1)
      << zero;
  EXPECT_THAT(OutputOf(half), Not(HasSubstr("in a row")));
}

TEST_F(PretrainCompressionTest, WhatPowerSgdSumsAsItIsIsTold) {
  const Arguments powersgd = {"--set=gradient_compression.type=powersgd"};
  EXPECT_THAT(OutputOf(powersgd),
              HasSubstr("elements of the last rank's gradients are summed as they are: biases"));
  EXPECT_THAT(
      OutputOf(Joined(powersgd, {"--set=gradient_compression.matrix_approximation_rank=64"})),
      HasSubstr("WARNING: gradient_compression.type = powersgd compresses no matrix"));
}

// The configuration has 12 iterations.
TEST_F(PretrainCompressionTest, StepsOfZeroOneAdamThatTheEndDoesNotSeeAreTold) {
  const auto with = [&](const std::string& var_freeze_step, const std::string& clipper) {
    return OutputOf({"--set=optimizer.optimizer=zero_one_adam",
                     absl::StrCat("--set=optimizer.var_freeze_step=", var_freeze_step),
                     "--set=optimizer.local_step_scaler=1",
                     absl::StrCat("--set=optimizer.local_step_clipper=", clipper)});
  };
  EXPECT_THAT(with("12", "4"),
              HasSubstr("WARNING: optimizer.var_freeze_step = 12 is not reached in 12 iterations"));
  EXPECT_THAT(with("4", "5"), HasSubstr("WARNING: the last 2 steps of 0/1 Adam are local"));
  EXPECT_THAT(with("4", "4"), Not(HasSubstr("0/1 Adam are local")));
}

TEST_F(PretrainCompressionTest, AnotherDensityGoesOnAndIsTold) {
  const Arguments topk = {"--set=gradient_compression.type=topk", SaveTo("save")};
  OutputOf(Joined(topk, {"--set=gradient_compression.density=0.1", "--set=train.exit_interval=6"}));
  const std::string same = OutputOf(
      Joined(topk, {"--set=gradient_compression.density=0.1", "--set=train.exit_interval=8"}));
  EXPECT_THAT(same, AllOf(HasSubstr("continuing from "), Not(HasSubstr("goes on with"))));
  const std::string other = OutputOf(
      Joined(topk, {"--set=gradient_compression.density=0.05", "--set=train.exit_interval=10"}));
  EXPECT_THAT(other, HasSubstr("gradient_compression goes on with what it had not sent, though "
                               "density was 0.1 and is 0.05"));
}

TEST_F(PretrainCompressionTest, AnotherLayoutAndAnotherOptimizerAreToldInFewWords) {
  const Arguments signs = {"--set=optimizer.optimizer=onebit_adam", "--set=optimizer.freeze_step=2",
                           SaveTo("save")};
  OutputOf(Joined(signs, {"--set=train.exit_interval=6"}));
  const std::string load = absl::StrCat("--set=checkpoint.load=\"", Path("save"), "\"");
  const Outcome other = Run({load, "--set=optimizer.optimizer=onebit_adam",
                             "--set=optimizer.freeze_step=2", "--set=train.exit_interval=8"});
  EXPECT_EQ(other.exit_code, kExitDone) << other.output;
  EXPECT_THAT(other.output, HasSubstr(absl::StrCat("WARNING: ", Path("save"))));
  EXPECT_THAT(other.output, HasSubstr("what compressed gradients or momentum lack is lost, since "
                                      "data_parallel_size was 2 and is 1"));
  const Outcome adam = Run(Joined(kTwoRanks, {load, "--set=checkpoint.no_load_optim=true"}));
  EXPECT_EQ(adam.exit_code, kExitConfig) << adam.output;
  EXPECT_THAT(adam.output, HasSubstr("optimizer.freeze_step"));
  EXPECT_EQ(CountOf(adam.output, "optimizer."), 1) << adam.output;
}

}  // namespace
}  // namespace megatron
