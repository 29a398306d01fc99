#include "megatron/layers/vocab_parallel_embedding.h"

#include <memory>

#include "gtest/gtest.h"
#include "megatron/layers/layer_harness.h"

namespace megatron {
namespace {

constexpr int64_t kRows = 12, kHidden = 4;

// The layer reads the batch's tokens, x is not read; the harness gives each token its number.
LayerCalls MakeEmbedding(const ProcessGroup& group) {
  const auto layer =
      std::make_shared<VocabParallelEmbedding>("words", kRows, kHidden, /*init_std=*/0.02f, group);
  LayerCalls calls;
  calls.forward = [layer](const LayerContext& ctx, const Tensor& x, const Tensor& y) {
    layer->Forward(ctx, ctx.batch->tokens_T, y);
  };
  calls.backward = [layer](const LayerContext& ctx, const Tensor& dy, const Tensor& dx) {
    layer->Backward(ctx, ctx.batch->tokens_T, dy);
  };
  calls.parameters = {&layer->weight()};
  return calls;
}

TEST(VocabParallelEmbeddingTest, ARowOfTheOutputIsTheTokensRowOfTheTable) {
  LayerHarness harness({3});
  const LayerCalls calls = MakeEmbedding(harness.tensor_group());
  harness.Bind(calls.parameters);
  int32_t tokens[3] = {11, 0, 11};
  harness.batch().tokens_T = Tensor(tokens, DType::kInt32, {3});
  const ops::HostTensor y({3, kHidden}, DType::kFloat32);
  harness.Forward(calls, Tensor(), y);
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t h = 0; h < kHidden; ++h)
      EXPECT_EQ(y.Get(t * kHidden + h), harness.values()[0].Get(tokens[t] * kHidden + h));
  }
}

TEST(VocabParallelEmbeddingTest, TheTablesGradientIsTheSumOverEachTokensPlaces) {
  LayerHarness harness({3});
  const LayerCalls calls = MakeEmbedding(harness.tensor_group());
  harness.Bind(calls.parameters);
  int32_t tokens[3] = {11, 0, 11};
  harness.batch().tokens_T = Tensor(tokens, DType::kInt32, {3});
  const auto dy = ops::HostTensor::Normal({3, kHidden}, DType::kFloat32, 2);
  const LayerHarness::Results results =
      harness.Run(calls, ops::HostTensor({3, kHidden}, DType::kFloat32), dy);
  std::vector<double> want(kRows * kHidden, 0.0);
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t h = 0; h < kHidden; ++h) want[tokens[t] * kHidden + h] += dy.Get(t * kHidden + h);
  }
  ops::ExpectNear(ops::HostTensor::Of({kRows * kHidden}, DType::kFloat32, results.gradients[0]),
                  want, 1e-6);
}

TEST(VocabParallelEmbeddingTest, TwoTensorParallelRanksEqualOne) {
  ExpectTwoRanksEqualOne(
      {5, 7}, [](const ProcessGroup& group, bool) { return MakeEmbedding(group); }, kHidden);
}

}  // namespace
}  // namespace megatron
