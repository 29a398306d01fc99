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
  for (const TransformerOptions& options : {Plain(), Gated()}) {
    TransformerOptions recomputing = options;
    recomputing.recompute.mlp = true;
    ExpectSameBits({4, 3}, MakeMlp(options, {}), MakeMlp(recomputing, {}), kHidden);
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
