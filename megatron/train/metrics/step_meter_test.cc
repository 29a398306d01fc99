#include "megatron/train/metrics/step_meter.h"

#include <limits>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

RunOptions Options() {
  RunOptions options;
  options.loop.train_iters = 100;
  options.loop.log_interval = 4;
  options.data.seq_length = 50;
  return options;
}

StepReport Report(double loss, bool finite = true) {
  StepReport report;
  report.loss = loss;
  report.values.emplace_back(Measure{MeasureKind::kLmLoss, "lm loss", /*is_loss=*/true}, loss);
  report.values.emplace_back(Measure{MeasureKind::kLmAccuracy, "lm accuracy", /*is_loss=*/false},
                             0.25);
  report.update.finite = finite;
  report.update.grad_norm = 2.5;
  report.global_batch_size = 16;
  return report;
}

TrainingProgress After(int64_t iteration) {
  TrainingProgress progress;
  progress.iteration = iteration;
  progress.consumed_train_samples = 16 * iteration;
  return progress;
}

StepMetrics MeasureStep(StepMeter* meter, int64_t iteration, const StepReport& report,
                        double seconds = 2) {
  return meter->Measure(report, After(iteration), absl::Seconds(seconds), absl::UnixEpoch());
}

TEST(StepMeterTest, ComputesSpeedsFromTokensAndTime) {
  RunOptions options = Options();
  StepMeter meter(options, {3e9, 4e9, 1e14}, 0);
  const StepMetrics step = MeasureStep(&meter, 1, Report(3));
  EXPECT_EQ(step.speed.elapsed_ms, 2000);
  EXPECT_EQ(step.speed.tokens_per_second, 400);
  EXPECT_DOUBLE_EQ(step.speed.model_tflops, 1.2);
  EXPECT_DOUBLE_EQ(step.speed.mfu.value(), 0.012);
  EXPECT_DOUBLE_EQ(step.speed.full_mfu.value(), 0.016);
  EXPECT_EQ(step.speed.time_left, absl::Seconds(198));
  EXPECT_FALSE(step.speed.tflops_per_rank.has_value());
}

TEST(StepMeterTest, SharesOfAnUnknownPeakAreUnknown) {
  const RunOptions options = Options();
  StepMeter meter(options, {3e9, 4e9, std::nullopt}, 0);
  EXPECT_FALSE(MeasureStep(&meter, 1, Report(3)).speed.mfu.has_value());
}

TEST(StepMeterTest, ThroughputIsOfEachRank) {
  RunOptions options = Options();
  options.loop.log_throughput = true;
  options.parallel.data = 2;
  StepMeter meter(options, {3e9, 4e9, std::nullopt}, 0);
  EXPECT_DOUBLE_EQ(MeasureStep(&meter, 1, Report(3)).speed.tflops_per_rank.value(), 0.6);
}

TEST(StepMeterTest, TellsLossesFromOtherValues) {
  const RunOptions options = Options();
  StepMeter meter(options, {}, 0);
  const StepMetrics step = MeasureStep(&meter, 1, Report(3));
  EXPECT_EQ(step.loss, 3);
  ASSERT_EQ(step.others.size(), 1);
  EXPECT_EQ(step.others[0].name, "lm accuracy");
  EXPECT_EQ(step.others[0].value, 0.25);
  ASSERT_EQ(step.interval->losses.size(), 1);
  EXPECT_EQ(step.interval->losses[0].name, "lm loss");
}

TEST(StepMeterTest, LogsTheFirstIterationsEachIntervalsLastAndThoseRequested) {
  const RunOptions options = Options();
  StepMeter meter(options, {}, /*last_iteration=*/6);
  for (int64_t iteration = 7; iteration <= 21; ++iteration) {
    StepReport report = Report(3);
    report.update.log_requested = iteration == 14;
    EXPECT_EQ(MeasureStep(&meter, iteration, report).interval.has_value(),
              iteration <= 9 || iteration == 14 || iteration % 4 == 0)
        << iteration;
  }
}

TEST(StepMeterTest, AnIntervalsMeansLeaveSkippedIterationsOut) {
  const RunOptions options = Options();
  StepMeter meter(options, {}, /*last_iteration=*/-3);
  MeasureStep(&meter, 1, Report(1), 1);
  MeasureStep(&meter, 2, Report(100, /*finite=*/false), 2);
  MeasureStep(&meter, 3, Report(kInf, /*finite=*/false), 3);
  const StepMetrics step = MeasureStep(&meter, 4, Report(2), 6);
  ASSERT_EQ(step.interval->losses.size(), 1);
  EXPECT_EQ(step.interval->losses[0].value, 1.5);
  EXPECT_EQ(step.interval->speed.elapsed_ms, 3000);
  EXPECT_EQ(step.interval->skipped_iterations, 2);
  EXPECT_EQ(step.interval->nan_iterations, 1);
  EXPECT_EQ(step.speed.elapsed_ms, 6000);
}

// The mean of a file is that over its tokens since the last log line.
TEST(StepMeterTest, EachTrainingFileHasItsMeanOverTheInterval) {
  RunOptions options = Options();
  options.SetSources({"news", "books", "news", "poems"});  // one file is there twice
  EXPECT_EQ(options.trainer.num_sources, 4);
  StepMeter meter(options, {}, /*last_iteration=*/-3);
  const auto step = [&](int64_t iteration, std::vector<SourceLoss> sources, bool finite = true) {
    StepReport report = Report(1, finite);
    report.sources = std::move(sources);
    return MeasureStep(&meter, iteration, report).sources;
  };
  EXPECT_TRUE(step(1, {{0, 30, 10}}).empty());
  EXPECT_TRUE(step(2, {{0, 10, 10}, {1, 8, 2}, {2, 20, 20}}).empty());
  EXPECT_TRUE(step(3, {{1, kInf, 100}, {3, 1, 1}}, /*finite=*/false).empty());
  const std::vector<NamedValue> logged = step(4, {{1, 4, 4}});
  ASSERT_EQ(logged.size(), 2);  // the step with poems was skipped
  EXPECT_EQ(logged[0].name, "books");
  EXPECT_EQ(logged[0].value, 2);
  EXPECT_EQ(logged[1].name, "news");
  EXPECT_EQ(logged[1].value, 1.5);
  // The next interval begins anew, and has no value of a file that it has no tokens of.
  EXPECT_TRUE(step(5, {{3, 6, 2}}).empty());
  EXPECT_TRUE(step(6, {}).empty());
  EXPECT_TRUE(step(7, {}).empty());
  const std::vector<NamedValue> next = step(8, {});
  ASSERT_EQ(next.size(), 1);
  EXPECT_EQ(next[0].name, "poems");
  EXPECT_EQ(next[0].value, 3);
}

TEST(StepMeterTest, WithACurriculumTheLengthOfEachStepCounts) {
  RunOptions options = Options();
  options.trainer.curriculum.lengths = {10, 50};
  options.trainer.curriculum.last_steps = {4};
  StepMeter meter(options, {3e9, 4e9, 1e14, 1e7, 2e7}, /*last_iteration=*/-3);
  StepReport report = Report(3);
  report.seq_length = 10;
  MeasureStep(&meter, 3, report, 1);
  TrainingProgress progress = After(4);
  progress.consumed_train_tokens = 640;
  report.seq_length = 50;
  const StepMetrics step = meter.Measure(report, progress, absl::Seconds(3), absl::UnixEpoch());
  EXPECT_EQ(step.seq_length, 50);
  EXPECT_EQ(step.consumed_tokens, 640);
  EXPECT_DOUBLE_EQ(step.speed.model_tflops, 0.8);
  // 160 tokens of 2.6e9 FLOPs and 800 of 3e9, in 4 seconds.
  EXPECT_DOUBLE_EQ(step.interval->speed.tokens_per_second, 240);
  EXPECT_DOUBLE_EQ(step.interval->speed.model_tflops, 0.704);
  EXPECT_DOUBLE_EQ(step.interval->speed.full_mfu.value(), (160 * 3.2e9 + 800 * 4e9) / 4 / 1e14);
}

TEST(StepMeterTest, TokensThatLayersDropCostThemNothing) {
  RunOptions options = Options();
  options.trainer.random_ltd.total_steps = 5;
  SpeedBasis basis = {3e9, 4e9, 1e14, 1e7, 2e7};
  basis.dropping_flops_per_token = 1.5e9;
  basis.dropping_share = 0.5;
  StepMeter meter(options, basis, 0);
  StepReport report = Report(3);
  report.seq_length = 50;
  report.kept_tokens = 20;
  const StepMetrics step = MeasureStep(&meter, 1, report, 1);
  EXPECT_EQ(step.kept_tokens, 20);
  EXPECT_EQ(step.speed.tokens_per_second, 800);
  // In half of the layers' products, 20 tokens of 1.5e9 - 30 * 5e6 FLOPs are there in place of 50.
  EXPECT_DOUBLE_EQ(step.speed.model_tflops, 16 * (50 * 3e9 - 50 * 1.5e9 + 20 * 1.35e9) * 1e-12);
  report.kept_tokens = 0;
  const StepMetrics whole = MeasureStep(&meter, 2, report, 1);
  EXPECT_EQ(whole.kept_tokens, 50);
  EXPECT_DOUBLE_EQ(whole.speed.model_tflops, 2.4);
}

TEST(StepMeterTest, WithoutACurriculumNoLengthIsTold) {
  const RunOptions options = Options();
  StepMeter meter(options, {}, 0);
  const StepMetrics step = MeasureStep(&meter, 1, Report(1));
  EXPECT_FALSE(step.seq_length.has_value());
  EXPECT_FALSE(step.kept_tokens.has_value());
  EXPECT_FALSE(step.consumed_tokens.has_value());
}

TEST(StepMeterTest, AnIntervalOfSkippedIterationsHasNoMeans) {
  const RunOptions options = Options();
  StepMeter meter(options, {}, 0);
  const StepMetrics step = MeasureStep(&meter, 1, Report(1, /*finite=*/false));
  EXPECT_TRUE(step.interval->losses.empty());
  EXPECT_EQ(step.interval->nan_iterations, 0);
  EXPECT_TRUE(step.skipped);
  EXPECT_FALSE(step.grad_norm.has_value());
}

TEST(StepMeterTest, SeveralValidationSetsHaveALossEachAndTheirMean) {
  EvaluationMetrics news;
  news.iteration = 7;
  news.loss = 2;
  news.others = {{"lm accuracy", 0.5}};
  EvaluationMetrics books = news;
  books.loss = 4;
  books.others[0].value = 0.25;
  const EvaluationMetrics joined = JoinEvaluations({{"news", news}, {"books", books}});
  EXPECT_EQ(joined.iteration, 7);
  EXPECT_EQ(joined.loss, 3);
  EXPECT_EQ(joined.others[0].value, 0.375);
  ASSERT_EQ(joined.sets.size(), 2);
  EXPECT_EQ(joined.sets[0].name, "news");
  EXPECT_EQ(joined.sets[0].value, 2);
  EXPECT_EQ(joined.sets[1].name, "books");
  EXPECT_EQ(joined.sets[1].value, 4);
  ASSERT_EQ(joined.tasks.size(), 2);
  EXPECT_EQ(joined.tasks[1].name, "books/lm accuracy");
  EXPECT_EQ(joined.tasks[1].value, 0.25);
  EXPECT_TRUE(JoinEvaluations({{"", news}}).sets.empty());
  EXPECT_EQ(JoinEvaluations({{"", news}}).loss, 2);
}

TEST(StepMeterTest, AnEvaluationHasTheSamplesThatWereTrained) {
  const EvaluationMetrics evaluation =
      ToEvaluationMetrics(Report(3), After(7), /*on_test_set=*/true);
  EXPECT_EQ(evaluation.iteration, 7);
  EXPECT_EQ(evaluation.consumed_samples, 112);
  EXPECT_TRUE(evaluation.on_test_set);
  EXPECT_EQ(evaluation.loss, 3);
  EXPECT_EQ(evaluation.others.size(), 1);
}

}  // namespace
}  // namespace megatron
