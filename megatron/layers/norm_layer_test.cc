#include "megatron/layers/norm_layer.h"

#include <memory>

#include "gtest/gtest.h"
#include "megatron/layers/layer_harness.h"

namespace megatron {
namespace {

constexpr int64_t kHidden = 8;

// A norm's gradients come out of one pass, so that none is put off; dy flows around the norm, too,
// where `residual` is set.
LayerCalls CallsOfNorm(ops::Norm::Kind kind, bool residual = false) {
  ops::Norm norm;
  norm.kind = kind;
  const auto layer = std::make_shared<NormLayer>(NormOptions{norm, "weight", "bias", kHidden});
  const auto saved = std::make_shared<NormLayer::Saved>();
  LayerCalls calls;
  calls.forward = [=](const LayerContext& ctx, const Tensor& x, const Tensor& y) {
    layer->Forward(ctx, x, y, saved.get());
    if (!residual) return;
    for (int64_t i = 0; i < y.numel(); ++i) y.data<float>()[i] += x.data<float>()[i];
  };
  calls.backward = [=](const LayerContext& ctx, const Tensor& dy, const Tensor& dx) {
    layer->Backward(ctx, dy, residual ? dy : Tensor(), dx, *saved);
  };
  calls.parameters = ParametersOf(layer.get());
  return calls;
}

TEST(NormLayerTest, GradientsAreThoseOfFiniteDifferences) {
  for (auto kind : {ops::Norm::kLayerNorm, ops::Norm::kRmsNorm}) {
    for (bool residual : {false, true}) {
      LayerHarness harness({4, 3});
      ExpectGradients(&harness, CallsOfNorm(kind, residual), kHidden);
    }
  }
}

TEST(NormLayerTest, AnRmsNormHasNoBias) {
  EXPECT_EQ(CallsOfNorm(ops::Norm::kLayerNorm).parameters.size(), 2u);
  EXPECT_EQ(CallsOfNorm(ops::Norm::kRmsNorm).parameters.size(), 1u);
}

}  // namespace
}  // namespace megatron
