#include "megatron/train/metrics/run_totals.h"

#include <optional>

#include "gtest/gtest.h"

namespace megatron {
namespace {

StepMetrics Step(double loss, double elapsed_ms, double tokens, bool skipped = false) {
  StepMetrics step;
  step.loss = loss;
  step.skipped = skipped;
  step.speed.elapsed_ms = elapsed_ms;
  step.speed.tokens_per_second = tokens / (elapsed_ms * 1e-3);
  return step;
}

TEST(RunTotalsTest, TheFirstStepHasNoPartInTheMeans) {
  RunTotals totals;
  EXPECT_EQ(totals.tokens_per_second(), std::nullopt);
  totals.Add(Step(5, 10000, 100));
  EXPECT_DOUBLE_EQ(*totals.tokens_per_second(), 10);
  totals.Add(Step(4, 1000, 100));
  totals.Add(Step(3, 3000, 100));
  EXPECT_DOUBLE_EQ(*totals.tokens_per_second(), 50);
  EXPECT_EQ(totals.steps(), 3);
  EXPECT_EQ(totals.loss(), 3);
  EXPECT_EQ(totals.mfu(), std::nullopt);
}

TEST(RunTotalsTest, UtilizationIsAMeanOverTime) {
  RunTotals totals;
  StepMetrics step = Step(1, 1000, 100);
  step.speed.mfu = 0.4;
  totals.Add(step);
  totals.Add(step);
  step.speed.elapsed_ms = 3000;
  step.speed.mfu = 0.2;
  totals.Add(step);
  EXPECT_DOUBLE_EQ(*totals.mfu(), (0.4 * 1 + 0.2 * 3) / 4);
}

TEST(RunTotalsTest, ASkippedStepHasNoLoss) {
  RunTotals totals;
  totals.Add(Step(5, 1000, 100));
  totals.Add(Step(1e30, 1000, 100, /*skipped=*/true));
  EXPECT_EQ(totals.loss(), 5);
  EXPECT_EQ(totals.skipped_at_end(), 1);
  totals.Add(Step(4, 1000, 100));
  EXPECT_EQ(totals.skipped_at_end(), 0);
}

TEST(RunTotalsTest, KeepsTheLastEvaluations) {
  RunTotals totals;
  EXPECT_EQ(totals.validation_loss(), std::nullopt);
  EvaluationMetrics evaluation;
  for (const double loss : {3.0, 2.0}) {
    evaluation.loss = loss;
    totals.Add(evaluation);
  }
  evaluation.on_test_set = true;
  evaluation.loss = 2.5;
  totals.Add(evaluation);
  EXPECT_EQ(totals.validation_loss(), 2);
  EXPECT_EQ(totals.test_loss(), 2.5);
}

}  // namespace
}  // namespace megatron
