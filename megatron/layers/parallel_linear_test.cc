#include "megatron/layers/parallel_linear.h"

#include <memory>

#include "gtest/gtest.h"
#include "megatron/layers/layer_harness.h"

namespace megatron {
namespace {

constexpr int64_t kIn = 6, kOut = 10;

LinearOptions Options() {
  LinearOptions options;
  options.name = "linear";
  options.input_size = kIn;
  options.output_shape = {kOut};
  return options;
}

AsyncCall BackwardInput(const ColumnParallelLinear& linear, const LayerContext& ctx,
                        const Tensor& dy, const Tensor& dx, LinearSaved* saved) {
  return linear.BackwardInput(ctx, dy, dx, saved);
}
AsyncCall BackwardInput(const RowParallelLinear& linear, const LayerContext& ctx, const Tensor& dy,
                        const Tensor& dx, LinearSaved* saved) {
  linear.BackwardInput(ctx, dy, dx, saved);
  return AsyncCall();
}

// A linear layer's backward is two calls in any case: for the input, and for the weight.
template <typename Linear>
LayerCalls CallsOfLinear(const std::shared_ptr<Linear>& linear, const std::string& left_out = "") {
  const auto saved = std::make_shared<LinearSaved>();
  LayerCalls calls;
  calls.forward = [=](const LayerContext& ctx, const Tensor& x, const Tensor& y) {
    linear->Forward(ctx, x, y, saved.get());
  };
  calls.backward = [=](const LayerContext& ctx, const Tensor& dy, const Tensor& dx) {
    const AsyncCall reducing = BackwardInput(*linear, ctx, dy, dx, saved.get());
    if (!ctx.defers()) linear->BackwardWeight(ctx, *saved);
    reducing.Wait();
  };
  calls.backward_weight = [=](const LayerContext& ctx) { linear->BackwardWeight(ctx, *saved); };
  calls.parameters = ParametersOf(linear.get(), left_out);
  return calls;
}

TEST(ParallelLinearTest, GradientsOfAColumnLayerAreThoseOfFiniteDifferences) {
  for (bool bias : {false, true}) {
    LinearOptions options = Options();
    options.bias = bias;
    LayerHarness harness({4, 3});
    ExpectGradients(
        &harness,
        CallsOfLinear(std::make_shared<ColumnParallelLinear>(options, harness.tensor_group())), kIn,
        kOut);
  }
}

TEST(ParallelLinearTest, GradientsOfARowLayerAreThoseOfFiniteDifferences) {
  LayerHarness harness({4, 3});
  ExpectGradients(
      &harness,
      CallsOfLinear(std::make_shared<RowParallelLinear>(Options(), harness.tensor_group()),
                    "linear.bias"),
      kIn, kOut);
}

TEST(ParallelLinearTest, ARowLayerLeavesItsBiasToTheCaller) {
  LayerHarness harness({2});
  RowParallelLinear linear(Options(), harness.tensor_group());
  harness.Bind(ParametersOf(&linear));
  EXPECT_EQ(linear.bias().numel(), kOut);
  const auto x = ops::HostTensor({2, kIn}, DType::kFloat32);
  const ops::HostTensor y({2, kOut}, DType::kFloat32);
  LinearSaved saved;
  linear.Forward(harness.context(), x, y, &saved);
  EXPECT_EQ(y.Values(), std::vector<double>(2 * kOut, 0.0));
}

}  // namespace
}  // namespace megatron
