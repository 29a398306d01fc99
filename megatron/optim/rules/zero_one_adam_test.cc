// 0/1 Adam on several ranks, beside a plain program in one process.
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

// Steps 1, 2, 4, 6 and 8 sum gradients; after step 10, steps 11 to 14, 16, 18, 20 and 24 join.
OneBitRun RunOfTest(int steps = 24) {
  OneBitRun run;
  run.steps = steps;
  run.growing_rate = true;
  run.optimizer.kind = OptimizerOptions::kZeroOneAdam;
  run.optimizer.zero_one = {/*var_freeze_step=*/10, /*var_update_scaler=*/2,
                            /*local_step_scaler=*/4, /*local_step_clipper=*/4};
  return run;
}

struct Plain {
  std::vector<OneBitTensors> weights;  // those of ranks
  OneBitTensors masters;
};

// The published algorithm, where weights decay apart from it. A broken step is left out.
Plain PlainProgram(int ranks, const OneBitRun& run) {
  OneBitTensors masters = FirstOneBitWeights(run);
  // Momentum and accumulated steps are those of ranks.
  std::vector<Values> m[kTensors], steps[kTensors];
  Values v[kTensors];
  double rates = 0;
  std::vector<PlainSignMean> means;
  const auto forget = [&] {
    means.clear();
    for (const int64_t size : OneBitRun::kSizes) means.emplace_back(size, ranks);
  };
  forget();
  for (int t = 0; t < kTensors; ++t) {
    v[t] = Values(OneBitRun::kSizes[t], 0);
    m[t] = steps[t] = std::vector<Values>(ranks, v[t]);
  }
  int made = 0;
  for (int step = 0; step < run.steps; ++step) {
    if (step == run.broken_step) continue;
    if (made == run.optimizer.zero_one.var_freeze_step) forget();
    const RankStep what = run.optimizer.zero_one.StepAfter(made++);
    const OneBitGradients gradients = OneBitGradientsOf(ranks, step);
    const double norm = what == RankStep::kSum ? gradients.whole_norm : gradients.own_norm;
    const double clip = run.clip_grad > 0 ? std::min(1.0, run.clip_grad / (norm + 1e-6)) : 1;
    const bool is_local = what == RankStep::kLocal || what == RankStep::kJoin;
    const double lr = run.LrOf(step);
    if (is_local) rates += lr;
    for (int t = 0; t < kTensors; ++t) {
      const int64_t size = OneBitRun::kSizes[t];
      const double decay = t == 0 ? OneBitRun::kDecay : 0;
      std::vector<Values> own = gradients.own[t];
      for (Values& of_rank : own) {
        for (float& x : of_rank) x = static_cast<float>(clip * x);
      }
      const Values mean = what == RankStep::kMean ? means[t].Average(own) : Values();
      const auto root = [&](int64_t i) { return std::sqrt(double{v[t][i]}) + kEpsilon; };
      for (int64_t i = 0; i < size; ++i) {
        const double whole = clip * gradients.whole[t][i];
        if (what == RankStep::kSum)
          v[t][i] = static_cast<float>(kBeta2 * v[t][i] + (1 - kBeta2) * whole * whole);
        float& w = masters[t][i];
        w = static_cast<float>(w - lr * decay * w);
        for (int rank = 0; rank < ranks; ++rank) {
          double g = what == RankStep::kSum    ? whole
                     : what == RankStep::kMean ? mean[i]
                                               : own[rank][i];
          if (v[t][i] == 0) g = 0;
          float& momentum = m[t][rank][i];
          momentum = static_cast<float>(kBeta1 * momentum + (1 - kBeta1) * g);
          const double moved = lr * momentum / root(i);
          if (is_local) {
            steps[t][rank][i] = static_cast<float>(steps[t][rank][i] - moved);
          } else if (rank == 0) {
            w = static_cast<float>(w - moved);
          }
        }
      }
      if (what != RankStep::kJoin) continue;
      std::vector<Values> done = steps[t];
      for (Values& of_rank : done) {
        for (int64_t i = 0; i < size; ++i) of_rank[i] = static_cast<float>(of_rank[i] * root(i));
      }
      Values joined = means[t].Average(done);
      for (int64_t i = 0; i < size; ++i) {
        if (v[t][i] == 0) joined[i] = 0;
        masters[t][i] = static_cast<float>(masters[t][i] + joined[i] / root(i));
        for (int rank = 0; rank < ranks; ++rank) {
          m[t][rank][i] = static_cast<float>(-joined[i] / rates);
          steps[t][rank][i] = 0;
        }
      }
    }
    if (what == RankStep::kJoin) rates = 0;
  }
  Plain plain;
  plain.masters = masters;
  for (int rank = 0; rank < ranks; ++rank) {
    OneBitTensors weights = masters;
    for (int t = 0; t < kTensors; ++t) {
      for (int64_t i = 0; i < OneBitRun::kSizes[t]; ++i) weights[t][i] += steps[t][rank][i];
    }
    plain.weights.push_back(weights);
  }
  return plain;
}

void ExpectPlainProgram(int ranks, const OneBitRun& run) {
  const std::vector<OneBitOutcome> outcomes = TrainOneBit(ranks, run);
  const Plain want = PlainProgram(ranks, run);
  for (int rank = 0; rank < ranks; ++rank) {
    SCOPED_TRACE(rank);
    EXPECT_EQ(outcomes[rank].masters, outcomes[0].masters);
    EXPECT_LT(WorstOffset(outcomes[rank].masters, want.masters), 2e-5) << ranks << " ranks";
    EXPECT_LT(WorstOffset(outcomes[rank].weights, want.weights[rank]), 2e-5) << ranks << " ranks";
  }
  EXPECT_GT(WorstOffset(want.masters, FirstOneBitWeights(run)), 0.01);
}

TEST(ZeroOneAdamTest, WeightsAreThoseOfAPlainProgram) {
  for (const int ranks : {2, 3, 4}) {
    // The last step sums, averages gradients, joins after each step, is local, joins after four.
    for (const int steps : {8, 10, 13, 23, 24}) {
      SCOPED_TRACE(steps);
      ExpectPlainProgram(ranks, RunOfTest(steps));
    }
    OneBitRun clipped = RunOfTest();
    clipped.clip_grad = 5;
    ExpectPlainProgram(ranks, clipped);
  }
}

TEST(ZeroOneAdamTest, RanksDifferBetweenSynchronizationsAlone) {
  const std::vector<OneBitOutcome> apart = TrainOneBit(2, RunOfTest(23)),
                                   joined = TrainOneBit(2, RunOfTest(24));
  EXPECT_GT(WorstOffset(apart[0].weights, apart[1].weights), 1e-3);
  EXPECT_EQ(joined[0].weights, joined[1].weights);
  EXPECT_EQ(joined[0].weights, joined[0].masters);
}

TEST(ZeroOneAdamTest, ALostErrorIsSeen) {
  for (const char* error : {"momentum_error", "momentum_mean_error"}) {
    for (const int steps : {10, 24}) {
      OneBitRun run = RunOfTest(steps);
      run.lost_error = error;
      EXPECT_GT(WorstOffset(TrainOneBit(3, run)[0].masters, PlainProgram(3, run).masters), 1e-3)
          << error << ", " << steps << " steps";
    }
  }
}

TEST(ZeroOneAdamTest, AnElementThatNeverHadAGradientOnlyDecays) {
  const OneBitRun run = RunOfTest(23);
  double want = FirstOneBitWeights(run)[0][OneBitRun::kNeverUsed];
  for (int step = 0; step < run.steps; ++step) want *= 1 - run.LrOf(step) * OneBitRun::kDecay;
  EXPECT_NEAR(TrainOneBit(2, run)[0].weights[0][OneBitRun::kNeverUsed], want, 1e-6);
}

TEST(ZeroOneAdamTest, AStepWithANanOnOneRankIsSkippedByAllAndLeavesNothing) {
  // A sum, an average of gradients, the first local step, one between, one that joins.
  for (const int broken : {1, 4, 10, 20, 19}) {
    SCOPED_TRACE(broken);
    OneBitRun run = RunOfTest();
    run.broken_step = broken;
    ExpectPlainProgram(2, run);
  }
}

}  // namespace
}  // namespace megatron
