// Tests that a schedule changes only time and memory. With the same parts of the model, every
// schedule adds the gradients of micro-batches in the same order, and so gives the same bits.

#include "gtest/gtest.h"
#include "megatron/models/model_harness.h"
#include "megatron/train/layouts/layout_harness.h"

namespace megatron {
namespace {

LayoutOutcome Train(const TrainerOptions& run, const Layout& layout) {
  static const auto* const source = new CountingSource();
  LayoutRun how;
  how.layout = layout;
  how.steps = 4;
  how.evaluate = true;
  return TrainOnLayout(run, how, *source);
}

void ExpectSameBits(const LayoutOutcome& got, const LayoutOutcome& want) {
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.norms, want.norms);
  EXPECT_EQ(got.evaluation, want.evaluation);
  EXPECT_TRUE(got.state == want.state);
}

TEST(ScheduleEquivalenceTest, SchedulesOverTheSamePartsGiveTheSameBits) {
  for (const ModelOptions& model : {SmallGpt2(), SmallLlama()}) {
    const TrainerOptions run = TinyRun(model, OptimizerOptions::kAdamW);
    for (int stages : {2, 4}) {
      Layout layout;
      layout.pipeline = stages;
      layout.tensor = stages == 2 ? 2 : 1;
      layout.sequence_parallel = stages == 2;
      const LayoutOutcome want = Train(run, layout);
      for (ScheduleKind kind : {ScheduleKind::kGPipe, ScheduleKind::kZeroBubbleH1}) {
        layout.schedule = kind;
        SCOPED_TRACE(ToString(layout));
        ExpectSameBits(Train(run, layout), want);
      }
    }
  }
}

// The forward passes are the same, and sums have the same order, except for those of the gradient
// norm.
TEST(ScheduleEquivalenceTest, ZbVGivesTheFirstLossesOfOneRank) {
  const TrainerOptions run = TinyRun(SmallLlama(), OptimizerOptions::kSgd);
  const LayoutOutcome want = Train(run, {});
  Layout layout;
  layout.pipeline = layout.chunks = 2;
  layout.schedule = ScheduleKind::kZeroBubbleV;
  const LayoutOutcome got = Train(run, layout);
  EXPECT_EQ(got.losses[0], want.losses[0]);
  for (size_t i = 0; i < want.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], 2e-6 * want.losses[i]);
    EXPECT_NEAR(got.norms[i], want.norms[i], 2e-6 * want.norms[i]);
  }
}

// A step of two micro-batches has more of them in a stage's second chunk than one of a whole group.
TEST(ScheduleEquivalenceTest, ShorterStepsOfARampHaveTheSlotsThatTheyNeed) {
  TrainerOptions run = TinyRun(SmallLlama(), OptimizerOptions::kSgd);
  run.batch_size.steps = {{0, 4}, {4, 8}};
  run.microbatch_group = 4;
  const LayoutOutcome want = Train(run, {});
  Layout layout;
  layout.pipeline = layout.chunks = layout.data = 2;
  const LayoutOutcome got = Train(run, layout);
  for (size_t i = 0; i < want.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], 2e-6 * want.losses[i]);
    EXPECT_NEAR(got.norms[i], want.norms[i], 1e-5 * want.norms[i]);
  }
}

}  // namespace
}  // namespace megatron
