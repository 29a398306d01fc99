// 1-bit LAMB on several ranks, beside a plain program in one process.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/optim/compression/plain_sign_mean.h"
#include "megatron/optim/rules/one_bit_harness.h"

namespace megatron {
namespace {

using Values = std::vector<float>;

constexpr int kTensors = OneBitRun::kTensors;
constexpr double kBeta1 = 0.9, kBeta2 = 0.999, kEpsilon = 1e-8;
// The order in which the tensors are sent.
constexpr int kOrder[kTensors] = {1, 0};
constexpr int64_t kElements = OneBitRun::kSizes[0] + OneBitRun::kSizes[1];

OneBitRun RunOfTest() {
  OneBitRun run;
  run.steps = 12;
  run.optimizer.kind = OptimizerOptions::kOneBitLamb;
  run.optimizer.one_bit_lamb.freeze_step = 5;
  return run;
}

double NormOf(const std::vector<double>& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum);
}

std::vector<double> Doubles(const Values& x) { return {x.begin(), x.end()}; }

struct Plain {
  OneBitTensors weights;
  double coefficient[kTensors] = {0, 0}, factor[kTensors] = {1, 1};
};

// The published algorithm. A broken step is left out, and does not count.
Plain PlainProgram(int ranks, const OneBitRun& run) {
  const OneBitLambOptions& options = run.optimizer.one_bit_lamb;
  Plain plain;
  plain.weights = FirstOneBitWeights(run);
  Values m[kTensors], v[kTensors], fresh[kTensors];
  double scaling[kTensors] = {0, 0};
  for (int t = 0; t < kTensors; ++t) m[t] = v[t] = Values(OneBitRun::kSizes[t], 0);
  PlainSignMean mean(kElements, ranks);
  int made = 0;
  for (int step = 0; step < run.steps; ++step) {
    if (step == run.broken_step) continue;
    const bool frozen = made++ >= options.freeze_step;
    const OneBitGradients gradients = OneBitGradientsOf(ranks, step);
    const double norm = frozen ? gradients.own_norm : gradients.whole_norm;
    const double clip = run.clip_grad > 0 ? std::min(1.0, run.clip_grad / (norm + 1e-6)) : 1;
    if (frozen && scaling[0] == 0) {
      double united = 0;
      for (int t = 0; t < kTensors; ++t) {
        fresh[t] = v[t];
        scaling[t] = NormOf(Doubles(m[t])) / std::sqrt(static_cast<double>(m[t].size()));
        united += scaling[t] / kTensors;
      }
      for (double& s : scaling) s = united / s;
    }
    // The momenta of all tensors one behind the other, averaged at once.
    std::vector<Values> momenta(ranks);
    for (const int t : kOrder) {
      if (!frozen) break;
      for (int rank = 0; rank < ranks; ++rank) {
        for (int64_t i = 0; i < OneBitRun::kSizes[t]; ++i) {
          const double own = kBeta1 * m[t][i] + (1 - kBeta1) * clip * gradients.own[t][rank][i];
          momenta[rank].push_back(static_cast<float>(scaling[t] * own));
        }
      }
    }
    const Values all = frozen ? mean.Average(momenta) : Values();
    int64_t begin = 0;
    for (const int t : kOrder) {
      const int64_t size = OneBitRun::kSizes[t];
      const double lr = run.LrOf(step), decay = t == 0 ? OneBitRun::kDecay : 0;
      std::vector<double> prelim(size), update(size);
      double largest = 0;
      for (int64_t i = 0; i < size; ++i) {
        if (frozen) {
          const double next = v[t][i] == 0 ? 0 : all[begin + i] / scaling[t];
          const double g = (next - kBeta1 * m[t][i]) / (1 - kBeta1);
          fresh[t][i] = static_cast<float>(kBeta2 * fresh[t][i] + (1 - kBeta2) * g * g);
          m[t][i] = static_cast<float>(next);
          if (v[t][i] != 0) {
            largest = std::max(largest, (std::sqrt(double{v[t][i]}) + kEpsilon) /
                                            (std::sqrt(double{fresh[t][i]}) + kEpsilon));
          }
        } else {
          const double g = clip * gradients.whole[t][i];
          m[t][i] = static_cast<float>(kBeta1 * m[t][i] + (1 - kBeta1) * g);
          v[t][i] = static_cast<float>(kBeta2 * v[t][i] + (1 - kBeta2) * g * g);
        }
        prelim[i] = m[t][i] / (std::sqrt(double{v[t][i]}) + kEpsilon);
        update[i] = prelim[i] + decay * plain.weights[t][i];
      }
      double coefficient = 1;
      if (frozen) {
        double factor = largest;
        if (decay > 0) {
          const double ratio = std::min(1.0, NormOf(prelim) / NormOf(update));
          factor = factor * ratio + (1 - ratio);
        }
        factor = std::max(std::min(factor, options.factor_max), options.factor_min);
        factor = std::min(factor, plain.factor[t] * (1 + options.factor_threshold));
        factor = std::max(factor, plain.factor[t] * (1 - options.factor_threshold));
        plain.factor[t] = factor;
        coefficient = (plain.coefficient[t] == 0 ? 1 : plain.coefficient[t]) * factor;
      } else {
        coefficient =
            std::min(NormOf(Doubles(plain.weights[t])) / NormOf(update), options.max_coeff);
        coefficient = std::max(coefficient, options.min_coeff);
        if (coefficient != 1) {
          plain.coefficient[t] =
              options.coeff_beta * plain.coefficient[t] + (1 - options.coeff_beta) * coefficient;
        }
      }
      for (int64_t i = 0; i < size; ++i)
        plain.weights[t][i] -= static_cast<float>(lr * coefficient * update[i]);
      begin += size;
    }
  }
  return plain;
}

void ExpectPlainProgram(int ranks, const OneBitRun& run) {
  const std::vector<OneBitOutcome> outcomes = TrainOneBit(ranks, run);
  const Plain want = PlainProgram(ranks, run);
  EXPECT_LT(WorstOffset(outcomes[0].weights, want.weights), 2e-5) << ranks << " ranks";
  EXPECT_GT(WorstOffset(want.weights, FirstOneBitWeights(run)), 0.01);
  for (const OneBitOutcome& outcome : outcomes) {
    EXPECT_EQ(outcome.weights, outcomes[0].weights);
    EXPECT_EQ(outcome.numbers, outcomes[0].numbers);
  }
  for (int t = 0; t < kTensors; ++t) {
    const Values& numbers = outcomes[0].numbers[t];
    EXPECT_NEAR(numbers[0], want.coefficient[t], 1e-5 * want.coefficient[t]) << t;
    EXPECT_NEAR(numbers[1], want.factor[t], 1e-4 * want.factor[t]) << t;
  }
}

TEST(OneBitLambTest, WeightsAreThoseOfAPlainProgram) {
  for (const int ranks : {2, 3, 4}) {
    ExpectPlainProgram(ranks, RunOfTest());
    OneBitRun clipped = RunOfTest();
    clipped.clip_grad = 5;
    ExpectPlainProgram(ranks, clipped);
  }
}

// One rank has nothing to send, and makes the same steps of its momentum as it is.
TEST(OneBitLambTest, OneRankHasTheCoefficientAndTheFactorsAlone) {
  const OneBitRun run = RunOfTest();
  const OneBitOutcome outcome = TrainOneBit(1, run)[0];
  for (const Values& numbers : outcome.numbers) {
    EXPECT_GT(numbers[0], 0);
    EXPECT_NE(numbers[1], 1);
  }
  OneBitRun warm_up = run;
  warm_up.steps = static_cast<int>(run.optimizer.one_bit_lamb.freeze_step);
  EXPECT_GT(WorstOffset(outcome.weights, TrainOneBit(1, warm_up)[0].weights), 1e-3);
}

TEST(OneBitLambTest, ALostErrorIsSeen) {
  for (const char* error : {"momentum_error", "momentum_mean_error"}) {
    OneBitRun run = RunOfTest();
    run.lost_error = error;
    EXPECT_GT(WorstOffset(TrainOneBit(3, run)[0].weights, PlainProgram(3, run).weights), 1e-3)
        << error;
  }
}

// With a small threshold the factor moves by as much a step; the limits hold it in the end.
TEST(OneBitLambTest, FactorsChangeByTheThresholdAndStayWithinLimits) {
  OneBitRun run = RunOfTest();
  OneBitLambOptions& options = run.optimizer.one_bit_lamb;
  options.factor_threshold = 0.01;
  const OneBitOutcome slow = TrainOneBit(2, run)[0];
  const int frozen = run.steps - static_cast<int>(options.freeze_step);
  for (const Values& numbers : slow.numbers) {
    EXPECT_GE(numbers[1], std::pow(0.99, frozen) - 1e-6);
    EXPECT_LE(numbers[1], std::pow(1.01, frozen) + 1e-6);
  }
  options.factor_threshold = 0.9;
  options.factor_min = 0.95;
  options.factor_max = 1.01;
  ExpectPlainProgram(2, run);
  const OneBitOutcome held = TrainOneBit(2, run)[0];
  for (const Values& numbers : held.numbers) {
    EXPECT_GE(numbers[1], 0.95f);
    EXPECT_LE(numbers[1], 1.01f);
  }
}

// All ratios of the warm-up are 1, and none is in the mean.
TEST(OneBitLambTest, ATensorWhoseRatiosWereAll1GoesOn) {
  OneBitRun run = RunOfTest();
  OneBitLambOptions& options = run.optimizer.one_bit_lamb;
  options.min_coeff = options.max_coeff = 1;
  ExpectPlainProgram(2, run);
  OneBitRun warm_up = run;
  warm_up.steps = static_cast<int>(options.freeze_step);
  const OneBitTensors before = TrainOneBit(2, warm_up)[0].weights;
  const OneBitTensors after = TrainOneBit(2, run)[0].weights;
  for (int t = 0; t < kTensors; ++t) EXPECT_GT(WorstOffset({after[t]}, {before[t]}), 1e-3) << t;
}

TEST(OneBitLambTest, AStepWithANanOnOneRankIsSkippedByAllAndLeavesNothing) {
  // The sixth step is the first one with signs.
  for (const int broken : {1, 5, 8}) {
    OneBitRun run = RunOfTest();
    run.broken_step = broken;
    ExpectPlainProgram(2, run);
  }
}

}  // namespace
}  // namespace megatron
