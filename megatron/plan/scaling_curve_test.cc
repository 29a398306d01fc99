#include "megatron/plan/scaling_curve.h"

#include "gtest/gtest.h"
#include "megatron/plan/plan_facts.h"

namespace megatron {
namespace {

class ScalingCurveTest : public testing::Test {
 protected:
  ScalingCurve Curve(const char* model, const ScalingOptions& options) {
    PlanLayout layout;
    layout.sequence = 2048;
    Implementation program = **FindImplementation(facts_, "megatron_core");
    program.set_shards_optimizer(true);
    return MakeScalingCurve(**FindHardware(facts_, "H100"), program, MeasuredKernels(),
                            **FindPlanModel(facts_, model), layout, options);
  }

  PlanFacts facts_ = *ParsePlanFacts(BuiltInPlanFacts());
};

TEST_F(ScalingCurveTest, AModelThatFitsNoGpuNeedsMoreThanDataParallelism) {
  ScalingOptions options;
  options.gpus = {8, 1024};
  options.batch = 1024;
  const ScalingCurve curve = Curve("GPT3-175B", options);
  EXPECT_FALSE(curve.hybrid[0].has_value());
  EXPECT_FALSE(curve.data[1].has_value());
  ASSERT_TRUE(curve.hybrid[1].has_value());
  EXPECT_GT(curve.hybrid[1]->layout.tp * curve.hybrid[1]->layout.pp, 8);
  EXPECT_EQ(curve.hybrid[1]->layout.gpus(), 1024);
}

TEST_F(ScalingCurveTest, AFixedBatchEndsDataParallelismAloneAndGrowingOnesKeepTheirSpeed) {
  ScalingOptions options;
  options.gpus = {1, 8, 64, 1024};
  options.batch = 64;
  const ScalingCurve strong = Curve("Llama3-8B", options);
  EXPECT_FALSE(strong.data[3].has_value());  // 64 samples are too few for 1,024 GPUs
  ASSERT_TRUE(strong.hybrid[2].has_value() && strong.data[2].has_value());
  EXPECT_LE(strong.hybrid[2]->seconds, strong.data[2]->seconds);
  options.is_weak = true;
  const ScalingCurve weak = Curve("Llama3-8B", options);
  ASSERT_TRUE(weak.hybrid[1].has_value() && weak.hybrid[3].has_value());
  const double of_gpu = weak.hybrid[1]->tokens_per_second / 8;
  EXPECT_GT(weak.hybrid[3]->tokens_per_second / 1024, 0.7 * of_gpu);
}

TEST_F(ScalingCurveTest, GroupsOfTheMachinesShapeAndCodesSaveWhatTheNetworkTakes) {
  ScalingOptions options;
  options.gpus = {8, 512};
  options.batch = 512;
  const ScalingCurve curve = Curve("Llama3-8B", options);
  for (const auto* points : {&curve.hybrid, &curve.shaped, &curve.coded}) {
    ASSERT_EQ(points->size(), 2);
    ASSERT_TRUE((*points)[0].has_value() && (*points)[1].has_value());
  }
  // Fast links join 8 GPUs: there nothing has a shape, and codes take longer than they save.
  EXPECT_EQ(curve.shaped[0]->seconds, curve.hybrid[0]->seconds);
  EXPECT_FALSE(curve.shaped[0]->layout.data_is_outermost);
  EXPECT_EQ(curve.shaped[0]->layout.ranks_per_host, 0);
  // Each curve has the layouts of the one before.
  EXPECT_LE(curve.shaped[1]->seconds, curve.hybrid[1]->seconds);
  EXPECT_LE(curve.coded[1]->seconds, curve.shaped[1]->seconds);
  EXPECT_EQ(curve.hybrid[1]->layout.compression.form, PlanCompression::kNone);
}

TEST_F(ScalingCurveTest, OnASlowNetworkCodesPay) {
  Hardware slow = **FindHardware(facts_, "H100");
  slow.set_network_gb_per_s(1);
  Implementation program = **FindImplementation(facts_, "megatron_core");
  program.set_shards_optimizer(true);
  ScalingOptions options;
  options.gpus = {64};
  options.batch = 64;
  // A model of one layer has no pipeline, so that nodes have copies of it.
  PlanModel model = **FindPlanModel(facts_, "Llama3-8B");
  model.set_layers(1);
  PlanLayout layout;
  layout.sequence = 2048;
  layout.compression.form = PlanCompression::kCodes;
  const auto of = [&](const PlanLayout& of_config) {
    return MakeScalingCurve(slow, program, MeasuredKernels(), model, of_config, options);
  };
  const ScalingCurve curve = of(layout);
  ASSERT_TRUE(curve.shaped[0].has_value() && curve.coded[0].has_value());
  EXPECT_EQ(curve.coded[0]->layout.compression.form, PlanCompression::kCodes);
  EXPECT_LT(curve.coded[0]->seconds, 0.95 * curve.shaped[0]->seconds);
  // The configuration's own codes are passed over by the other curves.
  EXPECT_EQ(curve.shaped[0]->layout.compression.form, PlanCompression::kNone);
  // Sums of gradients that are shared out aren't coded.
  layout.shards_parameters = true;
  EXPECT_FALSE(of(layout).coded[0].has_value());
}

}  // namespace
}  // namespace megatron
