// 1-bit Adam on several ranks, beside a plain program in one process.
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
constexpr int kFreezeStep = 3;

OneBitRun RunOfTest() {
  OneBitRun run;
  run.optimizer.kind = OptimizerOptions::kOneBitAdam;
  run.optimizer.one_bit_adam_freeze_step = kFreezeStep;
  return run;
}

struct Plain {
  OneBitTensors weights;
  std::vector<double> norms;
};

// The published algorithm. A broken step is left out, and does not count.
Plain PlainProgram(int ranks, const OneBitRun& run) {
  Plain plain = {FirstOneBitWeights(run), {}};
  Values m[kTensors], v[kTensors];
  std::vector<PlainSignMean> means;
  for (int t = 0; t < kTensors; ++t) {
    m[t] = v[t] = Values(OneBitRun::kSizes[t], 0);
    means.emplace_back(OneBitRun::kSizes[t], ranks);
  }
  int made = 0;
  for (int step = 0; step < run.steps; ++step) {
    if (step == run.broken_step) continue;
    const bool frozen = made++ >= kFreezeStep;
    const OneBitGradients gradients = OneBitGradientsOf(ranks, step);
    const double norm = frozen ? gradients.own_norm : gradients.whole_norm;
    plain.norms.push_back(norm);
    const double clip = run.clip_grad > 0 ? std::min(1.0, run.clip_grad / (norm + 1e-6)) : 1;
    for (int t = 0; t < kTensors; ++t) {
      const int64_t size = OneBitRun::kSizes[t];
      if (frozen) {
        std::vector<Values> momenta;
        for (const Values& own : gradients.own[t]) {
          Values momentum = m[t];
          for (int64_t i = 0; i < size; ++i) {
            momentum[i] = static_cast<float>(kBeta1 * momentum[i] + (1 - kBeta1) * clip * own[i]);
          }
          momenta.push_back(momentum);
        }
        m[t] = means[t].Average(momenta);
      }
      for (int64_t i = 0; i < size; ++i) {
        const double g = clip * gradients.whole[t][i];
        if (!frozen) {
          m[t][i] = static_cast<float>(kBeta1 * m[t][i] + (1 - kBeta1) * g);
          v[t][i] = static_cast<float>(kBeta2 * v[t][i] + (1 - kBeta2) * g * g);
        } else if (v[t][i] == 0) {
          m[t][i] = 0;
        }
        const double decay = t == 0 ? OneBitRun::kDecay : 0, w = plain.weights[t][i];
        const double lr = run.LrOf(step);
        plain.weights[t][i] = static_cast<float>(
            w - lr * decay * w - lr * m[t][i] / (std::sqrt(double{v[t][i]}) + kEpsilon));
      }
    }
  }
  return plain;
}

void ExpectPlainProgram(int ranks, const OneBitRun& run) {
  const std::vector<OneBitOutcome> outcomes = TrainOneBit(ranks, run);
  const Plain want = PlainProgram(ranks, run);
  EXPECT_LT(WorstOffset(outcomes[0].weights, want.weights), 1e-5) << ranks << " ranks";
  EXPECT_GT(WorstOffset(want.weights, FirstOneBitWeights(run)), 0.01);
  for (const OneBitOutcome& outcome : outcomes) EXPECT_EQ(outcome.weights, outcomes[0].weights);
  if (run.broken_step >= 0) return;
  for (int step = 0; step < run.steps; ++step)
    EXPECT_NEAR(outcomes[0].norms[step], want.norms[step], 1e-5 * want.norms[step]) << step;
}

TEST(OneBitAdamTest, WeightsAreThoseOfAPlainProgram) {
  for (const int ranks : {2, 3, 4}) {
    ExpectPlainProgram(ranks, RunOfTest());
    OneBitRun clipped = RunOfTest();
    clipped.clip_grad = 5;
    ExpectPlainProgram(ranks, clipped);
  }
}

TEST(OneBitAdamTest, ALostErrorIsSeen) {
  for (const char* error : {"momentum_error", "momentum_mean_error"}) {
    OneBitRun run = RunOfTest();
    run.lost_error = error;
    EXPECT_GT(WorstOffset(TrainOneBit(3, run)[0].weights, PlainProgram(3, run).weights), 1e-2)
        << error;
  }
}

// One rank has nothing to send: what is left of the algorithm is Adam without the correction of its
// moments, whose second moment stays.
TEST(OneBitAdamTest, OneRankTakesAdamsStepsWithASecondMomentThatStays) {
  const OneBitRun run = RunOfTest();
  const OneBitTensors got = TrainOneBit(1, run)[0].weights;
  OneBitTensors want = FirstOneBitWeights(run);
  for (int t = 0; t < kTensors; ++t) {
    Values m(OneBitRun::kSizes[t], 0), v = m;
    for (int step = 0; step < run.steps; ++step) {
      const Values g = OneBitGradientsOf(1, step).whole[t];
      for (int64_t i = 0; i < OneBitRun::kSizes[t]; ++i) {
        m[i] = std::fmaf(0.9f, m[i], static_cast<float>(1 - kBeta1) * g[i]);
        if (step < kFreezeStep)
          v[i] = std::fmaf(0.999f, v[i], static_cast<float>(1 - kBeta2) * g[i] * g[i]);
        const auto decay = static_cast<double>(t == 0 ? static_cast<float>(OneBitRun::kDecay) : 0);
        const auto lr = static_cast<float>(run.LrOf(step));
        float& w = want[t][i];
        w = std::fmaf(-lr, m[i] / (std::sqrt(v[i]) + static_cast<float>(kEpsilon)),
                      w * static_cast<float>(1 - lr * decay));
      }
    }
    EXPECT_EQ(got[t], want[t]) << t;
  }
}

TEST(OneBitAdamTest, AnElementThatNeverHadAGradientOnlyDecays) {
  const OneBitRun run = RunOfTest();
  const OneBitTensors first = FirstOneBitWeights(run), got = TrainOneBit(2, run)[0].weights;
  const double kept = 1 - run.LrOf(0) * OneBitRun::kDecay;
  EXPECT_NEAR(got[0][OneBitRun::kNeverUsed],
              first[0][OneBitRun::kNeverUsed] * std::pow(kept, run.steps), 1e-6);
}

TEST(OneBitAdamTest, AStepWithANanOnOneRankIsSkippedByAllAndLeavesNothing) {
  for (const int broken : {1, 5}) {
    OneBitRun run = RunOfTest();
    run.broken_step = broken;
    ExpectPlainProgram(2, run);
    for (const OneBitOutcome& outcome : TrainOneBit(2, run)) {
      for (int step = 0; step < run.steps; ++step) EXPECT_EQ(outcome.applied[step], step != broken);
    }
  }
}

}  // namespace
}  // namespace megatron
