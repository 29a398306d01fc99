// What a run places on a device, tested where there is none: on the emulated one host code that
// touches device memory dies, and results are the CPU's bit for bit. On a real device they agree as
// far as kernels do.
#include <cstdlib>
#include <string>

#include "gtest/gtest.h"
#include "megatron/models/gpt_harness.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/emulated_cuda.h"
#include "megatron/train/layouts/layout_harness.h"

namespace megatron {
namespace {

constexpr int kSteps = 4;

bool Emulated() { return CudaFacts(0).name == kEmulatedDeviceName; }

class CudaPlacementTest : public testing::Test {
 protected:
  void SetUp() override {
    if (CudaDeviceCount() > 0) return;
    if (std::getenv("MEGATRON_REQUIRE_GPU") != nullptr) GTEST_FAIL() << "there is no GPU";
    GTEST_SKIP() << "there is no GPU";
  }

  LayoutOutcome Run(const TrainerOptions& options, LayoutRun how, DeviceType device) {
    how.device = device;
    how.evaluate = true;
    return TrainOnLayout(options, how, source_);
  }

  // Equal on the emulated device, else within a multiple of the tolerance of kernels in fp32.
  static void ExpectSame(double got, double want, double multiple) {
    const double tolerance = Emulated() ? 0 : multiple * 1e-4;
    EXPECT_NEAR(got, want, tolerance * want);
  }

  void ExpectSameOnBoth(const TrainerOptions& options, const LayoutRun& how) {
    SCOPED_TRACE(ToString(how.layout));
    const LayoutOutcome cpu = Run(options, how, DeviceType::kCpu);
    const LayoutOutcome cuda = Run(options, how, DeviceType::kCuda);
    for (int i = 0; i < how.steps; ++i) {
      ExpectSame(cuda.losses[i], cpu.losses[i], 1);
      ExpectSame(cuda.norms[i], cpu.norms[i], 20);
    }
    ExpectSame(cuda.evaluation, cpu.evaluation, 1);
    if (Emulated()) {
      EXPECT_TRUE(cuda.state == cpu.state);
    }
  }

  CountingSource source_;
};

LayoutRun Alone() {
  LayoutRun run;
  run.steps = kSteps;
  return run;
}

TEST_F(CudaPlacementTest, OneRankTrainsAsOnTheCpu) {
  for (const ModelOptions& model : {SmallGpt2(), SmallLlama()}) {
    ExpectSameOnBoth(TinyRun(model, OptimizerOptions::kAdamW), Alone());
  }
}

TEST_F(CudaPlacementTest, MasterWeightsAndMomentumTrainAsOnTheCpu) {
  TrainerOptions options = TinyRun(SmallGpt2(), OptimizerOptions::kSgd);
  options.model.transformer.dtype = DType::kBFloat16;
  options.log_params_norm = options.log_num_zeros_in_grad = true;
  ExpectSameOnBoth(options, Alone());
}

TEST_F(CudaPlacementTest, EightRanksThatShareOneDeviceTrainAsOnTheCpu) {
  LayoutRun run = Alone();
  run.layout.tensor = run.layout.pipeline = run.layout.data = 2;
  run.layout.sequence_parallel = true;
  run.layout.sharding = DataSharding::kWeights;
  ExpectSameOnBoth(TinyRun(SmallLlama(), OptimizerOptions::kAdamW), run);
}

TEST_F(CudaPlacementTest, ACheckpointMovesBetweenDevices) {
  const TrainerOptions options = TinyRun(SmallGpt2(), OptimizerOptions::kAdamW);
  const LayoutOutcome whole = Run(options, Alone(), DeviceType::kCpu);
  for (const DeviceType first : {DeviceType::kCpu, DeviceType::kCuda}) {
    LayoutRun start = Alone(), rest = Alone();
    start.save = rest.load =
        testing::TempDir() + "/moves" + std::to_string(static_cast<int>(first));
    start.steps = 1;
    rest.steps = kSteps - 1;
    Run(options, start, first);
    const LayoutOutcome outcome =
        Run(options, rest, first == DeviceType::kCpu ? DeviceType::kCuda : DeviceType::kCpu);
    for (int i = 0; i < rest.steps; ++i) ExpectSame(outcome.losses[i], whole.losses[i + 1], 1);
    if (Emulated()) {
      EXPECT_TRUE(outcome.state == whole.state);
    }
  }
}

}  // namespace
}  // namespace megatron
