#include "megatron/layers/moe/experts.h"

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/layers/layer_harness.h"
#include "megatron/layers/moe/expert_part.h"
#include "megatron/ops/moe/grouped_linear.h"

namespace megatron {
namespace {

constexpr int64_t kHidden = 8, kFfn = 6, kExperts = 4, kRows = 7;

// Expert 0 has two groups, as where two ranks sent rows for it, and expert 3 has none.
const std::vector<ops::RowGroup> kGroups = {{0, 0, 2}, {1, 2, 3}, {2, 3, 5}, {0, 5, 7}};
const std::vector<ExpertPart> kWhole = {{ExpertRange(), 0, kRows, kGroups}};

// The rows of the first two experts, and then those of the others.
const std::vector<ops::RowGroup> kGroupsInParts = {{0, 0, 2}, {1, 2, 3}, {0, 3, 5}, {2, 5, 7}};
const std::vector<ExpertPart> kParts = {{{0, 2}, 0, 5, {{0, 0, 2}, {1, 2, 3}, {0, 3, 5}}},
                                        {{2, 4}, 5, 7, {{2, 0, 2}}}};

TransformerOptions Options(bool gated) {
  TransformerOptions options;
  options.hidden_size = kHidden;
  options.gated = gated;
  options.moe.num_experts = kExperts;
  options.moe.ffn_hidden_size = kFfn;
  return options;
}

LayerCalls MakeExperts(const TransformerOptions& options,
                       const std::vector<ops::RowGroup>& groups = kGroups,
                       const std::vector<ExpertPart>& parts = kWhole) {
  const auto experts = std::make_shared<Experts>(options, "experts", ExpertGroups{});
  const auto saved = std::make_shared<Experts::Saved>();
  LayerCalls calls;
  calls.forward = [=](const LayerContext& ctx, const Tensor& x, const Tensor& y) {
    *saved = {};
    experts->BeginForward(ctx, x, saved.get());
    for (const ExpertPart& part : parts) experts->Forward(ctx, part, x, y, saved.get());
  };
  calls.backward = [=](const LayerContext& ctx, const Tensor& dy, const Tensor& dx) {
    Arena::Scope scope(ctx.scratch);
    experts->BeginBackward(ctx, parts, dy, saved.get());
    for (const ExpertPart& part : parts) experts->Backward(ctx, part, dx, saved.get());
    if (!ctx.defers()) experts->BackwardWeight(ctx, groups, *saved);
  };
  calls.backward_weight = [=](const LayerContext& ctx) {
    experts->BackwardWeight(ctx, groups, *saved);
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

// In FP8, too, where each expert has scales and codes of its own.
TEST(ExpertsTest, PartsOneAfterTheOtherHaveTheBitsOfAllAtOnce) {
  const std::vector<ExpertPart> at_once = {{ExpertRange(), 0, kRows, kGroupsInParts}};
  for (const bool recompute : {false, true}) {
    for (const bool float8 : {false, true}) {
      SCOPED_TRACE(testing::Message() << recompute << " " << float8);
      TransformerOptions options = Options(/*gated=*/true);
      options.recompute.mlp = recompute;
      options.float8.enabled = float8;
      if (float8) {
        options.hidden_size = 32;
        options.moe.ffn_hidden_size = 48;
      }
      ExpectSameBits({kRows}, MakeExperts(options, kGroupsInParts, at_once),
                     MakeExperts(options, kGroupsInParts, kParts), options.hidden_size);
    }
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
