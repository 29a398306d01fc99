#include "megatron/layers/norm_layer.h"

#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/layers/layer_harness.h"

namespace megatron {
namespace {

constexpr int64_t kHidden = 8;

// A norm's gradients come out of one pass, so that none is put off; dy flows around the norm, too,
// where `residual` is set.
LayerCalls CallsOfNorm(const ops::Norm& norm, bool residual = false) {
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

// A LayerNorm, one without a bias, and an RMSNorm.
std::vector<ops::Norm> Norms() {
  std::vector<ops::Norm> norms(3);
  norms[1].bias = false;
  norms[2].kind = ops::Norm::kRmsNorm;
  return norms;
}

TEST(NormLayerTest, GradientsAreThoseOfFiniteDifferences) {
  for (const ops::Norm& norm : Norms()) {
    for (bool residual : {false, true}) {
      LayerHarness harness({4, 3});
      ExpectGradients(&harness, CallsOfNorm(norm, residual), kHidden);
    }
  }
}

TEST(NormLayerTest, ALayerNormAloneHasABiasAndMayHaveNone) {
  const std::vector<ops::Norm> norms = Norms();
  EXPECT_EQ(CallsOfNorm(norms[0]).parameters.size(), 2u);
  EXPECT_EQ(CallsOfNorm(norms[1]).parameters.size(), 1u);
  EXPECT_EQ(CallsOfNorm(norms[2]).parameters.size(), 1u);
}

}  // namespace
}  // namespace megatron
