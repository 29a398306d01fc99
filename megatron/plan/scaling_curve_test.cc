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

}  // namespace
}  // namespace megatron
