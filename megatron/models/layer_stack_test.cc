#include "megatron/models/layer_stack.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/layers/activation_meter.h"
#include "megatron/layers/layer_harness.h"

namespace megatron {
namespace {

constexpr int64_t kHidden = 8;
const std::vector<int> kLengths = {4, 2};

LayerStackOptions Options(int64_t num_layers, const LayerRecompute& recompute = {}) {
  LayerStackOptions options;
  options.num_layers = num_layers;
  options.recompute = recompute;
  TransformerOptions& transformer = options.transformer;
  transformer.num_layers = 6;
  transformer.hidden_size = kHidden;
  transformer.ffn_hidden_size = 12;
  transformer.num_attention_heads = transformer.num_query_groups = 2;
  transformer.kv_channels = 4;
  transformer.hidden_dropout = transformer.attention_dropout = 0;
  return options;
}

LayerCalls MakeStack(const LayerStackOptions& options, const ProcessGroup& group = {}) {
  return CallsOf(std::make_shared<LayerStack>(options, group), /*rotary=*/nullptr);
}

TEST(LayerStackTest, GradientsOfTwoLayersAreThoseOfFiniteDifferences) {
  LayerHarness harness(kLengths);
  ExpectGradients(&harness, MakeStack(Options(2)), kHidden);
}

TEST(LayerStackTest, RecomputationChangesNoBit) {
  const LayerCalls kept = MakeStack(Options(5));
  for (const LayerRecompute& recompute :
       {LayerRecompute{LayerRecompute::kUniform, 1}, LayerRecompute{LayerRecompute::kUniform, 2},
        LayerRecompute{LayerRecompute::kUniform, 9}, LayerRecompute{LayerRecompute::kBlock, 3}}) {
    SCOPED_TRACE(testing::Message()
                 << "method " << recompute.method << ", " << recompute.num_layers << " layers");
    ExpectSameBits(kLengths, kept, MakeStack(Options(5, recompute)), kHidden);
  }
}

TEST(LayerStackTest, GradientsThatAreDeferredWithRecomputationAreTheSameBits) {
  LayerHarness harness(kLengths);
  ExpectGradients(&harness, MakeStack(Options(2, {LayerRecompute::kUniform, 2})), kHidden);
}

// The calls of five layers of which the first `frozen` are frozen, and in front of which nothing is
// trained.
LayerCalls MakeFrozen(int64_t frozen, const LayerRecompute& recompute) {
  const auto stack = std::make_shared<LayerStack>(Options(5, recompute), ProcessGroup());
  const auto saved = std::make_shared<LayerStack::Saved>();
  LayerCalls calls = CallsOf(stack, /*rotary=*/nullptr);
  const size_t of_layer = calls.parameters.size() / 5;
  for (size_t i = 0; i < frozen * of_layer; ++i) calls.parameters[i]->frozen = true;
  calls.forward = [=](const LayerContext& ctx, const Tensor& x, const Tensor& y) {
    *saved = {};
    saved->trains_in_front = false;
    stack->Forward(ctx, nullptr, x, y, saved.get());
  };
  calls.backward = [=](const LayerContext& ctx, const Tensor& dy, const Tensor& dx) {
    stack->Backward(ctx, nullptr, dy, dx, saved.get());
  };
  calls.backward_weight = [=](const LayerContext& ctx) { stack->BackwardWeight(ctx, saved.get()); };
  return calls;
}

// Segments of two and of three layers begin in front of the first trained layer.
TEST(LayerStackTest, FrozenFirstLayersKeepNothingAndChangeNoBitOfTheOthers) {
  const ops::HostTensor x = ops::HostTensor::Normal({6, kHidden}, DType::kFloat32, 1);
  const ops::HostTensor dy = ops::HostTensor::Normal({6, kHidden}, DType::kFloat32, 2);
  for (const LayerRecompute& recompute :
       {LayerRecompute{}, LayerRecompute{LayerRecompute::kUniform, 2},
        LayerRecompute{LayerRecompute::kUniform, 3}, LayerRecompute{LayerRecompute::kBlock, 4}}) {
    for (const bool deferred : {false, true}) {
      LayerHarness whole(kLengths);
      const LayerCalls all = MakeFrozen(0, recompute);
      whole.Bind(all.parameters);
      const LayerHarness::Results want = whole.Run(all, x, dy, deferred);
      for (const int64_t frozen : {1, 2, 3, 5}) {
        SCOPED_TRACE(testing::Message() << frozen << " frozen, method " << recompute.method << ", "
                                        << recompute.num_layers << " layers");
        LayerHarness harness(kLengths);
        const LayerCalls calls = MakeFrozen(frozen, recompute);
        harness.Bind(calls.parameters);
        const LayerHarness::Results got = harness.Run(calls, x, dy, deferred);
        EXPECT_EQ(got.y, want.y);
        for (size_t i = 0; i < calls.parameters.size(); ++i) {
          const bool is_zero = calls.parameters[i]->frozen;
          const std::vector<double> zeros(want.gradients[i].size(), 0);
          EXPECT_EQ(got.gradients[i], is_zero ? zeros : want.gradients[i])
              << calls.parameters[i]->name;
        }
        if (recompute.method == LayerRecompute::kNone && frozen > 1) {
          EXPECT_LT(harness.context().saved->high_water(), whole.context().saved->high_water());
        }
      }
    }
  }
}

// Two samples of six tokens, of which layers 1, 2 and 3 of five see some.
const std::vector<int> kEqualLengths = {6, 6};

void KeepTokens(int64_t kept_tokens, LayerHarness* harness) {
  harness->batch().num_samples = 2;
  harness->context().kept_tokens = kept_tokens;
}

LayerStackOptions FiveLayers(const LayerRecompute& recompute = {}) {
  LayerStackOptions options = Options(5, recompute);
  options.transformer.num_layers = 5;
  return options;
}

TEST(LayerStackTest, GradientsOfLayersThatDropTokensAreThoseOfFiniteDifferences) {
  for (const LayerRecompute& recompute :
       {LayerRecompute{}, LayerRecompute{LayerRecompute::kUniform, 2}}) {
    LayerHarness harness(kEqualLengths);
    KeepTokens(4, &harness);
    ExpectGradients(&harness, MakeStack(FiveLayers(recompute)), kHidden);
  }
}

TEST(LayerStackTest, TokensGoAroundLayersThatDropThem) {
  const ops::HostTensor x = ops::HostTensor::Normal({12, kHidden}, DType::kFloat32, 1);
  const ops::HostTensor y(x.tensor().shape(), DType::kFloat32);
  LayerStackOptions middle = FiveLayers();
  middle.first_layer = 2;
  middle.num_layers = 1;
  LayerHarness harness(kEqualLengths);
  KeepTokens(4, &harness);
  const LayerCalls calls = MakeStack(middle);
  harness.Bind(calls.parameters);
  harness.Forward(calls, x, y);
  int around = 0;
  for (int64_t t = 0; t < 12; ++t) {
    const auto row = [&](const ops::HostTensor& tensor) {
      const std::vector<double> values = tensor.Values();
      return std::vector<double>(values.begin() + t * kHidden, values.begin() + (t + 1) * kHidden);
    };
    around += row(y) == row(x);
  }
  EXPECT_EQ(around, 4);
}

TEST(LayerStackTest, TheFirstAndTheLastLayerSeeAllTokens) {
  const ops::HostTensor x = ops::HostTensor::Normal({12, kHidden}, DType::kFloat32, 1);
  for (const int64_t layer : {0, 4}) {
    LayerStackOptions options = FiveLayers();
    options.first_layer = layer;
    options.num_layers = 1;
    std::vector<std::vector<double>> outputs;
    for (const int64_t kept : {0, 4}) {
      const ops::HostTensor y(x.tensor().shape(), DType::kFloat32);
      LayerHarness harness(kEqualLengths);
      KeepTokens(kept, &harness);
      const LayerCalls calls = MakeStack(options);
      harness.Bind(calls.parameters);
      harness.Forward(calls, x, y);
      outputs.push_back(y.Values());
    }
    EXPECT_EQ(outputs[0], outputs[1]);
  }
}

TEST(LayerStackTest, ForwardOnlyGivesWhatForwardGives) {
  for (const int64_t num_layers : {0, 1, 2, 3}) {
    SCOPED_TRACE(num_layers);
    LayerHarness harness(kLengths);
    const auto stack = std::make_shared<LayerStack>(Options(num_layers), ProcessGroup());
    const LayerCalls calls = CallsOf(stack, /*rotary=*/nullptr);
    harness.Bind(calls.parameters);
    const ops::HostTensor x = ops::HostTensor::Normal({6, kHidden}, DType::kFloat32, 1);
    const ops::HostTensor y(x.tensor().shape(), DType::kFloat32);
    const ops::HostTensor only(x.tensor().shape(), DType::kFloat32);
    harness.Forward(calls, x, y);
    stack->ForwardOnly(harness.context(), nullptr, x, only);
    EXPECT_EQ(only.Values(), y.Values());
  }
}

// Returns the output of the stack's first layers.
std::vector<double> OutputOf(LayerStackOptions options, int64_t num_layers, const Tensor& x) {
  options.num_layers = num_layers;
  LayerHarness harness(kLengths);
  const auto stack = std::make_shared<LayerStack>(options, ProcessGroup());
  const LayerCalls calls = CallsOf(stack, /*rotary=*/nullptr);
  harness.Bind(calls.parameters);
  const ops::HostTensor y(x.shape(), DType::kFloat32);
  harness.Forward(calls, x, y);
  return y.Values();
}

// Backward passes, which recompute layers, get the meter too.
TEST(LayerStackTest, TheMeterSeesTheOutputOfEachLayerOnce) {
  constexpr int64_t kLayers = 4;
  const ops::HostTensor x = ops::HostTensor::Normal({6, kHidden}, DType::kFloat32, 1);
  const ops::HostTensor dy = ops::HostTensor::Normal({6, kHidden}, DType::kFloat32, 2);
  for (const bool post_norm : {false, true}) {
    for (const LayerRecompute& recompute :
         {LayerRecompute{}, LayerRecompute{LayerRecompute::kUniform, 1},
          LayerRecompute{LayerRecompute::kUniform, 3}, LayerRecompute{LayerRecompute::kBlock, 2}}) {
      LayerStackOptions options = Options(kLayers, recompute);
      options.transformer.post_norm = post_norm;
      LayerCalls calls = MakeStack(options);
      const ops::HostTensor squares({kLayers, 2}, DType::kFloat32);
      const ops::HostTensor largest({kLayers, 1}, DType::kFloat32);
      const ops::HostTensor scores({kLayers, 1}, DType::kFloat32);
      const ops::HostTensor rows({kLayers}, DType::kInt64);
      ActivationMeter meter({rows, squares, largest, scores}, /*adds=*/true, nullptr);
      LayerHarness harness(kLengths);
      harness.Bind(calls.parameters);
      meter.StartStep(harness.context().stream);
      const auto with_meter = [&](auto call) {
        return [&meter, call](LayerContext ctx, const Tensor& in, const Tensor& out) {
          ctx.activations = &meter;
          call(ctx, in, out);
        };
      };
      calls.forward = with_meter(calls.forward);
      calls.backward = with_meter(calls.backward);
      harness.Run(calls, x, dy);
      for (int64_t layer = 0; layer < kLayers; ++layer) {
        double sum = 0, most = 0;
        for (const double value : OutputOf(options, layer + 1, x)) {
          sum += value * value;
          most = std::max(most, std::abs(value));
        }
        EXPECT_NEAR(squares.Values()[2 * layer], sum, 1e-5 * sum);
        EXPECT_EQ(largest.Values()[layer], most);
        EXPECT_EQ(rows.Values()[layer], 6);
      }
    }
  }
}

TEST(LayerStackTest, AStackWithoutLayersGivesItsInputAndItsGradient) {
  LayerHarness harness(kLengths);
  const ops::HostTensor x = ops::HostTensor::Normal({6, kHidden}, DType::kFloat32, 1);
  const ops::HostTensor dy = ops::HostTensor::Normal({6, kHidden}, DType::kFloat32, 2);
  const LayerHarness::Results results = harness.Run(MakeStack(Options(0)), x, dy);
  EXPECT_EQ(results.y, x.Values());
  EXPECT_EQ(results.dx, dy.Values());
}

TEST(LayerStackTest, LayersThatAreCutOverTwoStacksAreThoseOfOne) {
  const ops::HostTensor x = ops::HostTensor::Normal({6, kHidden}, DType::kFloat32, 1);
  const ops::HostTensor between(x.tensor().shape(), DType::kFloat32);
  const ops::HostTensor cut(x.tensor().shape(), DType::kFloat32);
  const ops::HostTensor whole(x.tensor().shape(), DType::kFloat32);
  const auto forward = [](const LayerStackOptions& options, const Tensor& x, const Tensor& y) {
    LayerHarness harness(kLengths);
    const LayerCalls calls = MakeStack(options);
    harness.Bind(calls.parameters);
    harness.Forward(calls, x, y);
  };
  forward(Options(3), x, whole);
  forward(Options(1), x, between);
  LayerStackOptions rest = Options(2);
  rest.first_layer = 1;
  forward(rest, between, cut);
  EXPECT_EQ(cut.Values(), whole.Values());
}

TEST(LayerStackTest, TwoTensorParallelRanksEqualOne) {
  ExpectTwoRanksEqualOne(
      {5, 3},
      [](const ProcessGroup& group, bool sequence_parallel) {
        LayerStackOptions options = Options(2, {LayerRecompute::kUniform, 1});
        options.transformer.sequence_parallel = sequence_parallel;
        return MakeStack(options, group);
      },
      kHidden);
}

}  // namespace
}  // namespace megatron
