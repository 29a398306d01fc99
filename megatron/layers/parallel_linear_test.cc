#include "megatron/layers/parallel_linear.h"

#include <cmath>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/overlap/async_group.h"
#include "megatron/comm/thread/run_ranks.h"
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

// Runs a layer's forward on four ranks as it is, and in pieces with and without a lane, and expects
// the same bits.
template <typename Linear>
void ExpectSameBitsInPieces(const LinearOptions& whole, int64_t input, int64_t output, bool rows_in,
                            bool rows_out) {
  LinearOptions pieces = whole;
  pieces.overlap = true;
  const absl::Status status = RunRanks(4, [&](int, const ProcessGroup& group) -> absl::Status {
    LayerHarness harness({9, 3, 4, 8}, group, rows_in || rows_out);
    const int64_t tokens = harness.batch().num_tokens(), rows = harness.context().rows();
    ops::HostTensor x({rows_in ? rows : tokens, input}, DType::kFloat32);
    for (int64_t i = 0; i < x.numel(); ++i) x.Set(i, std::sin(1.7 * i + group.rank()));
    std::vector<std::vector<double>> results;
    const auto run = [&](const LinearOptions& options) {
      const auto linear = std::make_shared<Linear>(options, group);
      const LayerCalls calls = CallsOfLinear(linear);
      harness.Bind(calls.parameters);
      const ops::HostTensor y({rows_out ? rows : tokens, output}, DType::kFloat32);
      harness.Forward(calls, x, y);
      results.push_back(y.Values());
    };
    run(whole);
    run(pieces);
    MEGATRON_ASSIGN_OR_RETURN(harness.context().tensor_group,
                              WithAsyncCalls(group, harness.context().stream));
    run(pieces);
    EXPECT_EQ(results[1], results[0]);
    EXPECT_EQ(results[2], results[0]);
    EXPECT_NE(results[0], std::vector<double>(results[0].size()));
    return group.status();
  });
  EXPECT_EQ(status, absl::OkStatus());
}

TEST(ParallelLinearTest, ForwardInPiecesGivesTheSameBits) {
  LinearOptions options = Options();
  options.input_size = 12;
  options.output_shape = {20};
  for (const bool rows : {false, true}) {
    SCOPED_TRACE(rows ? "sequence parallel" : "all rows");
    options.sequence_parallel = rows;
    ExpectSameBitsInPieces<ColumnParallelLinear>(options, 12, 5, rows, false);
    ExpectSameBitsInPieces<RowParallelLinear>(options, 3, 20, false, rows);
  }
}

}  // namespace
}  // namespace megatron
