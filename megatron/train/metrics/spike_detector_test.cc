#include "megatron/train/metrics/spike_detector.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace megatron {
namespace {

TEST(ZScoreWindowTest, ComparesWithTheValuesBefore) {
  ZScoreWindow window(4);
  EXPECT_FALSE(window.Add(1).has_value());
  EXPECT_FALSE(window.Add(3).has_value());
  const auto third = window.Add(4);  // after 1 and 3
  ASSERT_TRUE(third.has_value());
  EXPECT_EQ(third->mean, 2);
  EXPECT_EQ(third->deviation, 1);
  EXPECT_EQ(third->score, 2);
  window.Add(4);
  window.Add(2);
  const auto last = window.Add(0);  // after 3, 4, 4, 2: the first value is forgotten
  EXPECT_NEAR(last->mean, 13.0 / 4, 1e-12);
  EXPECT_NEAR(last->score, -(13.0 / 4) / std::sqrt(11.0 / 16), 1e-12);
}

TEST(ZScoreWindowTest, ValuesThatAreNotFiniteAreNeitherScoredNorKept) {
  ZScoreWindow window(2);
  window.Add(1);
  for (const double value : {std::nan(""), std::numeric_limits<double>::infinity()})
    EXPECT_FALSE(window.Add(value).has_value());
  EXPECT_EQ(window.Add(1)->score, 0);
}

TEST(ZScoreWindowTest, AnyChangeAfterEqualValuesIsInfinitelyFar) {
  ZScoreWindow up(2), down(2);
  for (ZScoreWindow* window : {&up, &down}) {
    window->Add(5);
    EXPECT_EQ(window->Add(5)->score, 0);
  }
  EXPECT_EQ(up.Add(6)->score, std::numeric_limits<double>::infinity());
  EXPECT_EQ(down.Add(4)->score, -std::numeric_limits<double>::infinity());
}

double Wave(int step) { return 3 + 0.1 * std::sin(step); }

TEST(SpikeDetectorTest, FindsASpikeOfTheLossOrTheNormAtItsStep) {
  SpikeDetector detector({/*threshold=*/6, /*window=*/32});
  for (int step = 0; step < 200; ++step) {
    const bool loss = step == 100, norm = step == 150;
    const SpikeScores scores =
        detector.Add(Wave(step) + (loss ? 2 : 0), Wave(step) + (norm ? 9 : 0));
    EXPECT_EQ(scores.loss.has_value(), step >= 16);
    EXPECT_EQ(scores.loss_spikes, loss) << step;
    EXPECT_EQ(scores.grad_norm_spikes, norm) << step;
    EXPECT_EQ(scores.is_spike(), loss || norm) << step;
  }
}

TEST(SpikeDetectorTest, ASpikeIsDescribed) {
  SpikeScores scores;
  scores.loss = ZScore{9.31, 3.1, 0.5, 8.24};
  scores.grad_norm = ZScore{70, 1, 2, 34.5};
  scores.loss_spikes = true;
  EXPECT_EQ(DescribeSpike(512, scores),
            "iteration 512: the loss is 9.31, 8.2 standard deviations above its mean of 3.1");
  scores.grad_norm_spikes = true;
  EXPECT_EQ(DescribeSpike(512, scores),
            "iteration 512: the loss is 9.31, 8.2 standard deviations above its mean of 3.1; the "
            "norm of the gradients is 70, 34.5 standard deviations above its mean of 1");
}

TEST(SpikeDetectorTest, AFallOfTheLossIsNoSpike) {
  SpikeDetector detector({6, 32});
  for (int step = 0; step < 50; ++step) detector.Add(Wave(step), std::nullopt);
  const SpikeScores scores = detector.Add(0.5, std::nullopt);
  EXPECT_LT(scores.loss->score, -6);
  EXPECT_FALSE(scores.is_spike());
  EXPECT_FALSE(scores.grad_norm.has_value());
}

TEST(SpikeDetectorTest, WithoutAThresholdThereAreNoScores) {
  SpikeDetector detector({0, 2});
  for (int step = 0; step < 10; ++step)
    EXPECT_FALSE(detector.Add(step == 9 ? 100 : 1, 1.0).loss.has_value());
}

}  // namespace
}  // namespace megatron
