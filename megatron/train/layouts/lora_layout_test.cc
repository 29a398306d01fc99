// Tests that low-rank adapters are trained on every layout as on one rank, beside weights that keep
// their values, and that adapters alone take memory of gradients and states.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/layers/low_rank_adapter.h"
#include "megatron/models/model_harness.h"
#include "megatron/train/layouts/layout_harness.h"

namespace megatron {
namespace {

constexpr int kSteps = 4;
constexpr double kTolerance = 1e-5;

TrainerOptions Adapting(ModelOptions model, const std::vector<std::string>& modules) {
  model.transformer.lora = {/*dim=*/4, /*alpha=*/16, modules};
  TrainerOptions run = TinyRun(model, OptimizerOptions::kAdamW);
  run.freeze = {R"(^(?!.*\.adapter\.))"};
  return run;
}

TrainerOptions AdaptingAll(const ModelOptions& model) {
  return Adapting(model, {"linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"});
}

LayoutOutcome Train(const TrainerOptions& run, const Layout& layout, int steps = kSteps) {
  LayoutRun how;
  how.layout = layout;
  how.steps = steps;
  how.evaluate = steps > 0;
  return TrainOnLayout(run, how, CountingSource());
}

std::vector<Layout> Layouts() {
  std::vector<Layout> layouts(9);
  layouts[0].tensor = 2;
  layouts[1].tensor = 2;
  layouts[1].sequence_parallel = layouts[1].tp_comm_overlap = true;
  layouts[2].pipeline = 4;
  layouts[3].pipeline = layouts[3].tensor = 2;
  layouts[3].sequence_parallel = true;
  layouts[3].schedule = ScheduleKind::kZeroBubbleH1;
  layouts[4].context = layouts[4].data = 2;
  layouts[5].data = 4;
  layouts[5].sharding = DataSharding::kStates;
  layouts[6].data = 2;
  layouts[6].pipeline = layouts[6].chunks = 2;
  layouts[6].sharding = DataSharding::kGradients;
  layouts[7].data = layouts[7].tensor = layouts[7].pipeline = 2;
  layouts[7].sharding = DataSharding::kWeights;
  layouts[8].data = 4;
  layouts[8].sharding = DataSharding::kWeights;
  layouts[8].overlap = true;
  return layouts;
}

bool IsAdapter(const std::string& name) { return absl::StrContains(name, kAdapterName); }

// Expects that all weights but the adapters' have the bits of `first`, and no states.
void ExpectTheOthersFrozen(const LayoutOutcome& got, const LayoutOutcome& first) {
  int adapters = 0, frozen = 0;
  for (const auto& [name, tensor] : got.state) {
    if (IsAdapter(name)) {
      ++adapters;
      continue;
    }
    EXPECT_FALSE(absl::StartsWith(name, "optimizer.state.")) << name;
    EXPECT_TRUE(tensor == first.state.at(name)) << name;
    ++frozen;
  }
  EXPECT_GT(adapters, 0);
  EXPECT_GT(frozen, 0);
}

void ExpectTheSame(const LayoutOutcome& got, const LayoutOutcome& want) {
  ASSERT_EQ(got.losses.size(), want.losses.size());
  for (size_t i = 0; i < got.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], kTolerance * want.losses[i]) << "step " << i;
    EXPECT_NEAR(got.norms[i], want.norms[i], 10 * kTolerance * want.norms[i]) << "step " << i;
  }
  EXPECT_NEAR(got.evaluation, want.evaluation, kTolerance * want.evaluation);
  EXPECT_EQ(got.state.size(), want.state.size());
}

TEST(LoraLayoutTest, EveryLayoutTrainsWhatOneRankTrains) {
  for (const ModelOptions& model : {SmallGpt2(), SmallLlama()}) {
    TrainerOptions run = AdaptingAll(model);
    // Dropout needs all rows of a micro-batch at once.
    const bool drops = !model.learned_positions;
    if (drops) run.model.transformer.lora.dropout = 0.1f;
    const LayoutOutcome first = Train(run, Layout(), 0), want = Train(run, Layout());
    ExpectTheOthersFrozen(want, first);
    EXPECT_LT(want.losses.back(), want.losses.front());
    for (const Layout& layout : Layouts()) {
      if (drops && layout.tp_comm_overlap) continue;
      SCOPED_TRACE(ToString(layout));
      const LayoutOutcome got = Train(run, layout);
      ExpectTheSame(got, want);
      ExpectTheOthersFrozen(got, first);
    }
  }
}

TEST(LoraLayoutTest, AModelWithExpertsAdaptsItsAttention) {
  std::vector<Layout> layouts(2);
  layouts[0].data = layouts[0].expert = 2;
  layouts[1].tensor = layouts[1].expert_tensor = 2;
  TrainerOptions run = Adapting(SmallMixtral(), {"linear_qkv", "linear_proj"});
  run.model.transformer.init_std = 0.08f;
  const LayoutOutcome first = Train(run, Layout(), 0), want = Train(run, Layout());
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(ToString(layout));
    const LayoutOutcome got = Train(run, layout);
    ExpectTheSame(got, want);
    ExpectTheOthersFrozen(got, first);
  }
}

// B is zero in the beginning: the first loss is that of the model without adapters.
TEST(LoraLayoutTest, AdaptersBeginWithoutEffect) {
  TrainerOptions plain = TinyRun(SmallLlama(), OptimizerOptions::kAdamW);
  const LayoutOutcome want = Train(plain, Layout(), 1);
  const LayoutOutcome got = Train(AdaptingAll(SmallLlama()), Layout(), 1);
  EXPECT_EQ(got.losses[0], want.losses[0]);
}

TEST(LoraLayoutTest, AdaptersAloneHaveGradientsAndStates) {
  const LayoutOutcome adapting = Train(AdaptingAll(SmallLlama()), Layout(), 1);
  const LayoutOutcome all = Train(TinyRun(SmallLlama(), OptimizerOptions::kAdamW), Layout(), 1);
  for (const char* kind : {"gradients", "exp_avg", "exp_avg_sq"})
    EXPECT_LT(2 * adapting.memory.at(kind), all.memory.at(kind)) << kind;
}

TEST(LoraLayoutTest, CheckpointsGoFromLayoutToLayout) {
  for (const bool bf16 : {false, true}) {
    TrainerOptions run = AdaptingAll(SmallGpt2());
    if (bf16) run.model.transformer.dtype = DType::kBFloat16;
    ExpectThatCheckpointsMove(run, kSteps, Layouts());
  }
}

}  // namespace
}  // namespace megatron
