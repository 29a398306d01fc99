// 1-bit Adam on several ranks, beside a plain program in one process.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gtest/gtest.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/ops/host_tensor.h"
#include "megatron/optim/plain_sign_mean.h"
#include "megatron/optim/test_model.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ops::HostTensor;
using Values = std::vector<float>;

constexpr int64_t kSizes[] = {8 * 25, 60};
constexpr int kTensors = 2;
constexpr int64_t kNeverUsed = 17;  // an element of the first tensor without a gradient
constexpr double kLr = 1e-2, kDecay = 0.1, kBeta1 = 0.9, kBeta2 = 0.999, kEpsilon = 1e-8;

// A rank's summand of the gradient.
Values GradientOf(int tensor, int rank, int step) {
  const HostTensor x =
      HostTensor::Normal({kSizes[tensor]}, DType::kFloat32, 1000 * tensor + 100 * step + rank);
  Values values(x.tensor().data<float>(), x.tensor().data<float>() + kSizes[tensor]);
  if (tensor == 0) values[kNeverUsed] = 0;
  return values;
}

struct Outcome {
  Values weights[kTensors];
  std::vector<double> norms;
  std::vector<bool> applied;
};

struct Options {
  int steps = 8;
  int freeze_step = 3;
  double clip_grad = 0;
  int broken_step = -1;  // rank 1 has a NaN in it
};

absl::StatusOr<ProcessGroups> GroupsOf(const ProcessGroup& world) {
  MEGATRON_ASSIGN_OR_RETURN(const RankGrid dense, RankGrid::Create({}, world.size()));
  MEGATRON_ASSIGN_OR_RETURN(const RankGrid expert, RankGrid::CreateExpert({}, world.size()));
  return MakeGroups(dense, expert, world.communicator());
}

absl::StatusOr<Outcome> Train(const ProcessGroup& world, const Options& how) {
  MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups groups, GroupsOf(world));
  ThreadPool pool(1);
  const Stream stream = Stream::Cpu(&pool);
  OptimizerOptions options;
  options.kind = OptimizerOptions::kOneBitAdam;
  TestModel model(options);
  model.buffer_options.data = {world.size(), world.rank()};
  Parameter* const parameters[kTensors] = {model.Add("matrix", Replicated({8, 25})),
                                           model.Add("bias", Replicated({60}), /*decays=*/false)};
  model.Build();
  model.buffers->InitializeWeights(9, stream);
  DataParallelOptions data_parallel;
  data_parallel.compression.type = CompressionType::kOneBit;
  data_parallel.compression.start_iteration = how.freeze_step;
  model.Connect(groups, stream, data_parallel);
  Outcome outcome;
  for (int step = 0; step < how.steps; ++step) {
    model.parallel->StartStep(1, step);
    for (int t = 0; t < kTensors; ++t) {
      const Values gradient = GradientOf(t, world.rank(), step);
      std::copy(gradient.begin(), gradient.end(), parameters[t]->grad.data<float>());
    }
    if (step == how.broken_step && world.rank() == 1)
      parameters[1]->grad.data<float>()[3] = std::numeric_limits<float>::quiet_NaN();
    StepOptions step_options;
    step_options.lr = kLr;
    step_options.weight_decay = kDecay;
    step_options.clip_grad = how.clip_grad;
    if (model.parallel->gradients_are_own()) step_options.average = model.parallel.get();
    MEGATRON_ASSIGN_OR_RETURN(const StepResult result, model.Step(step_options, groups, stream));
    outcome.norms.push_back(result.grad_norm);
    outcome.applied.push_back(result.applied);
  }
  for (int t = 0; t < kTensors; ++t) outcome.weights[t] = Floats(parameters[t]->data);
  return outcome;
}

std::vector<Outcome> TrainOnRanks(int ranks, const Options& how) {
  std::vector<Outcome> outcomes(ranks);
  EXPECT_THAT(RunRanks(ranks,
                       [&](int rank, const ProcessGroup& world) -> absl::Status {
                         MEGATRON_ASSIGN_OR_RETURN(outcomes[rank], Train(world, how));
                         return world.status();
                       }),
              IsOk());
  return outcomes;
}

// The first weights, which are the same on all ranks.
Outcome Untrained() {
  Options none;
  none.steps = 0;
  return TrainOnRanks(1, none)[0];
}

// The published algorithm. A broken step is left out.
Outcome PlainProgram(int ranks, const Options& how) {
  Outcome outcome = Untrained();
  Values m[kTensors], v[kTensors];
  std::vector<PlainSignMean> means;
  for (int t = 0; t < kTensors; ++t) {
    m[t] = v[t] = Values(kSizes[t], 0);
    means.emplace_back(kSizes[t], ranks);
  }
  for (int step = 0; step < how.steps; ++step) {
    if (step == how.broken_step) continue;
    const bool frozen = step >= how.freeze_step;
    std::vector<Values> own[kTensors];  // of each rank, times the number of ranks
    Values whole[kTensors];
    double squares = 0;
    for (int t = 0; t < kTensors; ++t) {
      whole[t] = Values(kSizes[t], 0);
      for (int rank = 0; rank < ranks; ++rank) {
        own[t].push_back(GradientOf(t, rank, step));
        for (int64_t i = 0; i < kSizes[t]; ++i) whole[t][i] += own[t][rank][i];
        for (float& x : own[t][rank]) {
          x *= static_cast<float>(ranks);
          if (frozen) squares += static_cast<double>(x) * x / ranks;
        }
      }
      for (const float x : whole[t]) squares += frozen ? 0 : static_cast<double>(x) * x;
    }
    const double norm = std::sqrt(squares);
    outcome.norms.push_back(norm);
    const double clip = how.clip_grad > 0 ? std::min(1.0, how.clip_grad / (norm + 1e-6)) : 1;
    for (int t = 0; t < kTensors; ++t) {
      if (frozen) {
        std::vector<Values> momenta;
        for (int rank = 0; rank < ranks; ++rank) {
          Values momentum = m[t];
          for (int64_t i = 0; i < kSizes[t]; ++i) {
            momentum[i] =
                static_cast<float>(kBeta1 * momentum[i] + (1 - kBeta1) * clip * own[t][rank][i]);
          }
          momenta.push_back(momentum);
        }
        m[t] = means[t].Average(momenta);
      }
      for (int64_t i = 0; i < kSizes[t]; ++i) {
        const double g = clip * whole[t][i];
        if (!frozen) {
          m[t][i] = static_cast<float>(kBeta1 * m[t][i] + (1 - kBeta1) * g);
          v[t][i] = static_cast<float>(kBeta2 * v[t][i] + (1 - kBeta2) * g * g);
        } else if (v[t][i] == 0) {
          m[t][i] = 0;
        }
        const double decay = t == 0 ? kDecay : 0, w = outcome.weights[t][i];
        outcome.weights[t][i] = static_cast<float>(
            w - kLr * decay * w - kLr * m[t][i] / (std::sqrt(double{v[t][i]}) + kEpsilon));
      }
    }
  }
  return outcome;
}

void ExpectPlainProgram(int ranks, const Options& how) {
  const std::vector<Outcome> outcomes = TrainOnRanks(ranks, how);
  const Outcome want = PlainProgram(ranks, how), first = Untrained();
  for (int t = 0; t < kTensors; ++t) {
    double moved = 0;
    for (int64_t i = 0; i < kSizes[t]; ++i) {
      // Where v is small, steps are long.
      ASSERT_NEAR(outcomes[0].weights[t][i], want.weights[t][i],
                  1e-5 * (1 + std::abs(want.weights[t][i])))
          << ranks << " ranks, tensor " << t << ", element " << i;
      moved += std::abs(want.weights[t][i] - first.weights[t][i]);
    }
    EXPECT_GT(moved / static_cast<double>(kSizes[t]), 0.01);
    for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.weights[t], outcomes[0].weights[t]);
  }
  if (how.broken_step >= 0) return;
  for (int step = 0; step < how.steps; ++step)
    EXPECT_NEAR(outcomes[0].norms[step], want.norms[step], 1e-5 * want.norms[step]) << step;
}

TEST(OneBitAdamTest, WeightsAreThoseOfAPlainProgram) {
  for (const int ranks : {2, 3, 4}) {
    ExpectPlainProgram(ranks, {});
    Options clipped;
    clipped.clip_grad = 5;
    ExpectPlainProgram(ranks, clipped);
  }
}

// One rank has nothing to send: what is left of the algorithm is Adam without the correction of its
// moments, whose second moment stays.
TEST(OneBitAdamTest, OneRankTakesAdamsStepsWithASecondMomentThatStays) {
  const Options how;
  const Outcome got = TrainOnRanks(1, how)[0];
  Outcome want = Untrained();
  for (int t = 0; t < kTensors; ++t) {
    Values m(kSizes[t], 0), v = m;
    for (int step = 0; step < how.steps; ++step) {
      const Values g = GradientOf(t, 0, step);
      for (int64_t i = 0; i < kSizes[t]; ++i) {
        m[i] = std::fmaf(0.9f, m[i], static_cast<float>(1 - kBeta1) * g[i]);
        if (step < how.freeze_step)
          v[i] = std::fmaf(0.999f, v[i], static_cast<float>(1 - kBeta2) * g[i] * g[i]);
        const auto decay = static_cast<double>(t == 0 ? static_cast<float>(kDecay) : 0);
        const auto lr = static_cast<float>(kLr);
        float& w = want.weights[t][i];
        w = std::fmaf(-lr, m[i] / (std::sqrt(v[i]) + static_cast<float>(kEpsilon)),
                      w * static_cast<float>(1 - lr * decay));
      }
    }
    EXPECT_EQ(got.weights[t], want.weights[t]) << t;
  }
}

TEST(OneBitAdamTest, AnElementThatNeverHadAGradientOnlyDecays) {
  const Options how;
  const Outcome first = Untrained(), outcome = TrainOnRanks(2, how)[0];
  const double want = first.weights[0][kNeverUsed] * std::pow(1 - kLr * kDecay, how.steps);
  EXPECT_NEAR(outcome.weights[0][kNeverUsed], want, 1e-6);
}

TEST(OneBitAdamTest, AStepWithANanOnOneRankIsSkippedByAllAndLeavesNothing) {
  for (const int broken : {1, 5}) {
    Options how;
    how.broken_step = broken;
    ExpectPlainProgram(2, how);
    for (const Outcome& outcome : TrainOnRanks(2, how)) {
      for (int step = 0; step < how.steps; ++step) EXPECT_EQ(outcome.applied[step], step != broken);
    }
  }
}

}  // namespace
}  // namespace megatron
