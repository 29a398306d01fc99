#include "megatron/layers/moe/moe_layer.h"

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
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

// A layer with the state of its router, which must live as long as the layer is called.
struct RoutedLayer {
  RoutedLayer(const TransformerOptions& options, const ProcessGroup& tensor_group,
              const ExpertGroups& groups)
      : layer(std::make_shared<MoeLayer>(options, "mlp", /*layer=*/0, tensor_group, groups)),
        state(options.moe, {layer->router_name()}, Device(), nullptr) {
    layer->set_state(state.layer(0));
  }
  LayerCalls calls() const { return CallsOf(layer); }

  const std::shared_ptr<MoeLayer> layer;
  RouterState state;
};

class MoeLayerTest : public testing::Test {
 protected:
  LayerCalls MakeLayer(const TransformerOptions& options) {
    layers_.push_back(
        std::make_unique<RoutedLayer>(options, harness_.tensor_group(), ExpertGroups{}));
    return layers_.back()->calls();
  }

  LayerHarness harness_{{4, 4}};
  std::vector<std::unique_ptr<RoutedLayer>> layers_;
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
  // How often the rank must have added something up with others before an exchange of rows begins,
  // by the exchange's number, from 1.
  const std::map<int, int> sums_before;
  absl::Mutex mutex;
  int exchanges = 0, sums = 0;
};

// A communicator, with the groups split from it, whose exchanges of rows wait at a gate.
class GatedCommunicator : public ForwardingCommunicator {
 public:
  GatedCommunicator(std::shared_ptr<Communicator> communicator, Gate* gate)
      : ForwardingCommunicator(std::move(communicator)), gate_(gate) {}
  void Run(const CollectiveCall& call, const Stream& stream) override {
    if (call.collective == Collective::kAllToAllV) {
      const absl::MutexLock lock(&gate_->mutex);
      const auto found = gate_->sums_before.find(++gate_->exchanges);
      const int wanted = found == gate_->sums_before.end() ? 0 : found->second;
      const auto added_up = [&] { return gate_->sums >= wanted; };
      EXPECT_TRUE(gate_->mutex.AwaitWithTimeout(absl::Condition(&added_up), absl::Seconds(60)))
          << "the layer waited for the rows of exchange " << gate_->exchanges;
    }
    inner().Run(call, stream);
    if (call.collective != Collective::kAllReduce) return;
    const absl::MutexLock lock(&gate_->mutex);
    ++gate_->sums;
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
    Gate gate = {{{2, 1}}};
    const ProcessGroup gated(std::make_shared<GatedCommunicator>(world.communicator(), &gate));
    LayerHarness harness({4, 4}, gated);
    TransformerOptions options = Options();
    options.moe.shared_ffn_hidden_size = 10;
    ExpertGroups groups;
    groups.expert = gated;
    MEGATRON_ASSIGN_OR_RETURN(groups.model, WithAsyncCalls(gated, harness.context().stream));
    const RoutedLayer layer(options, gated, groups);
    const LayerCalls calls = layer.calls();
    harness.Bind(calls.parameters);
    const ops::HostTensor y({8, kHidden}, DType::kFloat32);
    harness.Forward(calls, ops::HostTensor::Normal({8, kHidden}, DType::kFloat32, 1), y);
    EXPECT_EQ(gate.exchanges, 2);
    return world.status();
  });
  EXPECT_EQ(status, absl::OkStatus());
}

// Two ranks have parts of each expert, in FP8. They find largest magnitudes together: of both
// operands of an expert's two products in forward, and of the gradient of one in backward.
TEST(DispatchInPartsTest, HalfOfTheExpertsComputeWhileTheOthersRowsTravel) {
  const absl::Status status = RunRanks(2, [](int, const ProcessGroup& world) -> absl::Status {
    constexpr int kOfHalf = 2 * kExperts / 2, kInForward = 2 * kOfHalf, kOfHalfInBackward = 2;
    Gate gate = {{{2, kOfHalf},
                  {3, kInForward},
                  {6, kInForward + kOfHalfInBackward},
                  {7, kInForward + 2 * kOfHalfInBackward}}};
    const ProcessGroup gated(std::make_shared<GatedCommunicator>(world.communicator(), &gate));
    LayerHarness harness({4, 4});
    TransformerOptions options = InFloat8(Float8Recipe::kTensorwise);
    options.moe.ffn_hidden_size = 64;
    options.moe.dispatch_in_parts = true;
    ExpertGroups groups;
    groups.tensor = gated;
    MEGATRON_ASSIGN_OR_RETURN(groups.model, WithAsyncCalls(gated, harness.context().stream));
    const RoutedLayer layer(options, ProcessGroup(), groups);
    const LayerCalls calls = layer.calls();
    harness.Bind(calls.parameters);
    harness.Run(calls, ops::HostTensor::Normal({8, options.hidden_size}, DType::kFloat32, 1),
                ops::HostTensor::Normal({8, options.hidden_size}, DType::kFloat32, 2));
    EXPECT_EQ(gate.exchanges, 8);
    EXPECT_EQ(gate.sums, kInForward + 2 * kOfHalfInBackward);
    return world.status();
  });
  EXPECT_EQ(status, absl::OkStatus());
}

// Ranks with samples of their own that share a layer's experts.
struct Sharing {
  int ranks = 2;
  int copies = 1;  // ranks with parts of the same experts
  // The half of each rank's experts that no token chooses, if it is not negative.
  int64_t idle_half = -1;
  bool deferred = false;
};

absl::StatusOr<ExpertGroups> GroupsOf(const ProcessGroup& model, int copies) {
  std::vector<std::vector<int>> same(model.size() / copies), different(copies);
  for (int rank = 0; rank < model.size(); ++rank) {
    same[rank / copies].push_back(rank);
    different[rank % copies].push_back(rank);
  }
  ExpertGroups groups;
  groups.model = model;
  MEGATRON_ASSIGN_OR_RETURN(std::shared_ptr<Communicator> tensor,
                            model.communicator()->Split(same, "etp"));
  groups.tensor = ProcessGroup(std::move(tensor));
  MEGATRON_ASSIGN_OR_RETURN(std::shared_ptr<Communicator> expert,
                            model.communicator()->Split(different, "ep"));
  groups.expert = ProcessGroup(std::move(expert));
  return groups;
}

absl::StatusOr<LayerHarness::Results> Train(const TransformerOptions& options, const Sharing& how,
                                            const ProcessGroup& world) {
  const int64_t hidden = options.hidden_size, experts = options.moe.num_experts;
  LayerHarness harness({4, 4});
  MEGATRON_ASSIGN_OR_RETURN(const ProcessGroup model,
                            WithAsyncCalls(world, harness.context().stream));
  MEGATRON_ASSIGN_OR_RETURN(const ExpertGroups groups, GroupsOf(model, how.copies));
  const RoutedLayer layer(options, ProcessGroup(), groups);
  const LayerCalls calls = layer.calls();
  harness.Bind(calls.parameters);
  const int64_t local = experts / groups.expert.size();
  for (size_t i = 0; i < calls.parameters.size(); ++i) {
    if (calls.parameters[i]->name != "mlp.router.weight") continue;
    for (int64_t e = 0; e < experts; ++e) {
      if (e % local * 2 / local != how.idle_half) continue;
      // Tokens of positive values do not want it.
      for (int64_t h = 0; h < hidden; ++h) harness.values()[i].Set(e * hidden + h, -100);
    }
  }
  const uint32_t seed = 10 + 2 * world.rank();
  ops::HostTensor x = ops::HostTensor::Normal({8, hidden}, DType::kFloat32, seed);
  for (int64_t i = 0; i < x.numel(); ++i) x.Set(i, 1 + 0.2 * x.Get(i));
  return harness.Run(calls, x, ops::HostTensor::Normal({8, hidden}, DType::kFloat32, seed + 1),
                     how.deferred);
}

void ExpectNoBitToChangeInParts(TransformerOptions options, const Sharing& how) {
  SCOPED_TRACE(testing::Message() << how.ranks << " ranks, " << how.copies << " copies, idle "
                                  << how.idle_half << ", top " << options.moe.router.topk);
  const absl::Status status =
      RunRanks(how.ranks, [&](int, const ProcessGroup& world) -> absl::Status {
        TransformerOptions in_parts = options;
        in_parts.moe.dispatch_in_parts = true;
        MEGATRON_ASSIGN_OR_RETURN(const LayerHarness::Results want, Train(options, how, world));
        MEGATRON_ASSIGN_OR_RETURN(const LayerHarness::Results got, Train(in_parts, how, world));
        EXPECT_EQ(got.y, want.y);
        EXPECT_EQ(got.dx, want.dx);
        EXPECT_EQ(got.gradients, want.gradients);
        return world.status();
      });
  EXPECT_EQ(status, absl::OkStatus());
}

TransformerOptions OfEightExperts(TransformerOptions options, int topk = 2) {
  options.moe.num_experts = 8;
  options.moe.router.topk = topk;
  options.moe.router.pre_softmax = true;
  return options;
}

TEST(DispatchInPartsTest, ChangesNoBit) {
  for (const int ranks : {2, 4}) {
    for (const int copies : {1, 2}) {
      for (const int topk : {1, 2, 8}) {
        for (const int64_t idle_half : {-1, 0, 1}) {
          if (topk == 8 && idle_half >= 0) continue;  // all are chosen
          ExpectNoBitToChangeInParts(OfEightExperts(Options(), topk), {ranks, copies, idle_half});
        }
      }
    }
  }
}

TEST(DispatchInPartsTest, ChangesNoBitWithOtherOptions) {
  const TransformerOptions options = OfEightExperts(Options());
  TransformerOptions recomputing = options, all_again = options, biases = options, odd = options,
                     padded = options;
  recomputing.recompute.mlp = true;
  all_again.recompute.experts = true;
  biases.linear_bias = true;
  biases.gated = false;
  odd.moe.num_experts = 6;
  padded.moe.capacity_factor = 1;
  padded.moe.pad_to_capacity = true;
  Sharing deferred;
  deferred.deferred = true;
  for (const TransformerOptions& other : {options, recomputing, all_again, biases, odd, padded}) {
    ExpectNoBitToChangeInParts(other, Sharing());
    ExpectNoBitToChangeInParts(other, deferred);
  }
}

TEST(DispatchInPartsTest, ChangesNoBitInFloat8) {
  for (const Float8Recipe recipe : kRecipes) {
    TransformerOptions codes = OfEightExperts(InFloat8(recipe)), inputs = codes, again = codes;
    inputs.recompute.mlp = true;
    again.recompute.experts = true;
    for (const TransformerOptions& options : {codes, inputs, again}) {
      ExpectNoBitToChangeInParts(options, Sharing());
      ExpectNoBitToChangeInParts(options, {4, /*copies=*/1, /*idle_half=*/1});
    }
  }
}

}  // namespace
}  // namespace megatron
