#include "megatron/layers/parallel_linear.h"

#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/collective.h"
#include "megatron/comm/communicator.h"
#include "megatron/comm/counted_communicator.h"
#include "megatron/comm/overlap/async_group.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/layers/float8_history.h"
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

// What three steps of training a layer gave.
struct Float8Steps {
  std::vector<double> values;  // results, gradients and the history behind each step
  int64_t messages = 0;

  void Append(const std::vector<double>& more) {
    values.insert(values.end(), more.begin(), more.end());
  }
};

// Trains a layer in FP8 on `world`. Rows further behind are larger, so that no piece has the largest
// magnitudes of all.
template <typename Linear>
absl::StatusOr<Float8Steps> TrainInFloat8(LinearOptions options, const ProcessGroup& world,
                                          bool beside, int64_t input, int64_t output, bool rows_in,
                                          bool rows_out) {
  BytesSent sent;
  LayerHarness harness({17, 9, 3, 31}, ProcessGroup(Counted(world.communicator(), &sent)),
                       rows_in || rows_out);
  LayerContext& ctx = harness.context();
  if (beside) {
    MEGATRON_ASSIGN_OR_RETURN(ctx.tensor_group, WithAsyncCalls(ctx.tensor_group, ctx.stream));
  }
  Float8History history({/*length=*/2, /*most_recent=*/false});
  options.float8.history = &history;
  const auto linear = std::make_shared<Linear>(options, world);
  history.Allocate(Device(), nullptr);
  const LayerCalls calls = CallsOfLinear(linear);
  harness.Bind(calls.parameters);
  const int64_t tokens = harness.batch().num_tokens(), rows = ctx.rows();
  ops::HostTensor x({rows_in ? rows : tokens, input}, DType::kFloat32),
      dy({rows_out ? rows : tokens, output}, DType::kFloat32);
  Float8Steps steps;
  for (int step = 1; step <= 3; ++step) {
    const auto fill = [&](ops::HostTensor* to, int64_t width) {
      for (int64_t i = 0; i < to->numel(); ++i)
        to->Set(i, std::sin(1.7 * i + world.rank()) * static_cast<double>(1 + i / width) / step);
    };
    fill(&x, input), fill(&dy, output);
    history.StartStep(ctx.stream);
    const LayerHarness::Results results = harness.Run(calls, x, dy);
    steps.Append(results.y), steps.Append(results.dx);
    for (const std::vector<double>& gradient : results.gradients) steps.Append(gradient);
    history.StartReduce({world}, ctx.stream);
    history.Record(ctx.stream);
    for (const Float8History::Named& entries : history.Tensors()) {
      const float* const begin = entries.tensor.template data<float>();
      steps.Append(std::vector<double>(begin, begin + entries.tensor.numel()));
    }
  }
  for (const Collective kind : {Collective::kAllReduce, Collective::kAllGather,
                                Collective::kReduceScatter, Collective::kExchange})
    steps.messages += sent.CallsOf("", kind);
  return steps;
}

// Expects the same bits of four ranks in pieces, with and without a lane, and as many messages more
// in each forward.
template <typename Linear>
void ExpectSameFloat8InPieces(const LinearOptions& whole, int64_t input, int64_t output,
                              bool rows_in, bool rows_out, int64_t more_messages) {
  LinearOptions pieces = whole;
  pieces.overlap = true;
  const absl::Status status = RunRanks(4, [&](int, const ProcessGroup& world) -> absl::Status {
    const auto train = [&](const LinearOptions& options, bool beside) {
      return TrainInFloat8<Linear>(options, world, beside, input, output, rows_in, rows_out);
    };
    MEGATRON_ASSIGN_OR_RETURN(const Float8Steps want, train(whole, false));
    for (const bool beside : {false, true}) {
      MEGATRON_ASSIGN_OR_RETURN(const Float8Steps got, train(pieces, beside));
      EXPECT_EQ(got.values, want.values);
      EXPECT_EQ(got.messages, want.messages + 3 * more_messages);
    }
    return world.status();
  });
  EXPECT_EQ(status, absl::OkStatus());
}

TEST(ParallelLinearTest, ForwardInPiecesGivesTheSameBitsInFloat8) {
  LinearOptions options = Options();
  options.input_size = options.output_shape[0] = 64;
  options.float8.enabled = true;
  for (const Float8Recipe recipe :
       {Float8Recipe::kTensorwise, Float8Recipe::kDelayed, Float8Recipe::kBlockwise}) {
    for (const bool rows : {false, true}) {
      for (const bool keep_codes : {false, true}) {
        SCOPED_TRACE(testing::Message()
                     << "recipe " << static_cast<int>(recipe) << (rows ? ", sequence parallel" : "")
                     << (keep_codes ? ", codes are kept" : ""));
        options.float8.recipe = recipe;
        options.sequence_parallel = rows;
        options.keep_codes = keep_codes;
        ExpectSameFloat8InPieces<ColumnParallelLinear>(options, 64, 16, rows, false, rows ? 2 : 0);
        ExpectSameFloat8InPieces<RowParallelLinear>(options, 16, 64, false, rows, rows ? 1 : 3);
      }
    }
  }
}

}  // namespace
}  // namespace megatron
