#include "megatron/optim/gradient_noise.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace megatron {
namespace {

// The gradient of a sample is `mean` in each of `size` elements, plus noise of `deviation`.
struct Model {
  int size = 0;
  double mean = 0, deviation = 0;

  double trace() const { return size * deviation * deviation; }
  double squares() const { return size * mean * mean; }
};

double SquareNorm(const std::vector<double>& x) {
  double sum = 0;
  for (double value : x) sum += value * value;
  return sum;
}

// Adds steps of `parts` parts of `samples` samples each. If `all_parts` is false, only the first
// part's norm is known.
void AddSteps(const Model& model, int steps, int parts, int samples, bool all_parts,
              GradientNoise* noise) {
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  for (int step = 0; step < steps; ++step) {
    std::vector<double> batch(model.size, 0);
    double part_squares = 0;
    for (int part = 0; part < parts; ++part) {
      std::vector<double> gradient(model.size, 0);
      for (double& value : gradient) {
        for (int i = 0; i < samples; ++i)
          value += (model.mean + model.deviation * normal(random)) / samples;
      }
      for (int i = 0; i < model.size; ++i) batch[i] += gradient[i] / parts;
      if (all_parts) part_squares += SquareNorm(gradient) / parts;
      if (!all_parts && part == 0) part_squares = SquareNorm(gradient);
    }
    noise->Add(part_squares, samples, SquareNorm(batch), samples * parts);
  }
}

TEST(GradientNoiseTest, FindsTheNoiseOfASyntheticModelFromAllParts) {
  const Model model = {400, 0.1, 1};  // 100 samples
  GradientNoise noise;
  AddSteps(model, 200, /*parts=*/4, /*samples=*/8, /*all_parts=*/true, &noise);
  EXPECT_NEAR(noise.trace(), model.trace(), 0.05 * model.trace());
  EXPECT_NEAR(noise.gradient_squares(), model.squares(), 0.15 * model.squares());
  EXPECT_NEAR(*noise.samples(), 100, 15);
}

TEST(GradientNoiseTest, FindsTheSameFromTheFirstPartAlone) {
  const Model model = {400, 0.2, 1};  // 25 samples
  GradientNoise noise;
  AddSteps(model, 200, /*parts=*/2, /*samples=*/16, /*all_parts=*/false, &noise);
  EXPECT_NEAR(*noise.samples(), 25, 4);
}

// The mean of many single estimates is near the truth even where each is far off.
TEST(GradientNoiseTest, TheEstimatesAreUnbiased) {
  const Model model = {20, 0.3, 1};
  double trace = 0, squares = 0;
  constexpr int kRuns = 4000;
  std::mt19937_64 random(3);
  std::normal_distribution<double> normal;
  for (int run = 0; run < kRuns; ++run) {
    double part_squares = 0, batch_squares = 0;
    for (int i = 0; i < model.size; ++i) {
      const double a = model.mean + model.deviation * normal(random);
      const double b = model.mean + model.deviation * normal(random);
      part_squares += (a * a + b * b) / 2;
      batch_squares += (a + b) * (a + b) / 4;
    }
    GradientNoise noise;
    noise.Add(part_squares, 1, batch_squares, 2);
    trace += noise.trace() / kRuns;
    squares += noise.gradient_squares() / kRuns;
  }
  EXPECT_NEAR(trace, model.trace(), 0.03 * model.trace());
  EXPECT_NEAR(squares, model.squares(), 0.1 * model.squares());
}

TEST(GradientNoiseTest, WithoutNoiseTheScaleIsZero) {
  GradientNoise noise;
  EXPECT_FALSE(noise.samples().has_value());
  noise.Add(4, 8, 4, 16);
  EXPECT_EQ(*noise.samples(), 0);
}

TEST(GradientNoiseTest, HasNoScaleWhereNoiseHidesTheGradient) {
  GradientNoise noise;
  noise.Add(4, 1, 1, 2);  // less than the noise of two samples
  EXPECT_LT(noise.gradient_squares(), 0);
  EXPECT_FALSE(noise.samples().has_value());
}

TEST(GradientNoiseTest, HasNoScaleWhereTheEstimateOfNoiseIsNegative) {
  GradientNoise noise;
  noise.Add(1, 1, 1.2, 2);  // the first part alone may have a smaller gradient than the batch
  EXPECT_LT(noise.trace(), 0);
  EXPECT_FALSE(noise.samples().has_value());
}

TEST(GradientNoiseTest, PassesOverValuesThatAreNotFinite) {
  GradientNoise noise;
  noise.Add(std::nan(""), 1, 1, 2);
  noise.Add(1, 1, std::numeric_limits<double>::infinity(), 2);
  EXPECT_FALSE(noise.samples().has_value());
  noise.Add(3, 1, 2, 2);
  EXPECT_NEAR(*noise.samples(), 2, 1e-12);  // tr(S) = 2, |G|^2 = 1
}

}  // namespace
}  // namespace megatron
