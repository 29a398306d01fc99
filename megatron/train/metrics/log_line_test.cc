#include "megatron/train/metrics/log_line.h"

#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

StepMetrics Step() {
  StepMetrics step;
  step.time = absl::FromCivil(absl::CivilSecond(2026, 1, 31, 9, 8, 7), absl::UTCTimeZone()) +
              absl::Microseconds(60504);
  step.iteration = 100;
  step.train_iters = 10000;
  step.consumed_samples = 1600;
  step.learning_rate = 1.5e-4;
  step.global_batch_size = 16;
  step.grad_norm = 1.2345;
  step.interval.emplace();
  step.interval->losses = {{"lm loss", 6.1234567}};
  step.interval->speed.elapsed_ms = 52.06;
  step.interval->speed.tokens_per_second = 31456.4;
  step.interval->speed.model_tflops = 0.1479;
  step.interval->speed.time_left = absl::Seconds(516);
  return step;
}

TEST(LogLineTest, IsMegatronsByteForByteWithSpeedAfterIt) {
  EXPECT_EQ(
      FormatLogLine(Step(), absl::UTCTimeZone()),
      " [2026-01-31 09:08:07.060504] iteration      100/   10000 | consumed samples:         1600 |"
      " elapsed time per iteration (ms): 52.1 | learning rate: 1.500000E-04 | global batch size:   "
      " 16 |"
      " lm loss: 6.123457E+00 | loss scale: 1.0 | grad norm: 1.234 | number of skipped iterations: "
      "  0 |"
      " number of nan iterations:   0 |"
      " tokens/s: 31456 | model TFLOP/s: 0.148 | ETA: 8m36s");
}

TEST(LogLineTest, PutsOptionalFieldsWhereMegatronDoes) {
  StepMetrics step = Step();
  step.num_zeros = 12;
  step.sent_gradients = 0.0125;
  step.params_norm = 300.5;
  step.loss_scale = 4294967296;
  step.interval->losses = {{"lm loss", 2}, {"sop loss", 0.5}, {"bad loss", kNan}};
  step.interval->speed.tflops_per_rank = 408.84;
  step.interval->skipped_iterations = 2;
  step.interval->nan_iterations = 1;
  EXPECT_THAT(
      FormatLogLine(step, absl::UTCTimeZone()),
      testing::StartsWith(
          " [2026-01-31 09:08:07.060504] iteration      100/   10000 | consumed samples:         "
          "1600 |"
          " elapsed time per iteration (ms): 52.1 | throughput per GPU (TFLOP/s/GPU): 408.8 | "
          "learning rate: 1.500000E-04 |"
          " global batch size:    16 | lm loss: 2.000000E+00 | sop loss: 5.000000E-01 | loss "
          "scale: "
          "4294967296.0 |"
          " grad norm: 1.234 | num zeros: 12 | sent gradients: 0.0125 | params norm: 300.500 |"
          " number of skipped iterations:   2 |"
          " number of nan iterations:   1 | tokens/s: "));
}

TEST(LogLineTest, ACurriculumsLengthAndTokensAreThere) {
  StepMetrics step = Step();
  step.seq_length = 64;
  step.consumed_tokens = 102400;
  step.kept_tokens = 32;
  EXPECT_THAT(FormatLogLine(step, absl::UTCTimeZone()),
              testing::AllOf(testing::HasSubstr(" | consumed samples:         1600 | consumed "
                                                "tokens:       102400 | elapsed time"),
                             testing::HasSubstr(" | global batch size:    16 | curriculum seqlen:  "
                                                "  64 | random ltd length:    32 | lm loss")));
}

TEST(LogLineTest, TrainingFilesHaveALossEachWhereTheyAreFew) {
  StepMetrics step = Step();
  step.sources = {{"books", 2, /*is_loss=*/true}, {"news", 5.5, /*is_loss=*/true}};
  EXPECT_THAT(FormatLogLine(step, absl::UTCTimeZone()),
              testing::HasSubstr(" | number of nan iterations:   0 | lm loss train books: "
                                 "2.000000E+00 | lm loss train news: 5.500000E+00 | tokens/s: "));
  step.sources.resize(9, {"more", 1, /*is_loss=*/true});
  EXPECT_THAT(FormatLogLine(step, absl::UTCTimeZone()),
              testing::HasSubstr(" | number of nan iterations:   0 | tokens/s: "));
}

TEST(LogLineTest, OfSkippedIterationsTheLastLossIsThere) {
  StepMetrics step = Step();
  step.interval->losses.clear();
  step.loss = kNan;
  EXPECT_THAT(FormatLogLine(step, absl::UTCTimeZone()), testing::HasSubstr(" | lm loss: NAN | "));
}

TEST(LogLineTest, NamesTheShareOfThePeakWhereItIsKnown) {
  StepMetrics step = Step();
  step.interval->speed = {0, 1e6, 408.84, 0.4134, 0.465, std::nullopt, absl::Hours(30)};
  EXPECT_THAT(
      FormatLogLine(step, absl::UTCTimeZone()),
      testing::EndsWith(" tokens/s: 1000000 | model TFLOP/s: 408.8 | MFU: 41.3% (46.5% with "
                        "attention in full) | ETA: 1d06h"));
}

EvaluationMetrics Evaluation(double loss) {
  EvaluationMetrics evaluation;
  evaluation.iteration = 100;
  evaluation.loss = loss;
  return evaluation;
}

TEST(LogLineTest, FramesValidationAsMegatronDoes) {
  const std::string text =
      " validation loss at iteration 100 | lm loss value: 2.000000E+00 | lm loss PPL: 7.389056E+00 "
      "| ";
  const std::string dashes(text.size() + 1, '-');
  EXPECT_EQ(FormatValidationBlock(Evaluation(2)), dashes + "\n" + text + "\n" + dashes);
}

TEST(LogLineTest, NamesTheTestSet) {
  EvaluationMetrics evaluation = Evaluation(2);
  evaluation.on_test_set = true;
  EXPECT_THAT(FormatValidationBlock(evaluation),
              testing::HasSubstr(" validation loss at iteration 100 on test set | lm loss value"));
}

TEST(LogLineTest, OnlyLossesHavePerplexities) {
  EvaluationMetrics evaluation = Evaluation(0);
  evaluation.others = {{"lm accuracy", 0.5}, {"sop loss", 0, /*is_loss=*/true}};
  EXPECT_THAT(FormatValidationBlock(evaluation),
              testing::HasSubstr("lm loss PPL: 1.000000E+00 | sop loss value: 0.000000E+00 | sop "
                                 "loss PPL: 1.000000E+00 | lm accuracy value: 5.000000E-01 | \n"));
}

TEST(LogLineTest, SeveralValidationSetsHaveALossEach) {
  EvaluationMetrics evaluation = Evaluation(1);
  evaluation.sets = {{"news", 0, /*is_loss=*/true}, {"books", 2, /*is_loss=*/true}};
  EXPECT_THAT(FormatValidationBlock(evaluation),
              testing::HasSubstr(" | lm loss value: 1.000000E+00 | lm loss PPL: 2.718282E+00 | lm "
                                 "loss news value: 0.000000E+00 | lm loss news PPL: 1.000000E+00 | "
                                 "lm loss books value: 2.000000E+00 | lm loss books PPL: "
                                 "7.389056E+00 | \n"));
}

TEST(LogLineTest, TasksStandBehindTheLoss) {
  EvaluationMetrics evaluation = Evaluation(1);
  evaluation.tasks = {{"piqa/acc", 0.5}, {"ptb/ppl", 2}};
  EXPECT_THAT(FormatValidationBlock(evaluation),
              testing::HasSubstr("lm loss PPL: 2.718282E+00 | piqa/acc: 5.000000E-01 | ptb/ppl: "
                                 "2.000000E+00 | \n"));
}

TEST(LogLineTest, BoundsPerplexity) {
  EXPECT_DOUBLE_EQ(Perplexity(2), std::exp(2.0));
  EXPECT_DOUBLE_EQ(Perplexity(1000), std::exp(20.0));
  EXPECT_TRUE(std::isnan(Perplexity(std::nan(""))));
}

TEST(LogLineTest, WritesDurationsInTwoUnits) {
  EXPECT_EQ(FormatTimeLeft(absl::ZeroDuration()), "0s");
  EXPECT_EQ(FormatTimeLeft(absl::Seconds(59.6)), "1m00s");
  EXPECT_EQ(FormatTimeLeft(absl::Minutes(62)), "1h02m");
  EXPECT_EQ(FormatTimeLeft(absl::Hours(76)), "3d04h");
  EXPECT_EQ(FormatTimeLeft(absl::InfiniteDuration()), "unknown");
}

}  // namespace
}  // namespace megatron
