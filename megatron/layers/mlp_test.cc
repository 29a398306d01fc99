#include "megatron/layers/mlp.h"

#include <memory>

#include "gtest/gtest.h"
#include "megatron/layers/layer_harness.h"

namespace megatron {
namespace {

constexpr int64_t kHidden = 8;

TransformerOptions Plain() {
  TransformerOptions options;
  options.hidden_size = kHidden;
  options.ffn_hidden_size = 12;
  return options;
}

TransformerOptions Gated() {
  TransformerOptions options = Plain();
  options.gated = true;
  options.linear_bias = false;
  return options;
}

LayerCalls MakeMlp(TransformerOptions options, const ProcessGroup& group,
                   bool sequence_parallel = false) {
  options.sequence_parallel = sequence_parallel;
  return CallsOf(std::make_shared<Mlp>(options, "mlp", group), "mlp.linear_fc2.bias");
}

void ExpectMlpGradients(const TransformerOptions& options) {
  LayerHarness harness({4, 3});
  ExpectGradients(&harness, MakeMlp(options, harness.tensor_group()), kHidden);
}

TEST(MlpTest, GradientsAreThoseOfFiniteDifferences) {
  for (ops::Activation activation :
       {ops::Activation::kGeluTanh, ops::Activation::kGeluErf, ops::Activation::kSilu}) {
    TransformerOptions options = Plain();
    options.activation = activation;
    ExpectMlpGradients(options);
  }
}

TEST(MlpTest, GradientsOfAGatedMlpAreThoseOfFiniteDifferences) { ExpectMlpGradients(Gated()); }

TEST(MlpTest, RecomputationChangesNoBit) {
  const auto x = ops::HostTensor::Normal({7, kHidden}, DType::kFloat32, 1),
             dy = ops::HostTensor::Normal({7, kHidden}, DType::kFloat32, 2);
  for (TransformerOptions options : {Plain(), Gated()}) {
    LayerHarness::Results results[2];
    for (bool recompute : {false, true}) {
      options.recompute.mlp = recompute;
      LayerHarness harness({4, 3});
      const LayerCalls calls = MakeMlp(options, harness.tensor_group());
      harness.Bind(calls.parameters);
      results[recompute] = harness.Run(calls, x, dy);
    }
    EXPECT_EQ(results[1].y, results[0].y);
    EXPECT_EQ(results[1].dx, results[0].dx);
    EXPECT_EQ(results[1].gradients, results[0].gradients);
  }
}

TEST(MlpTest, TwoTensorParallelRanksEqualOne) {
  for (const TransformerOptions& options : {Plain(), Gated()}) {
    ExpectTwoRanksEqualOne(
        {5, 3},
        [&](const ProcessGroup& group, bool sequence_parallel) {
          return MakeMlp(options, group, sequence_parallel);
        },
        kHidden);
  }
}

}  // namespace
}  // namespace megatron
