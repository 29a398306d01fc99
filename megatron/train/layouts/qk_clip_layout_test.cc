// Tests that QK-clip measures and scales on every layout what it does on one rank.
#include <algorithm>
#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/models/model_harness.h"
#include "megatron/train/layouts/layout_harness.h"
#include "megatron/train/layouts/same_training.h"

namespace megatron {
namespace {

constexpr int kSteps = 4;

LayoutOutcome Train(TrainerOptions run, double threshold, const Layout& layout) {
  run.qk_clip = {true, threshold, 0.25};
  LayoutRun how;
  how.layout = layout;
  how.steps = kSteps;
  how.evaluate = true;
  return TrainOnLayout(run, how, CountingSource());
}

double LargestScore(const LayoutOutcome& outcome, int step) {
  return outcome.diagnostics[step].max_attention_logit.value_or(NAN);
}

void ExpectTheSame(const LayoutOutcome& got, const LayoutOutcome& want) {
  ExpectSameCurve(got, want);
  for (int step = 0; step < kSteps; ++step)
    EXPECT_NEAR(LargestScore(got, step), LargestScore(want, step), 1e-5 * LargestScore(want, step));
}

std::vector<Layout> Layouts() {
  std::vector<Layout> layouts(12);
  layouts[0].tensor = 2;
  layouts[0].sequence_parallel = true;
  layouts[1].tensor = 4;  // ranks that share groups of heads, if there are two
  layouts[2].data = 4;
  layouts[2].sharding = DataSharding::kStates;
  layouts[3].data = layouts[3].tensor = layouts[3].pipeline = 2;
  layouts[3].sharding = DataSharding::kWeights;
  layouts[4].pipeline = layouts[4].chunks = layouts[4].data = 2;
  layouts[4].sharding = DataSharding::kGradients;
  layouts[4].overlap = true;
  layouts[5].context = layouts[5].tensor = 2;
  for (int i = 6; i < 9; ++i) layouts[i].context = 2;
  layouts[6].context_parallel = ContextParallel::kGather;
  layouts[7].context_parallel = ContextParallel::kAllToAll;
  layouts[8].context = 4;
  layouts[8].context_parallel = ContextParallel::kHierarchical;
  layouts[8].context_team_size = 2;
  layouts[9].tensor = 4;
  layouts[9].tensor_side = 2;
  layouts[9].micro_batch_size = 2;
  for (int i = 10; i < 12; ++i) {
    layouts[i].tensor = 8;
    layouts[i].tensor_side = layouts[i].tensor_depth = 2;
    layouts[i].micro_batch_size = 4;
  }
  layouts[11].tensor_cube = true;
  return layouts;
}

TEST(QkClipLayoutTest, TrainsOnEveryLayoutWhatOneRankTrains) {
  for (const ModelOptions& model : {SmallGpt2(), SmallLlama()}) {
    const TrainerOptions run = TinyRun(model, OptimizerOptions::kSgd);
    const LayoutOutcome free = Train(run, 1e9, Layout());
    const double threshold = LargestScore(free, 0) / 2;
    const LayoutOutcome want = Train(run, threshold, Layout());
    // The first step is measured before anything is scaled. Then scores are half as large, but for
    // what the step of the optimizer changes.
    EXPECT_EQ(LargestScore(want, 0), LargestScore(free, 0));
    EXPECT_LT(LargestScore(want, 1), 0.75 * LargestScore(free, 1));
    EXPECT_NE(want.losses.back(), free.losses.back());
    for (const Layout& layout : Layouts()) {
      SCOPED_TRACE(ToString(layout));
      ExpectTheSame(Train(run, threshold, layout), want);
    }
  }
}

TEST(QkClipLayoutTest, AttentionInChunksAndRecomputedLayersHaveTheSameScores) {
  TrainerOptions run = TinyRun(SmallLlama(), OptimizerOptions::kSgd);
  const double threshold = LargestScore(Train(run, 1e9, Layout()), 0) / 2;
  const LayoutOutcome want = Train(run, threshold, Layout());
  Layout context;
  context.context = 2;
  context.context_parallel = ContextParallel::kAllToAll;
  run.model.transformer.recompute.attention_chunk_tokens = 8;
  ExpectTheSame(Train(run, threshold, Layout()), want);
  ExpectTheSame(Train(run, threshold, context), want);
}

}  // namespace
}  // namespace megatron
