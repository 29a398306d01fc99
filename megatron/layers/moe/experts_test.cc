#include "megatron/layers/moe/experts.h"

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/layers/layer_harness.h"

namespace megatron {
namespace {

constexpr int64_t kHidden = 8, kFfn = 6, kExperts = 4, kRows = 7;

// Expert 0 has two groups, as where two ranks sent rows for it, and expert 3 has none.
const std::vector<ops::RowGroup> kGroups = {{0, 0, 2}, {1, 2, 3}, {2, 3, 5}, {0, 5, 7}};

TransformerOptions Options(bool gated) {
  TransformerOptions options;
  options.hidden_size = kHidden;
  options.gated = gated;
  options.moe.num_experts = kExperts;
  options.moe.ffn_hidden_size = kFfn;
  return options;
}

LayerCalls MakeExperts(const TransformerOptions& options) {
  const auto experts = std::make_shared<Experts>(options, "experts", ExpertGroups{});
  const auto saved = std::make_shared<Experts::Saved>();
  LayerCalls calls;
  calls.forward = [experts, saved](const LayerContext& ctx, const Tensor& x, const Tensor& y) {
    *saved = {};
    experts->Forward(ctx, kGroups, x, y, saved.get());
  };
  calls.backward = [experts, saved](const LayerContext& ctx, const Tensor& dy, const Tensor& dx) {
    Arena::Scope scope(ctx.scratch);
    experts->Backward(ctx, kGroups, dy, dx, saved.get());
    if (!ctx.defers()) experts->BackwardWeight(ctx, kGroups, *saved);
  };
  calls.backward_weight = [experts, saved](const LayerContext& ctx) {
    experts->BackwardWeight(ctx, kGroups, *saved);
  };
  calls.parameters = ParametersOf(experts.get());
  return calls;
}

TEST(ExpertsTest, GradientsAreThoseOfFiniteDifferences) {
  for (const bool gated : {false, true}) {
    SCOPED_TRACE(gated);
    LayerHarness harness({kRows});
    ExpectGradients(&harness, MakeExperts(Options(gated)), kHidden);
  }
}

TEST(ExpertsTest, RecomputationChangesNoBit) {
  for (const bool gated : {false, true}) {
    TransformerOptions recomputing = Options(gated);
    recomputing.recompute.mlp = true;
    ExpectSameBits({kRows}, MakeExperts(Options(gated)), MakeExperts(recomputing), kHidden);
  }
}

TEST(ExpertsTest, ARowIsThatOfItsExpertWhereverItStands) {
  LayerHarness harness({kRows});
  const LayerCalls calls = MakeExperts(Options(/*gated=*/true));
  harness.Bind(calls.parameters);
  // Rows 0 and 5 are of expert 0, row 2 is of expert 1.
  ops::HostTensor x = ops::HostTensor::Normal({kRows, kHidden}, DType::kFloat32, 1);
  for (int64_t h = 0; h < kHidden; ++h) {
    x.Set(2 * kHidden + h, x.Get(h));
    x.Set(5 * kHidden + h, x.Get(h));
  }
  const ops::HostTensor y({kRows, kHidden}, DType::kFloat32);
  harness.Forward(calls, x, y);
  const std::vector<double> values = y.Values();
  const auto row = [&](int64_t r) {
    return std::vector<double>(values.begin() + r * kHidden, values.begin() + (r + 1) * kHidden);
  };
  EXPECT_EQ(row(0), row(5));
  EXPECT_NE(row(0), row(2));
}

TEST(ExpertsTest, WeightsAreTensorsOfAllExperts) {
  Experts experts(Options(/*gated=*/true), "experts", ExpertGroups{});
  const std::vector<Parameter*> parameters = ParametersOf(&experts);
  ASSERT_EQ(parameters.size(), 4u);
  EXPECT_EQ(parameters[0]->name, "experts.linear_fc1.weight");
  EXPECT_EQ(parameters[0]->sharding.global_shape, (Shape{kExperts, 2, kFfn, kHidden}));
  EXPECT_EQ(parameters[1]->name, "experts.linear_fc2.weight");
  EXPECT_EQ(parameters[1]->sharding.global_shape, (Shape{kExperts, kHidden, kFfn}));
  EXPECT_EQ(parameters[2]->name, "experts.linear_fc1.bias");
  EXPECT_EQ(parameters[2]->sharding.global_shape, (Shape{kExperts, 2, kFfn}));
  EXPECT_EQ(parameters[3]->name, "experts.linear_fc2.bias");
  EXPECT_EQ(parameters[3]->sharding.global_shape, (Shape{kExperts, kHidden}));
  for (const Parameter* parameter : parameters) {
    EXPECT_TRUE(parameter->sharding.expert_grid);
    // Ranks that share an expert have the last bias whole.
    EXPECT_EQ(parameter->sharding.sharded, parameter == parameters[3]
                                               ? AxisSet{Axis::kExpert}
                                               : (AxisSet{Axis::kExpert, Axis::kTensor}));
  }
}

}  // namespace
}  // namespace megatron
