#include "megatron/layers/moe/router_layer.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/layers/layer_harness.h"
#include "megatron/ops/elementwise.h"

namespace megatron {
namespace {

constexpr int64_t kHidden = 5, kExperts = 4, kTokens = 6;

TransformerOptions Options() {
  TransformerOptions options;
  options.hidden_size = kHidden;
  options.moe.num_experts = kExperts;
  options.moe.router.topk = 2;
  options.moe.balance = BalanceUnit::kNone;
  return options;
}

class RouterLayerTest : public testing::Test {
 protected:
  std::shared_ptr<RouterLayer> MakeRouter(const TransformerOptions& options) {
    const auto router = std::make_shared<RouterLayer>(options, "mlp.router", /*layer=*/0,
                                                      ProcessGroup(), ProcessGroup());
    state_ = RouterState(options.moe, {router->name()}, {}, nullptr);
    router->set_state(state_.layer(0));
    return router;
  }

  LayerHarness harness_{{kTokens}};
  RouterState state_;
};

// The output is the probabilities, by expert rather than by rank of the choice: all are chosen.
LayerCalls ProbabilitiesOf(const std::shared_ptr<RouterLayer>& router) {
  const auto saved = std::make_shared<RouterLayer::Saved>();
  LayerCalls calls;
  calls.forward = [=](const LayerContext& ctx, const Tensor& x, const Tensor& y) {
    router->Forward(ctx, x, saved.get());
    for (int64_t i = 0; i < kTokens * kExperts; ++i) {
      const int64_t expert = saved->chosen_NK.data<int32_t>()[i];
      y.data<float>()[i / kExperts * kExperts + expert] = saved->probability_NK.data<float>()[i];
    }
  };
  calls.backward = [=](const LayerContext& ctx, const Tensor& dy, const Tensor& dx) {
    const ops::HostTensor dprobability({kTokens, kExperts}, DType::kFloat32);
    for (int64_t i = 0; i < kTokens * kExperts; ++i) {
      const int64_t expert = saved->chosen_NK.data<int32_t>()[i];
      dprobability.tensor().data<float>()[i] = dy.data<float>()[i / kExperts * kExperts + expert];
    }
    ops::Zero(ctx.stream, dx);
    router->Backward(ctx, dprobability, dx, *saved);
  };
  calls.parameters = ParametersOf(router.get());
  return calls;
}

TEST_F(RouterLayerTest, GradientsOfProbabilitiesAreThoseOfFiniteDifferences) {
  for (const ops::RouterScore score : {ops::RouterScore::kSoftmax, ops::RouterScore::kSigmoid}) {
    TransformerOptions options = Options();
    options.moe.router.topk = kExperts;
    options.moe.router.score = score;
    LayerHarness harness({kTokens});
    ExpectGradients(&harness, ProbabilitiesOf(MakeRouter(options)), kHidden, kExperts);
  }
}

TEST_F(RouterLayerTest, TheLikeliestExpertsAreChosenWithTheSoftmaxOverTheirLogits) {
  const std::shared_ptr<RouterLayer> router = MakeRouter(Options());
  harness_.Bind(ParametersOf(router.get()));
  const ops::HostTensor x = ops::HostTensor::Normal({kTokens, kHidden}, DType::kFloat32, 1);
  RouterLayer::Saved saved;
  router->Forward(harness_.context(), x, &saved);
  for (int64_t t = 0; t < kTokens; ++t) {
    const float* logits = saved.logits_NE.data<float>() + t * kExperts;
    const int32_t first = saved.chosen_NK.data<int32_t>()[2 * t];
    const int32_t second = saved.chosen_NK.data<int32_t>()[2 * t + 1];
    EXPECT_NE(first, second);
    for (int32_t e = 0; e < kExperts; ++e) {
      EXPECT_LE(logits[e], logits[first]);
      if (e != first) {
        EXPECT_LE(logits[e], logits[second]);
      }
    }
    const float* probability = saved.probability_NK.data<float>() + 2 * t;
    EXPECT_NEAR(probability[0], 1 / (1 + std::exp(logits[second] - logits[first])), 1e-6);
    EXPECT_NEAR(probability[0] + probability[1], 1, 1e-6);
  }
}

// What each loss adds to gradients, it adds beside others too.
TEST_F(RouterLayerTest, SeveralBalanceLossesAddUp) {
  struct Outcome {
    std::vector<double> gradients, losses;
  };
  const auto run = [&](const std::vector<BalanceLoss>& balances) {
    TransformerOptions options = Options();
    options.moe.balance = balances[0].unit;
    options.moe.aux_loss_coeff = balances[0].coeff;
    options.moe.further_balances.assign(balances.begin() + 1, balances.end());
    options.moe.z_loss_coeff = 0.125f;
    LayerHarness harness({3, 3});
    harness.batch().sample_weight = 1;
    const std::shared_ptr<RouterLayer> router = MakeRouter(options);
    harness.Bind(ParametersOf(router.get()));
    state_.StartStep(harness.context().stream);
    const ops::HostTensor x = ops::HostTensor::Normal({kTokens, kHidden}, DType::kFloat32, 1);
    const ops::HostTensor dprobability({kTokens, 2}, DType::kFloat32);
    const ops::HostTensor dx({kTokens, kHidden}, DType::kFloat32);
    RouterLayer::Saved saved;
    router->Forward(harness.context(), x, &saved);
    router->Backward(harness.context(), dprobability, dx, saved);
    const float* const losses = state_.losses_B2().data<float>();
    return Outcome{dx.Values(), std::vector<double>(losses, losses + 2 * balances.size())};
  };
  const BalanceLoss sample = {BalanceUnit::kSample, 0.5f}, step = {BalanceUnit::kStep, 2},
                    batch = {BalanceUnit::kMicroBatch, 4};
  const Outcome none = run({{BalanceUnit::kNone, 0}}), all = run({sample, step, batch});
  std::vector<double> want = none.gradients;
  for (const BalanceLoss& loss : {sample, step, batch}) {
    const Outcome one = run({loss});
    double most = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      want[i] += one.gradients[i] - none.gradients[i];
      most = std::max(most, std::abs(one.gradients[i] - none.gradients[i]));
    }
    EXPECT_GT(most, 1e-3);
  }
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(all.gradients[i], want[i], 1e-6);
  EXPECT_EQ(all.losses, (std::vector<double>{run({sample}).losses[0], none.losses[1],
                                             run({step}).losses[0], 0, run({batch}).losses[0], 0}));
}

TEST_F(RouterLayerTest, BeyondItsCapacityAnExpertTakesNoMoreChoices) {
  TransformerOptions options = Options();
  options.moe.capacity_factor = 0.5;  // 2 of 6 tokens for each expert
  const std::shared_ptr<RouterLayer> router = MakeRouter(options);
  harness_.Bind(ParametersOf(router.get()));
  // All tokens are alike, so that all choose the same two experts.
  ops::HostTensor x({kTokens, kHidden}, DType::kFloat32);
  for (int64_t i = 0; i < x.numel(); ++i) x.Set(i, 1 + i % kHidden);
  RouterLayer::Saved saved;
  router->Forward(harness_.context(), x, &saved);
  std::vector<int> taken(kExperts, 0);
  int dropped = 0;
  for (int64_t i = 0; i < kTokens * 2; ++i) {
    const int32_t expert = saved.expert_NK.data<int32_t>()[i];
    if (expert < 0) {
      ++dropped;
    } else {
      ++taken[expert];
    }
    EXPECT_GE(saved.chosen_NK.data<int32_t>()[i], 0);
  }
  EXPECT_EQ(dropped, 8);
  for (const int count : taken) EXPECT_TRUE(count == 0 || count == 2);
}

}  // namespace
}  // namespace megatron
