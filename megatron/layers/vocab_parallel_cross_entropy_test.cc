#include "megatron/layers/vocab_parallel_cross_entropy.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/comm/communicator.h"
#include "megatron/comm/counted_communicator.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/layers/layer_harness.h"
#include "megatron/ops/finite_difference.h"
#include "megatron/ops/tolerances.h"

namespace megatron {
namespace {

using ops::HostTensor;

constexpr int64_t kTokens = 5, kVocab = 12, kPadded = 16;
constexpr DType kF32 = DType::kFloat32;

// The logits of all columns, of which the last ones pad the vocabulary and count for nothing.
struct Problem {
  HostTensor logits_TV = HostTensor::Normal({kTokens, kPadded}, kF32, 1);
  HostTensor weight_T = HostTensor::Of({kTokens}, kF32, {0.5, 1, 0, 2, 0.25});
  int32_t labels[kTokens] = {0, 11, 3, 7, 8};
};

struct Result {
  std::vector<double> loss_T, hit_T, gradient_TV;
};

// One rank's columns of the problem, computed by the layer. `logits` is overwritten.
Result Compute(LayerHarness* harness, const Problem& problem, const HostTensor& logits,
               const ops::VocabRange& range) {
  const VocabParallelCrossEntropy layer(range);
  HostTensor loss({kTokens}, kF32), hit({kTokens}, kF32);
  const Tensor labels(const_cast<int32_t*>(problem.labels), DType::kInt32, {kTokens});
  const LayerContext& ctx = harness->context();
  const auto saved = layer.Forward(ctx, ctx.saved, logits, labels, problem.weight_T, {loss, hit});
  EXPECT_EQ(layer.Backward(ctx, saved).raw(), logits.tensor().raw());
  return {loss.Values(), hit.Values(), logits.Values()};
}

HostTensor Columns(const HostTensor& all, int64_t first, int64_t count) {
  HostTensor columns({kTokens, count}, kF32);
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t v = 0; v < count; ++v)
      columns.Set(t * count + v, all.Get(t * kPadded + first + v));
  }
  return columns;
}

Result ComputeOnOneRank(const Problem& problem) {
  LayerHarness harness({kTokens});
  return Compute(&harness, problem, Columns(problem.logits_TV, 0, kPadded), {0, kVocab});
}

TEST(VocabParallelCrossEntropyTest, TheLossIsMinusTheLogarithmOfTheLabelsShare) {
  const Problem problem;
  const Result result = ComputeOnOneRank(problem);
  std::vector<double> want_loss, want_hit;
  for (int64_t t = 0; t < kTokens; ++t) {
    double sum = 0, best = -1e30;
    for (int64_t v = 0; v < kVocab; ++v) {
      sum += std::exp(problem.logits_TV.Get(t * kPadded + v));
      best = std::max(best, problem.logits_TV.Get(t * kPadded + v));
    }
    const double label = problem.logits_TV.Get(t * kPadded + problem.labels[t]);
    want_loss.push_back(std::log(sum) - label);
    want_hit.push_back(label == best);
  }
  ops::ExpectNear(HostTensor::Of({kTokens}, kF32, result.loss_T), want_loss, 1e-6);
  EXPECT_EQ(result.hit_T, want_hit);
}

TEST(VocabParallelCrossEntropyTest, GradientsAreThoseOfFiniteDifferences) {
  Problem problem;
  const Result result = ComputeOnOneRank(problem);
  const std::vector<double> want = ops::FiniteDifference(&problem.logits_TV, [&] {
    const Result moved = ComputeOnOneRank(problem);
    double loss = 0;
    for (int64_t t = 0; t < kTokens; ++t) loss += problem.weight_T.Get(t) * moved.loss_T[t];
    return loss;
  });
  ops::ExpectNear(HostTensor::Of({kTokens * kPadded}, kF32, result.gradient_TV), want,
                  ops::kFiniteDifferenceTolerance);
}

TEST(VocabParallelCrossEntropyTest, TwoTensorParallelRanksEqualOne) {
  const Problem problem;
  const Result whole = ComputeOnOneRank(problem);
  const auto near = [](const std::vector<double>& got, const std::vector<double>& want) {
    ops::ExpectNear(HostTensor::Of({static_cast<int64_t>(got.size())}, kF32, got), want, 1e-6);
  };
  const absl::Status status = RunRanks(2, [&](int rank, const ProcessGroup& group) {
    constexpr int64_t kColumns = kPadded / 2;
    LayerHarness harness({kTokens}, group);
    const Result part =
        Compute(&harness, problem, Columns(problem.logits_TV, rank * kColumns, kColumns),
                {rank * kColumns, kVocab});
    near(part.loss_T, whole.loss_T);
    EXPECT_EQ(part.hit_T, whole.hit_T);
    const HostTensor gradient = HostTensor::Of({kTokens, kPadded}, kF32, whole.gradient_TV);
    near(part.gradient_TV, Columns(gradient, rank * kColumns, kColumns).Values());
    return absl::OkStatus();
  });
  EXPECT_EQ(status, absl::OkStatus());
}

// One with the largest logits, and one with the sums of exponentials and the labels' logits.
TEST(VocabParallelCrossEntropyTest, TensorParallelRanksExchangeTwoMessages) {
  const Problem problem;
  const absl::Status status = RunRanks(2, [&](int rank, const ProcessGroup& world) {
    BytesSent sent;
    LayerHarness harness({kTokens}, ProcessGroup(Counted(world.communicator(), &sent)));
    Compute(&harness, problem, Columns(problem.logits_TV, rank * kPadded / 2, kPadded / 2),
            {rank * kPadded / 2, kVocab});
    EXPECT_EQ(sent.CallsOf("", Collective::kAllReduce), 2);
    // Each of two ranks sends as many bytes as it has.
    EXPECT_EQ(sent.Total(), 3 * 4 * kTokens);
    return absl::OkStatus();
  });
  EXPECT_EQ(status, absl::OkStatus());
}

}  // namespace
}  // namespace megatron
