// Trains with samples that begin short, on layouts and on one rank, and goes on after a checkpoint.

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

// Lengths 4, 8, 8, 12, 16 and 16.
LengthSchedule Growth() {
  LengthSchedule schedule;
  schedule.min = 4;
  schedule.max = CountingSource::kLength;
  schedule.total_steps = 5;
  schedule.multiple = 4;
  return schedule;
}

LengthSchedule Always(int64_t length) {
  LengthSchedule schedule;
  schedule.lengths = {length};
  return schedule;
}

TrainerOptions OptionsFor(const ModelOptions& model, const LengthSchedule& curriculum) {
  TrainerOptions options = TinyRun(model, OptimizerOptions::kSgd);
  options.curriculum = curriculum;
  return options;
}

LayoutOutcome Train(const TrainerOptions& options, const Layout& layout, bool documents = false) {
  SCOPED_TRACE(ToString(layout));
  LayoutRun how;
  how.layout = layout;
  how.steps = kSteps;
  how.evaluate = true;
  const CountingSource source(documents);
  return TrainOnLayout(options, how, source);
}

std::vector<Layout> Layouts() {
  std::vector<Layout> layouts(9);
  layouts[0].tensor = 2;
  layouts[0].sequence_parallel = true;
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
  layouts[5].context = 2;
  layouts[5].micro_batch_size = 2;
  layouts[6].context = 2;
  layouts[6].context_parallel = ContextParallel::kAllToAll;
  layouts[7].context = 2;
  layouts[7].context_parallel = ContextParallel::kGather;
  layouts[8].tensor = 2;
  layouts[8].sequence_parallel = true;
  layouts[8].context = 2;
  layouts[8].pipeline = 2;
  return layouts;
}

TEST(CurriculumLayoutTest, EveryLayoutTrainsAsOneRankDoes) {
  for (const bool documents : {false, true}) {
    const TrainerOptions options = OptionsFor(SmallLlama(), Growth());
    const LayoutOutcome one = Train(options, {}, documents);
    for (const Layout& layout : Layouts()) ExpectSameCurve(Train(options, layout, documents), one);
  }
}

TEST(CurriculumLayoutTest, ExpertsAndLearnedPositionsTrainAsOnOneRank) {
  Layout layout;
  layout.tensor = 2;
  layout.data = 2;
  for (const ModelOptions& model : {SmallGpt2(), SmallMixtral()}) {
    const TrainerOptions options = OptionsFor(model, Growth());
    ExpectSameCurve(Train(options, layout), Train(options, {}));
  }
}

// Gives the beginnings of another source's samples.
class BeginningsSource : public SampleSource {
 public:
  explicit BeginningsSource(size_t length) : length_(length) {}

  int64_t size() const override { return source_.size(); }
  absl::Status Get(int64_t index, Sample* sample) const override {
    const absl::Status status = source_.Get(index, sample);
    sample->tokens.resize(length_);
    sample->labels.resize(length_);
    sample->loss_mask.resize(length_);
    sample->positions.resize(length_);
    return status;
  }

 private:
  const size_t length_;
  const CountingSource source_;
};

TEST(CurriculumLayoutTest, AShortStepIsThatOfSamplesThatAreSoShort) {
  constexpr int64_t kLength = 8;
  LayoutRun how;
  how.steps = kSteps;
  const LayoutOutcome got =
      TrainOnLayout(OptionsFor(SmallGpt2(), Always(kLength)), how, CountingSource());
  TrainerOptions short_samples = OptionsFor(SmallGpt2(), LengthSchedule());
  short_samples.packing.seq_length = kLength;
  const LayoutOutcome want = TrainOnLayout(short_samples, how, BeginningsSource(kLength));
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.norms, want.norms);
  EXPECT_TRUE(got.state == want.state);
}

TEST(CurriculumLayoutTest, AScheduleOfWholeSamplesChangesNothing) {
  const LayoutOutcome plain = Train(OptionsFor(SmallGpt2(), LengthSchedule()), {});
  const LayoutOutcome whole = Train(OptionsFor(SmallGpt2(), Always(CountingSource::kLength)), {});
  const LayoutOutcome grown = Train(OptionsFor(SmallGpt2(), Growth()), {});
  EXPECT_EQ(whole.losses, plain.losses);
  EXPECT_TRUE(whole.state == plain.state);
  EXPECT_NE(grown.losses[0], plain.losses[0]);
}

TEST(CurriculumLayoutTest, ARunThatContinuesTakesTheSameSteps) {
  const TrainerOptions options = OptionsFor(SmallGpt2(), Growth());
  const std::string directory = testing::TempDir() + "/curriculum";
  const CountingSource source;
  LayoutRun first;
  first.steps = 3;
  first.save = directory;
  const LayoutOutcome begun = TrainOnLayout(options, first, source);
  LayoutRun second;
  second.steps = kSteps - first.steps;
  second.load = directory;
  second.evaluate = true;
  const LayoutOutcome got = TrainOnLayout(options, second, source), want = Train(options, {});
  EXPECT_EQ(begun.losses, std::vector<double>(want.losses.begin(), want.losses.begin() + 3));
  EXPECT_EQ(got.losses, std::vector<double>(want.losses.begin() + 3, want.losses.end()));
  EXPECT_EQ(got.evaluation, want.evaluation);
  EXPECT_TRUE(got.state == want.state);
}

}  // namespace
}  // namespace megatron
