// Trains with updates that come one step late: on the emulated device, whose processor makes them
// beside the next step or behind its passes, and on the CPU, with the same bits.
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "megatron/models/model_harness.h"
#include "megatron/optim/loss_scaler.h"
#include "megatron/train/layouts/layout_harness.h"

namespace megatron {
namespace {

constexpr int kSteps = 5;

class DelayedUpdateLayoutTest : public testing::Test {
 protected:
  static TrainerOptions With(DType dtype, OptimizerOptions::Kind kind = OptimizerOptions::kAdamW) {
    TrainerOptions options = TinyRun(SmallGpt2(), kind);
    options.model.transformer.dtype = dtype;
    options.clip_grad = 0.1;
    return options;
  }

  static TrainerOptions Late(TrainerOptions options, int64_t prompt_updates) {
    options.optimizer.delayed_gradients = options.main_grads_dtype;
    options.prompt_updates = prompt_updates;
    return options;
  }

  LayoutOutcome Train(TrainerOptions options, DeviceType device, const LayoutRun& how) {
    LayoutRun run = how;
    run.device = device;
    if (run.steps == 0) run.steps = kSteps;
    options.host_fraction = device == DeviceType::kCuda ? 1 : 0;
    return TrainOnLayout(options, run, source_);
  }

  static void ExpectSame(const LayoutOutcome& a, const LayoutOutcome& b) {
    EXPECT_EQ(a.losses, b.losses);
    EXPECT_EQ(a.norms, b.norms);
    EXPECT_EQ(a.evaluation, b.evaluation);
    EXPECT_EQ(a.state, b.state);
  }

  // Expects the same bits on both devices, and others than those of updates in their own steps.
  void ExpectSameBits(const TrainerOptions& options, const LayoutRun& how = {}) {
    const TrainerOptions late = Late(options, /*prompt_updates=*/1);
    const LayoutOutcome cpu = Train(late, DeviceType::kCpu, how);
    LayoutRun behind = how;
    behind.update_ahead = false;
    ExpectSame(Train(late, DeviceType::kCuda, how), cpu);
    ExpectSame(Train(late, DeviceType::kCuda, behind), cpu);
    const LayoutOutcome prompt = Train(options, DeviceType::kCpu, how);
    // The first update is in its own step, and the second one comes behind the third step's passes.
    for (const size_t step : {0, 1}) EXPECT_EQ(cpu.losses[step], prompt.losses[step]);
    EXPECT_NE(cpu.losses[2], prompt.losses[2]);
    EXPECT_NE(cpu.losses[3], prompt.losses[3]);
  }

  CountingSource source_;
};

TEST_F(DelayedUpdateLayoutTest, EveryOptimizerAndDtypeHasTheSameBits) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const auto kind :
         {OptimizerOptions::kAdamW, OptimizerOptions::kSgd, OptimizerOptions::kLion}) {
      SCOPED_TRACE(absl::StrCat(SizeOf(dtype), " bytes, optimizer ", kind));
      ExpectSameBits(With(dtype, kind));
    }
  }
}

TEST_F(DelayedUpdateLayoutTest, RemaindersAndGradientsInFewerBitsHaveTheSameBits) {
  TrainerOptions options = With(DType::kBFloat16);
  options.optimizer.store_param_remainders = true;
  ExpectSameBits(options);
  options.main_grads_dtype = DType::kBFloat16;
  ExpectSameBits(options);
}

TEST_F(DelayedUpdateLayoutTest, EveryShardingHasTheSameBits) {
  for (const DataSharding sharding : {DataSharding::kNone, DataSharding::kStates,
                                      DataSharding::kGradients, DataSharding::kWeights}) {
    for (const bool overlap : {false, true}) {
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        LayoutRun how;
        how.layout.data = 2;
        how.layout.sharding = sharding;
        how.layout.overlap = overlap;
        how.evaluate = true;
        SCOPED_TRACE(absl::StrCat(ToString(how.layout), ", ", SizeOf(dtype), " bytes"));
        ExpectSameBits(With(dtype), how);
      }
    }
  }
}

TEST_F(DelayedUpdateLayoutTest, TensorAndPipelineRanksHaveTheSameBits) {
  LayoutRun how;
  how.layout.tensor = how.layout.pipeline = 2;
  ExpectSameBits(With(DType::kBFloat16), how);
}

TEST_F(DelayedUpdateLayoutTest, FirstUpdatesAreThoseOfOtherRuns) {
  const TrainerOptions options = With(DType::kBFloat16);
  const LayoutOutcome prompt = Train(options, DeviceType::kCpu, {});
  for (const DeviceType device : {DeviceType::kCpu, DeviceType::kCuda})
    ExpectSame(Train(Late(options, kSteps), device, {}), prompt);
}

// The scale falls until gradients no longer overflow, and grows again.
TEST_F(DelayedUpdateLayoutTest, SkippedStepsHaveTheSameBits) {
  DynamicLossScaleOptions scale;
  scale.initial_scale = 1 << 20;
  scale.window = 3;
  scale.hysteresis = 1;
  const absl::StatusOr<LossScaler> scaler = LossScaler::CreateDynamic(scale);
  ASSERT_TRUE(scaler.ok());
  LayoutRun how;
  how.scaler = &*scaler;
  how.steps = 24;
  const TrainerOptions late = Late(With(DType::kFloat16), /*prompt_updates=*/1);
  const LayoutOutcome cpu = Train(late, DeviceType::kCpu, how);
  int skipped = 0;
  for (const double norm : cpu.norms) skipped += std::isinf(norm) ? 1 : 0;
  EXPECT_GT(skipped, 0);
  EXPECT_LT(skipped, how.steps - 4);
  ExpectSame(Train(late, DeviceType::kCuda, how), cpu);
}

TEST_F(DelayedUpdateLayoutTest, APendingUpdateContinuesOnEitherDevice) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const TrainerOptions late = Late(With(dtype), /*prompt_updates=*/1);
    LayoutRun whole;
    whole.steps = 5;
    const LayoutOutcome expected = Train(late, DeviceType::kCpu, whole);
    for (const DeviceType saving : {DeviceType::kCpu, DeviceType::kCuda}) {
      LayoutRun first;
      first.steps = 3;
      first.save = absl::StrCat(testing::TempDir(), "/delayed_", SizeOf(dtype), "_",
                                static_cast<int>(saving));
      const LayoutOutcome saved = Train(late, saving, first);
      int kept = 0;
      for (const auto& [name, tensor] : saved.state)
        kept += absl::StartsWith(name, "optimizer.state.delayed_gradient.") ? 1 : 0;
      EXPECT_GT(kept, 0);
      for (const DeviceType loading : {DeviceType::kCpu, DeviceType::kCuda}) {
        LayoutRun rest;
        rest.steps = 2;
        rest.load = first.save;
        const LayoutOutcome outcome = Train(late, loading, rest);
        EXPECT_EQ(outcome.state, expected.state);
        EXPECT_EQ(outcome.losses,
                  std::vector<double>(expected.losses.begin() + 3, expected.losses.end()));
      }
    }
  }
}

TEST_F(DelayedUpdateLayoutTest, CheckpointsMoveBetweenLayouts) {
  Layout replicas, sharded, cut;
  replicas.data = sharded.data = 2;
  sharded.sharding = DataSharding::kWeights;
  cut.tensor = cut.pipeline = 2;
  ExpectThatCheckpointsMove(Late(With(DType::kBFloat16), /*prompt_updates=*/1), /*steps=*/4,
                            {replicas, sharded, cut});
}

// What a run without late updates has saved begins without a pending one, and a late run that makes
// its updates in their steps again leaves none.
TEST_F(DelayedUpdateLayoutTest, UpdatesMayBecomeLateAndPromptAgain) {
  const TrainerOptions options = With(DType::kBFloat16);
  const std::string folder = absl::StrCat(testing::TempDir(), "/turns");
  LayoutRun first;
  first.steps = 2;
  first.save = folder + "/prompt";
  Train(options, DeviceType::kCpu, first);
  LayoutRun second = first;
  second.load = first.save;
  second.save = folder + "/late";
  const LayoutOutcome late = Train(Late(options, 2), DeviceType::kCpu, second);
  LayoutRun whole;
  whole.steps = 4;
  EXPECT_EQ(late.state, Train(Late(options, 2), DeviceType::kCpu, whole).state);
  LayoutRun third = second;
  third.steps = 1;
  third.load = second.save;
  third.save = folder + "/prompt_again";
  const LayoutOutcome again = Train(Late(options, 100), DeviceType::kCuda, third);
  for (const auto& [name, tensor] : again.state)
    EXPECT_FALSE(absl::StrContains(name, "delayed_gradient")) << name;
  LayoutRun fourth = first;
  fourth.load = third.save;
  fourth.save.clear();
  EXPECT_EQ(Train(options, DeviceType::kCpu, fourth).losses.size(), 2u);
}

}  // namespace
}  // namespace megatron
