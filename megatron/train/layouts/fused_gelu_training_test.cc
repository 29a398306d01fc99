// Models whose products compute the GELU beside them train as on the CPU. The kernels' own code
// runs, on the CPU, and a model of cuBLASLt's products.
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/models/model_harness.h"
#include "megatron/ops/cuda/gemm/emulated_product.h"
#include "megatron/ops/cuda/gemm/gemm_planner.h"
#include "megatron/train/layouts/layout_harness.h"

namespace megatron {
namespace {

using ops::cuda::FuseGelu;

class FusedGeluTrainingTest : public testing::Test {
 protected:
  ~FusedGeluTrainingTest() override {
    Fuse(FuseGelu::kNone);
    ops::cuda::RefuseEmulatedEpilogues(false);
  }

  static void Fuse(FuseGelu fuse) {
    ops::cuda::GemmPlanning planning;
    planning.fuse_gelu = fuse;
    ops::cuda::ProcessGemmPlanner().Use(planning);
  }

  static ModelOptions Gpt2InBf16() {
    ModelOptions model = SmallGpt2();
    model.transformer.dtype = DType::kBFloat16;
    return model;
  }

  // Kernels on the CPU are slow, so there are few steps.
  static LayoutOutcome Train(const ModelOptions& model, DeviceType device, int steps,
                             const Layout& layout = {}) {
    LayoutRun how;
    how.steps = steps;
    how.device = device;
    how.layout = layout;
    return TrainOnLayout(TinyRun(model, OptimizerOptions::kAdamW), how, CountingSource());
  }

  static void ExpectNear(const LayoutOutcome& got, const LayoutOutcome& want, double tolerance) {
    for (size_t i = 0; i < want.losses.size(); ++i) {
      EXPECT_NEAR(got.losses[i], want.losses[i], tolerance * want.losses[i]) << i;
      EXPECT_NEAR(got.norms[i], want.norms[i], 20 * tolerance * want.norms[i]) << i;
    }
  }
};

TEST_F(FusedGeluTrainingTest, TheCurveIsTheCpus) {
  const LayoutOutcome cpu = Train(Gpt2InBf16(), DeviceType::kCpu, 3);
  for (const FuseGelu fuse : {FuseGelu::kBackward, FuseGelu::kBoth}) {
    Fuse(fuse);
    ExpectNear(Train(Gpt2InBf16(), DeviceType::kCuda, 3), cpu, 1e-3);
  }
}

TEST_F(FusedGeluTrainingTest, TensorParallelRanksTrainTheCpusCurve) {
  Layout two;
  two.tensor = 2;
  two.sequence_parallel = true;
  const LayoutOutcome cpu = Train(SmallGpt2(), DeviceType::kCpu, 2);
  Fuse(FuseGelu::kBoth);
  ExpectNear(Train(SmallGpt2(), DeviceType::kCuda, 2, two), cpu, 1e-4);
}

TEST_F(FusedGeluTrainingTest, OnlyBothChangesTheFirstLoss) {
  const LayoutOutcome alone = Train(Gpt2InBf16(), DeviceType::kCuda, 1);
  Fuse(FuseGelu::kBackward);
  const LayoutOutcome backward = Train(Gpt2InBf16(), DeviceType::kCuda, 1);
  Fuse(FuseGelu::kBoth);
  const LayoutOutcome both = Train(Gpt2InBf16(), DeviceType::kCuda, 1);
  EXPECT_EQ(backward.losses[0], alone.losses[0]);
  EXPECT_NE(backward.norms[0], alone.norms[0]);
  EXPECT_NE(both.losses[0], alone.losses[0]);
}

// cuBLASLt may lack a kernel for any product, so that no choice of what products compute beside may
// end a run.
TEST_F(FusedGeluTrainingTest, WithoutKernelsForThatItIsTheTrainingWithoutIt) {
  const LayoutOutcome without = Train(Gpt2InBf16(), DeviceType::kCuda, 2);
  ops::cuda::RefuseEmulatedEpilogues(true);
  for (const FuseGelu fuse : {FuseGelu::kBackward, FuseGelu::kBoth}) {
    ops::cuda::GemmPlanning planning;
    planning.fuse_gelu = fuse;
    planning.fuse_bias_gradients = true;
    ops::cuda::ProcessGemmPlanner().Use(planning);
    const int64_t before = ops::cuda::RefusedEmulatedProducts();
    EXPECT_TRUE(Train(Gpt2InBf16(), DeviceType::kCuda, 2).state == without.state);
    EXPECT_GT(ops::cuda::RefusedEmulatedProducts(), before);
  }
}

TEST_F(FusedGeluTrainingTest, RecomputedActivationsAreTheSameBits) {
  Fuse(FuseGelu::kBoth);
  ModelOptions model = Gpt2InBf16();
  const LayoutOutcome kept = Train(model, DeviceType::kCuda, 1);
  model.transformer.recompute.mlp = true;
  EXPECT_TRUE(Train(model, DeviceType::kCuda, 1).state == kept.state);
  model.transformer.recompute.mlp = false;
  model.layer_recompute = {LayerRecompute::kUniform, 1};
  EXPECT_TRUE(Train(model, DeviceType::kCuda, 1).state == kept.state);
}

}  // namespace
}  // namespace megatron
