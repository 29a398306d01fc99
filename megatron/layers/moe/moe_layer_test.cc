#include "megatron/layers/moe/moe_layer.h"

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/forwarding_communicator.h"
#include "megatron/comm/overlap/async_group.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/layers/layer_harness.h"
#include "megatron/layers/moe/expert_groups.h"

namespace megatron {
namespace {

constexpr int64_t kHidden = 8, kExperts = 4;

// All experts are chosen, so that no small step of a finite difference changes a choice.
TransformerOptions Options() {
  TransformerOptions options;
  options.num_layers = 1;
  options.hidden_size = kHidden;
  options.ffn_hidden_size = 12;
  options.linear_bias = false;
  options.gated = true;
  options.moe.num_experts = kExperts;
  options.moe.ffn_hidden_size = 6;
  options.moe.router.topk = kExperts;
  options.moe.balance = BalanceUnit::kNone;
  return options;
}

class MoeLayerTest : public testing::Test {
 protected:
  LayerCalls MakeLayer(const TransformerOptions& options) {
    const auto layer = std::make_shared<MoeLayer>(options, "mlp", /*layer=*/0,
                                                  harness_.tensor_group(), ExpertGroups{});
    states_.push_back(std::make_unique<RouterState>(
        options.moe, std::vector<std::string>{layer->router_name()}, Device(), nullptr));
    layer->set_state(states_.back()->layer(0));
    return CallsOf(layer);
  }

  LayerHarness harness_{{4, 4}};
  std::vector<std::unique_ptr<RouterState>> states_;
};

TEST_F(MoeLayerTest, GradientsAreThoseOfFiniteDifferences) {
  ExpectGradients(&harness_, MakeLayer(Options()), kHidden);
}

TEST_F(MoeLayerTest, GradientsWithSigmoidScoresAndASharedExpertAreThoseOfFiniteDifferences) {
  TransformerOptions options = Options();
  options.moe.router.score = ops::RouterScore::kSigmoid;
  options.moe.shared_ffn_hidden_size = 10;
  ExpectGradients(&harness_, MakeLayer(options), kHidden);
}

TEST_F(MoeLayerTest, GradientsWithAGateOfTheSharedExpertAreThoseOfFiniteDifferences) {
  TransformerOptions options = Options();
  options.moe.shared_ffn_hidden_size = 10;
  options.moe.shared_expert_gate = true;
  ExpectGradients(&harness_, MakeLayer(options), kHidden);
}

TEST_F(MoeLayerTest, RecomputationChangesNoBitAndKeepsNothing) {
  TransformerOptions options = Options();
  options.moe.router.topk = 2;
  options.moe.shared_ffn_hidden_size = 10;
  options.moe.shared_expert_gate = true;
  TransformerOptions recomputing = options;
  recomputing.recompute.experts = recomputing.recompute.mlp = true;
  ExpectSameBits({4, 4}, MakeLayer(options), MakeLayer(recomputing), kHidden);
  const LayerCalls calls = MakeLayer(recomputing);
  harness_.Bind(calls.parameters);
  const ops::HostTensor x = ops::HostTensor::Normal({8, kHidden}, DType::kFloat32, 1);
  harness_.Forward(calls, x, ops::HostTensor({8, kHidden}, DType::kFloat32));
  EXPECT_EQ(harness_.context().saved->high_water(), 0);
}

// Sizes whose products can be in FP8.
TransformerOptions InFloat8(Float8Recipe recipe) {
  TransformerOptions options = Options();
  options.hidden_size = 32;
  options.moe.ffn_hidden_size = 48;
  options.moe.router.topk = 2;
  options.float8.enabled = true;
  options.float8.recipe = recipe;
  return options;
}

constexpr Float8Recipe kRecipes[] = {Float8Recipe::kTensorwise, Float8Recipe::kBlockwise};

// With recomputation of what is between the matrices, experts keep their inputs themselves.
TEST_F(MoeLayerTest, InputsKeptAsCodesGiveTheBitsOfInputsThatAreKeptAndOfThoseComputedAgain) {
  for (const Float8Recipe recipe : kRecipes) {
    for (const bool gated : {true, false}) {
      TransformerOptions codes = InFloat8(recipe);
      codes.gated = gated;
      TransformerOptions inputs = codes, again = codes;
      inputs.recompute.mlp = again.recompute.experts = true;
      ExpectSameBits({40, 24}, MakeLayer(codes), MakeLayer(inputs), codes.hidden_size);
      ExpectSameBits({40, 24}, MakeLayer(codes), MakeLayer(again), codes.hidden_size);
    }
  }
}

// A byte, and not four, of what the matrices of an expert read, whose rows are padded to multiples
// of 16; and a few scales.
TEST_F(MoeLayerTest, ForwardKeepsCodesAndNotTheInputsOfExperts) {
  constexpr int64_t kTokens = 64;
  const auto kept = [&](const TransformerOptions& options) {
    LayerHarness harness({40, 24});
    const LayerCalls calls = MakeLayer(options);
    harness.Bind(calls.parameters);
    const ops::HostTensor x =
        ops::HostTensor::Normal({kTokens, options.hidden_size}, DType::kFloat32, 1);
    harness.Forward(calls, x, ops::HostTensor({kTokens, options.hidden_size}, DType::kFloat32));
    return harness.context().saved->Mark();
  };
  for (const Float8Recipe recipe : kRecipes) {
    const TransformerOptions options = InFloat8(recipe);
    TransformerOptions without = options;
    without.float8.enabled = false;
    const int64_t features = options.hidden_size + options.moe.ffn_hidden_size;
    const int64_t saving = 3 * kTokens * options.moe.router.topk * features;
    const int64_t padding = kExperts * 16 * features;
    const int64_t scales = 4 * kExperts * Buffer::kAlignment + (kExperts + 1) * 4 * features;
    EXPECT_LE(kept(options), kept(without) - saving + padding + scales);

    TransformerOptions recomputing = options, inputs = options;
    recomputing.recompute.mlp = inputs.recompute.mlp = true;
    inputs.float8.weight_gradient = false;
    EXPECT_EQ(kept(recomputing), kept(inputs));
    recomputing.recompute.experts = true;
    EXPECT_EQ(kept(recomputing), 0);
  }
}

TEST_F(MoeLayerTest, GradientsWithBiasesAndACutGateAreThoseOfFiniteDifferences) {
  TransformerOptions options = Options();
  options.linear_bias = true;
  options.gate = ops::Activation::kQuickGelu;
  options.gate_limit = 7;
  options.gate_offset = 1;
  ExpectGradients(&harness_, MakeLayer(options), kHidden);
}

// With a vector of zeros the gate is one half for all tokens.
TEST_F(MoeLayerTest, TheGateMultipliesTheSharedExpertsOutput) {
  TransformerOptions options = Options();
  options.moe.shared_ffn_hidden_size = 10;
  options.moe.shared_expert_gate = true;
  const LayerCalls calls = MakeLayer(options);
  harness_.Bind(calls.parameters);
  const auto set_all = [&](const std::string& name, double factor) {
    for (size_t i = 0; i < calls.parameters.size(); ++i) {
      ops::HostTensor& values = harness_.values()[i];
      if (calls.parameters[i]->name != name) continue;
      for (int64_t j = 0; j < values.numel(); ++j) values.Set(j, factor * values.Get(j));
    }
  };
  const ops::HostTensor x = ops::HostTensor::Normal({8, kHidden}, DType::kFloat32, 1);
  const ops::HostTensor y({8, kHidden}, DType::kFloat32);
  const auto forward = [&] {
    harness_.Forward(calls, x, y);
    return y.Values();
  };
  set_all("mlp.shared_experts.gate_weight", 0);
  const std::vector<double> half = forward();
  set_all("mlp.shared_experts.linear_fc2.weight", 2);
  const std::vector<double> whole = forward();
  set_all("mlp.shared_experts.linear_fc2.weight", 0);
  const std::vector<double> none = forward();
  for (size_t i = 0; i < half.size(); ++i) EXPECT_NEAR(half[i], (whole[i] + none[i]) / 2, 1e-5);
  EXPECT_NE(half, none);
}

TEST_F(MoeLayerTest, AnExpertThatNoTokenChoosesChangesNothing) {
  TransformerOptions options = Options();
  options.moe.router.topk = 2;
  const LayerCalls calls = MakeLayer(options);
  harness_.Bind(calls.parameters);
  // The router's row of expert 3 makes it the least wanted by every token of positive values.
  size_t router = 0, fc1 = 0;
  for (size_t i = 0; i < calls.parameters.size(); ++i) {
    if (calls.parameters[i]->name == "mlp.router.weight") router = i;
    if (calls.parameters[i]->name == "mlp.experts.experts.linear_fc1.weight") fc1 = i;
  }
  for (int64_t h = 0; h < kHidden; ++h) harness_.values()[router].Set(3 * kHidden + h, -100);
  ops::HostTensor x = ops::HostTensor::Normal({8, kHidden}, DType::kFloat32, 1);
  for (int64_t i = 0; i < x.numel(); ++i) x.Set(i, 1 + 0.1 * x.Get(i));
  const ops::HostTensor y({8, kHidden}, DType::kFloat32);
  harness_.Forward(calls, x, y);
  const std::vector<double> before = y.Values();
  ops::HostTensor& weights = harness_.values()[fc1];
  const int64_t of_one_expert = weights.numel() / kExperts;
  for (int64_t i = 0; i < of_one_expert; ++i) weights.Set(3 * of_one_expert + i, 9);
  harness_.Forward(calls, x, y);
  EXPECT_EQ(y.Values(), before);
  for (int64_t i = 0; i < of_one_expert; ++i) weights.Set(i, 9);
  harness_.Forward(calls, x, y);
  EXPECT_NE(y.Values(), before);
}

struct Gate {
  std::atomic<int> exchanges_of_rows{0};
  absl::Notification summed;
};

// A communicator, with the groups split from it, in which rows come back from experts only when the
// rank has added something up with others.
class GatedCommunicator : public ForwardingCommunicator {
 public:
  GatedCommunicator(std::shared_ptr<Communicator> communicator, Gate* gate)
      : ForwardingCommunicator(std::move(communicator)), gate_(gate) {}
  void Run(const CollectiveCall& call, const Stream& stream) override {
    if (call.collective == Collective::kAllToAllV && ++gate_->exchanges_of_rows == 2) {
      EXPECT_TRUE(gate_->summed.WaitForNotificationWithTimeout(absl::Seconds(60)))
          << "the layer waited for the rows";
    }
    inner().Run(call, stream);
    if (call.collective == Collective::kAllReduce && !gate_->summed.HasBeenNotified())
      gate_->summed.Notify();
  }

 private:
  std::shared_ptr<Communicator> Wrap(std::shared_ptr<Communicator> part) override {
    return std::make_shared<GatedCommunicator>(std::move(part), gate_);
  }

  Gate* const gate_;
};

// The first sum over the tensor-parallel ranks is that of the shared expert's output.
TEST(SharedExpertTest, ItsSecondMatrixIsMultipliedWhileRowsComeBack) {
  const absl::Status status = RunRanks(2, [](int, const ProcessGroup& world) -> absl::Status {
    Gate gate;
    const ProcessGroup gated(std::make_shared<GatedCommunicator>(world.communicator(), &gate));
    LayerHarness harness({4, 4}, gated);
    TransformerOptions options = Options();
    options.moe.shared_ffn_hidden_size = 10;
    ExpertGroups groups;
    groups.expert = gated;
    MEGATRON_ASSIGN_OR_RETURN(groups.model, WithAsyncCalls(gated, harness.context().stream));
    const auto layer = std::make_shared<MoeLayer>(options, "mlp", /*layer=*/0, gated, groups);
    RouterState state(options.moe, {layer->router_name()}, Device(), nullptr);
    layer->set_state(state.layer(0));
    const LayerCalls calls = CallsOf(layer);
    harness.Bind(calls.parameters);
    const ops::HostTensor y({8, kHidden}, DType::kFloat32);
    harness.Forward(calls, ops::HostTensor::Normal({8, kHidden}, DType::kFloat32, 1), y);
    EXPECT_EQ(gate.exchanges_of_rows, 2);
    return world.status();
  });
  EXPECT_EQ(status, absl::OkStatus());
}

}  // namespace
}  // namespace megatron
