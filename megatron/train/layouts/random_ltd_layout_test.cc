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
LengthSchedule Keeping() {
  LengthSchedule schedule;
  schedule.min = 6;
  schedule.max = CountingSource::kLength;
  schedule.total_steps = 6;
  schedule.multiple = 2;
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
