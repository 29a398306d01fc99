// Trains with layers that see some of the tokens, on layouts and on one rank, and goes on after a
// checkpoint.

#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/models/model_harness.h"
#include "megatron/train/layouts/layout_harness.h"
#include "megatron/train/layouts/same_training.h"

namespace megatron {
namespace {

constexpr int kSteps = 6;

// Layers 1 and 2 of four see 6, 8, 10, 12, 14 and 16 of 16 tokens.
LengthSchedule Keeping(int64_t min = 6, int64_t multiple = 2) {
  LengthSchedule schedule;
  schedule.min = min;
  schedule.max = CountingSource::kLength;
  schedule.total_steps = 6;
  schedule.multiple = multiple;
  return schedule;
}

TrainerOptions OptionsFor(const ModelOptions& model, const LengthSchedule& random_ltd) {
  TrainerOptions options = TinyRun(model, OptimizerOptions::kSgd);
  options.random_ltd = random_ltd;
  return options;
}

LayoutOutcome Train(const TrainerOptions& options, const Layout& layout) {
  SCOPED_TRACE(ToString(layout));
  LayoutRun how;
  how.layout = layout;
  how.steps = kSteps;
  how.evaluate = true;
  const CountingSource source;
  return TrainOnLayout(options, how, source);
}

TEST(RandomLtdLayoutTest, EveryLayoutTrainsAsOneRankDoes) {
  std::vector<Layout> layouts(7);
  layouts[0].tensor = 2;
  layouts[1].pipeline = 2;
  layouts[1].chunks = 2;
  layouts[2].pipeline = 2;
  layouts[2].chunks = 2;
  layouts[2].schedule = ScheduleKind::kZeroBubbleV;
  layouts[3].data = 2;
  layouts[3].sharding = DataSharding::kWeights;
  layouts[3].overlap = true;
  layouts[4].data = 4;
  layouts[4].micro_batch_size = 2;
  layouts[5].tensor = 2;
  layouts[5].tp_comm_overlap = true;
  layouts[5].pipeline = 4;
  layouts[6].micro_batch_size = 8;
  for (const ModelOptions& model : {SmallGpt2(), SmallLlama()}) {
    TrainerOptions options = OptionsFor(model, Keeping());
    const LayoutOutcome one = Train(options, {});
    for (const Layout& layout : layouts) {
      options.model.layer_recompute = LayerRecompute();
      ExpectSameCurve(Train(options, layout), one);
      options.model.layer_recompute = {LayerRecompute::kUniform, 1};
      ExpectSameCurve(Train(options, layout), one);
    }
  }
}

// Rows of the residual stream are shared out: kept tokens go to other ranks and come back.
TEST(RandomLtdLayoutTest, LayoutsThatShareOutRowsTrainAsOneRankDoes) {
  std::vector<Layout> layouts(8);
  layouts[0].tensor = 2;
  layouts[0].sequence_parallel = true;
  layouts[1].tensor = 2;
  layouts[1].sequence_parallel = layouts[1].tp_comm_overlap = true;
  layouts[1].pipeline = 2;
  layouts[1].chunks = 2;
  layouts[1].schedule = ScheduleKind::kZeroBubbleV;
  for (int i = 2; i < 8; ++i) layouts[i].context = 2;
  layouts[3].micro_batch_size = 4;
  layouts[4].context_parallel = ContextParallel::kAllToAll;
  layouts[5].context_parallel = ContextParallel::kGather;
  layouts[6].context = 4;
  layouts[6].context_parallel = ContextParallel::kHierarchical;
  layouts[6].context_team_size = 2;
  layouts[7].tensor = layouts[7].pipeline = 2;
  layouts[7].sequence_parallel = true;
  for (const ModelOptions& model : {SmallGpt2(), SmallLlama()}) {
    for (const Layout& layout : layouts) {
      // 4, 8, 8, 12, 12 and 16 tokens, or 8 up to the last step, so that all ranks have as many.
      const int64_t multiple = 2 * layout.context * layout.tensor == 8 ? 8 : 4;
      const TrainerOptions options = OptionsFor(model, Keeping(multiple, multiple));
      ExpectSameCurve(Train(options, layout), Train(options, {}));
    }
  }
}

// The ranks of a grid have samples of their own, and those of a cube others between a layer's
// products.
TEST(RandomLtdLayoutTest, GridsTrainAsOneRankDoes) {
  std::vector<Layout> layouts(4);
  for (Layout& layout : layouts) {
    layout.tensor = 4;
    layout.tensor_side = 2;
    layout.micro_batch_size = 2;
  }
  layouts[1].pipeline = layouts[1].data = 2;
  layouts[1].sharding = DataSharding::kWeights;
  for (int i : {2, 3}) {
    layouts[i].tensor = 8;
    layouts[i].tensor_depth = 2;
    layouts[i].micro_batch_size = 4;
  }
  layouts[3].tensor_cube = true;
  ModelOptions with_dropout = SmallGpt2();
  with_dropout.transformer.hidden_dropout = with_dropout.transformer.attention_dropout = 0.2f;
  for (const ModelOptions& model : {with_dropout, SmallLlama()}) {
    TrainerOptions options = OptionsFor(model, Keeping());
    const LayoutOutcome one = Train(options, {});
    for (const Layout& layout : layouts) ExpectSameCurve(Train(options, layout), one);
    options.model.layer_recompute = {LayerRecompute::kUniform, 1};
    ExpectSameCurve(Train(options, layouts[3]), one);
  }
}

// Kept tokens have dropout of their own sample and place, wherever they are.
TEST(RandomLtdLayoutTest, DropoutOfKeptTokensDoesNotDependOnTheLayout) {
  ModelOptions model = SmallGpt2();
  model.transformer.hidden_dropout = model.transformer.attention_dropout = 0.2f;
  const TrainerOptions options = OptionsFor(model, Keeping(8, 8));
  const LayoutOutcome one = Train(options, {});
  std::vector<Layout> layouts(4);
  layouts[0].tensor = 2;
  layouts[0].sequence_parallel = true;
  layouts[1].context = 2;
  layouts[2].context = 2;
  layouts[2].context_parallel = ContextParallel::kAllToAll;
  layouts[3].context = 4;
  layouts[3].context_parallel = ContextParallel::kHierarchical;
  layouts[3].context_team_size = 2;
  for (const Layout& layout : layouts) ExpectSameCurve(Train(options, layout), one);
}

// Losses, capacities and balancing are those of the tokens that a layer sees.
TEST(RandomLtdLayoutTest, ExpertsTrainAsOnOneRank) {
  std::vector<Layout> layouts(4);
  layouts[0].data = layouts[0].expert = 2;
  layouts[1].tensor = 2;
  layouts[2].tensor = layouts[2].data = layouts[2].expert = 2;
  layouts[2].sequence_parallel = true;
  layouts[3].context = layouts[3].data = layouts[3].expert = 2;
  for (const ModelOptions& model : {SmallMixtral(), SmallDeepSeek(), SmallBalanced()}) {
    const TrainerOptions options = OptionsFor(model, Keeping(4, 4));
    const LayoutOutcome one = Train(options, {});
    for (const Layout& layout : layouts) {
      const LayoutOutcome got = Train(options, layout);
      ExpectSameCurve(got, one);
      for (size_t i = 0; i < one.balances.size(); ++i) {
        EXPECT_NEAR(got.balances[i], one.balances[i], 1e-5 * one.balances[i]);
        EXPECT_NEAR(got.z_losses[i], one.z_losses[i], 1e-5 * one.z_losses[i]);
      }
    }
    TrainerOptions plain = options;
    plain.random_ltd = LengthSchedule();
    EXPECT_NE(one.losses[0], Train(plain, {}).losses[0]);
  }
}

TEST(RandomLtdLayoutTest, SamplesThatAGrowingCurriculumMakesShortAreSeenWhole) {
  TrainerOptions options = OptionsFor(SmallLlama(), Keeping());
  options.curriculum.lengths = {4, 16};
  options.curriculum.last_steps = {2};
  Layout layout;
  layout.tensor = 2;
  layout.data = 2;
  ExpectSameCurve(Train(options, layout), Train(options, {}));
  TrainerOptions plain = options;
  plain.random_ltd = LengthSchedule();
  const LayoutOutcome dropping = Train(options, {}), whole = Train(plain, {});
  EXPECT_EQ(dropping.losses[0], whole.losses[0]);
  EXPECT_EQ(dropping.losses[1], whole.losses[1]);
  EXPECT_NE(dropping.losses[2], whole.losses[2]);
}

TEST(RandomLtdLayoutTest, LayersThatSeeAllTokensTrainAsThoseThatDropNone) {
  LengthSchedule all;
  all.lengths = {CountingSource::kLength};
  const LayoutOutcome plain = Train(OptionsFor(SmallGpt2(), LengthSchedule()), {});
  const LayoutOutcome whole = Train(OptionsFor(SmallGpt2(), all), {});
  EXPECT_EQ(whole.losses, plain.losses);
  EXPECT_TRUE(whole.state == plain.state);
  EXPECT_NE(Train(OptionsFor(SmallGpt2(), Keeping()), {}).losses[0], plain.losses[0]);
}

TEST(RandomLtdLayoutTest, ARunThatContinuesTakesTheSameSteps) {
  const TrainerOptions options = OptionsFor(SmallGpt2(), Keeping());
  const std::string directory = testing::TempDir() + "/random_ltd";
  const CountingSource source;
  LayoutRun first;
  first.steps = 3;
  first.save = directory;
  TrainOnLayout(options, first, source);
  LayoutRun second;
  second.steps = kSteps - first.steps;
  second.load = directory;
  const LayoutOutcome got = TrainOnLayout(options, second, source), want = Train(options, {});
  EXPECT_EQ(got.losses, std::vector<double>(want.losses.begin() + 3, want.losses.end()));
  EXPECT_TRUE(got.state == want.state);
}

}  // namespace
}  // namespace megatron
