#include "megatron/train/trainer/log_line.h"

#include <cmath>
#include <limits>
#include <string>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

IterationLog ALog() {
  IterationLog log;
  log.time = absl::FromCivil(absl::CivilSecond(2026, 1, 31, 9, 8, 7), absl::UTCTimeZone()) +
             absl::Microseconds(60504);
  log.iteration = 100;
  log.train_iters = 10000;
  log.consumed_samples = 1600;
  log.elapsed_ms = 52.06;
  log.learning_rate = 1.5e-4;
  log.global_batch_size = 16;
  log.losses = {{"lm loss", 6.1234567}};
  log.grad_norm = 1.2345;
  return log;
}

TEST(LogLineTest, IsMegatronsByteForByte) {
  EXPECT_EQ(
      FormatIterationLine(ALog(), absl::UTCTimeZone()),
      " [2026-01-31 09:08:07.060504] iteration      100/   10000 | consumed samples:         1600 |"
      " elapsed time per iteration (ms): 52.1 | learning rate: 1.500000E-04 | global batch size:   "
      " 16 |"
      " lm loss: 6.123457E+00 | loss scale: 1.0 | grad norm: 1.234 | number of skipped iterations: "
      "  0 |"
      " number of nan iterations:   0 |");
}

TEST(LogLineTest, PutsOptionalFieldsWhereMegatronDoes) {
  IterationLog log = ALog();
  log.throughput_tflops = 408.84;
  log.num_zeros = 12;
  log.params_norm = 300.5;
  log.loss_scale = 4294967296;
  log.skipped_iterations = 2;
  log.nan_iterations = 1;
  log.losses = {{"lm loss", 2}, {"sop loss", 0.5}, {"bad loss", kNan}};
  EXPECT_EQ(
      FormatIterationLine(log, absl::UTCTimeZone()),
      " [2026-01-31 09:08:07.060504] iteration      100/   10000 | consumed samples:         1600 |"
      " elapsed time per iteration (ms): 52.1 | throughput per GPU (TFLOP/s/GPU): 408.8 | learning "
      "rate: 1.500000E-04 |"
      " global batch size:    16 | lm loss: 2.000000E+00 | sop loss: 5.000000E-01 | loss scale: "
      "4294967296.0 |"
      " grad norm: 1.234 | num zeros: 12 | params norm: 300.500 | number of skipped iterations:   "
      "2 |"
      " number of nan iterations:   1 |");
}

TEST(LogLineTest, AddsSpeedAfterIt) {
  EXPECT_EQ(FormatSpeed({31456.4, 0.1479, std::nullopt, std::nullopt, absl::Seconds(516)}),
            " tokens/s: 31456 | model TFLOP/s: 0.148 | ETA: 8m36s");
  EXPECT_EQ(FormatSpeed({1e6, 408.84, 0.4134, 0.465, absl::Hours(30)}),
            " tokens/s: 1000000 | model TFLOP/s: 408.8 | MFU: 41.3% (46.5% with attention in full) "
            "| ETA: 1d06h");
}

TEST(LogLineTest, FramesValidationAsMegatronDoes) {
  const std::string text =
      " validation loss at iteration 100 | lm loss value: 2.000000E+00 | lm loss PPL: 7.389056E+00 "
      "| ";
  const std::string dashes(text.size() + 1, '-');
  EXPECT_EQ(FormatValidationBlock("iteration 100", {{"lm loss", 2}}),
            dashes + "\n" + text + "\n" + dashes);
}

TEST(LogLineTest, OnlyLossesHavePerplexities) {
  EXPECT_THAT(
      FormatValidationBlock("iteration 1", {{"lm loss", 0}}, {{"lm accuracy", 0.5}}),
      testing::HasSubstr("lm loss PPL: 1.000000E+00 | lm accuracy value: 5.000000E-01 | \n"));
}

TEST(LogLineTest, BoundsPerplexity) {
  EXPECT_DOUBLE_EQ(Perplexity(2), std::exp(2.0));
  EXPECT_DOUBLE_EQ(Perplexity(1000), std::exp(20.0));
  EXPECT_TRUE(std::isnan(Perplexity(std::nan(""))));
}

TEST(LogLineTest, PrintsTheFirstIterationAndEachIntervalsLast) {
  EXPECT_TRUE(ShouldLog(1, 100, /*is_first_of_this_program=*/true));
  EXPECT_FALSE(ShouldLog(2, 100, false));
  EXPECT_TRUE(ShouldLog(200, 100, false));
}

TEST(LogLineTest, WritesDurationsInTwoUnits) {
  EXPECT_EQ(FormatTimeLeft(absl::ZeroDuration()), "0s");
  EXPECT_EQ(FormatTimeLeft(absl::Seconds(59.6)), "1m00s");
  EXPECT_EQ(FormatTimeLeft(absl::Minutes(62)), "1h02m");
  EXPECT_EQ(FormatTimeLeft(absl::Hours(76)), "3d04h");
  EXPECT_EQ(FormatTimeLeft(absl::InfiniteDuration()), "unknown");
}

TEST(IntervalMeansTest, LeavesSkippedIterationsOut) {
  IntervalMeans means;
  means.Add({{"lm loss", 1}}, /*skipped=*/false);
  means.Add({{"lm loss", 100}}, /*skipped=*/true);
  means.Add({{"lm loss", kInf}}, /*skipped=*/true);
  means.Add({{"lm loss", 2}}, /*skipped=*/false);
  ASSERT_EQ(means.Means().size(), 1);
  EXPECT_EQ(means.Means()[0].value, 1.5);
  EXPECT_EQ(means.iterations(), 4);
  EXPECT_EQ(means.skipped(), 2);
  EXPECT_EQ(means.nans(), 1);
  means.Clear();
  EXPECT_EQ(means.iterations(), 0);
  EXPECT_TRUE(means.Means().empty());
}

TEST(IntervalMeansTest, HasNoMeansWhereAllWereSkipped) {
  IntervalMeans means;
  means.Add({{"lm loss", 1}}, /*skipped=*/true);
  EXPECT_TRUE(means.Means().empty());
  EXPECT_EQ(means.nans(), 0);
}

}  // namespace
}  // namespace megatron
