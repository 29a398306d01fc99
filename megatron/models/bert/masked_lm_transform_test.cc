#include "megatron/models/bert/masked_lm_transform.h"

#include <memory>

#include "gtest/gtest.h"
#include "megatron/layers/layer_harness.h"

namespace megatron {
namespace {

constexpr int64_t kHidden = 8;

LayerCalls MakeTransform(ops::Activation activation, bool sequence_parallel = false) {
  TransformerOptions options;
  options.hidden_size = kHidden;
  options.sequence_parallel = sequence_parallel;
  const auto transform = std::make_shared<MaskedLmTransform>(options, activation);
  const auto saved = std::make_shared<MaskedLmTransform::Saved>();
  LayerCalls calls;
  calls.forward = [=](const LayerContext& ctx, const Tensor& x, const Tensor& y) {
    transform->Forward(ctx, x, y, saved.get());
  };
  calls.backward = [=](const LayerContext& ctx, const Tensor& dy, const Tensor& dx) {
    transform->Backward(ctx, dy, dx, *saved);
  };
  calls.parameters = ParametersOf(transform.get());
  return calls;
}

TEST(MaskedLmTransformTest, GradientsAreThoseOfFiniteDifferences) {
  for (ops::Activation activation : {ops::Activation::kGeluErf, ops::Activation::kGeluTanh}) {
    LayerHarness harness({4, 3});
    ExpectGradients(&harness, MakeTransform(activation), kHidden);
  }
}

TEST(MaskedLmTransformTest, TwoTensorParallelRanksEqualOne) {
  ExpectTwoRanksEqualOne(
      {5, 3},
      [](const ProcessGroup&, bool sequence_parallel) {
        return MakeTransform(ops::Activation::kGeluErf, sequence_parallel);
      },
      kHidden);
}

}  // namespace
}  // namespace megatron
