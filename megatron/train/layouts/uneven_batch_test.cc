// Trains on numbers of data-parallel ranks that can't share the global batch evenly.

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/models/model_harness.h"
#include "megatron/train/layouts/layout_harness.h"
#include "megatron/train/layouts/same_training.h"

namespace megatron {
namespace {

constexpr int kSteps = 6;

// The batch has 8 samples.
std::vector<Layout> Layouts() {
  std::vector<Layout> layouts(7);
  layouts[0].data = 3;  // 3, 3 and 2 samples
  layouts[1].data = 5;
  layouts[1].micro_batch_size = 2;  // the last rank has none
  layouts[2].data = 3;
  layouts[2].sharding = DataSharding::kStates;
  layouts[2].micro_batch_size = 2;
  layouts[3].data = 3;
  layouts[3].sharding = DataSharding::kWeights;
  layouts[3].overlap = true;
  layouts[4].data = 3;
  layouts[4].tensor = 2;
  layouts[4].sequence_parallel = true;
  layouts[5].data = 3;
  layouts[5].pipeline = 2;
  layouts[6].data = 3;
  layouts[6].context = 2;
  layouts[6].micro_batch_size = 2;
  return layouts;
}

TEST(UnevenBatchTest, EveryLayoutTrainsWhatOneRankTrains) {
  for (const bool documents : {false, true}) {
    const CountingSource source(documents);
    const TrainerOptions options = TinyRun(SmallLlama(), OptimizerOptions::kSgd);
    LayoutRun how;
    how.steps = kSteps;
    how.evaluate = true;
    const LayoutOutcome one = TrainOnLayout(options, how, source);
    for (const Layout& layout : Layouts()) {
      SCOPED_TRACE(ToString(layout));
      how.layout = layout;
      ExpectSameCurve(TrainOnLayout(options, how, source), one);
    }
  }
}

TEST(UnevenBatchTest, SamplesOfAnyLengthTrainAsOnOneRank) {
  const LayoutOutcome bert = TrainSentences(SmallBert(), Layout(), kSteps, PairSource());
  const LayoutOutcome t5 = TrainSentences(SmallT5(), Layout(), kSteps, GapSource());
  for (const Layout& layout : Layouts()) {
    SCOPED_TRACE(ToString(layout));
    ExpectSameCurve(TrainSentences(SmallBert(), layout, kSteps, PairSource()), bert);
    if (layout.context == 1 && !layout.sequence_parallel)
      ExpectSameCurve(TrainSentences(SmallT5(), layout, kSteps, GapSource()), t5);
  }
}

// The samples are those of the batch, and each is read by one rank.
TEST(UnevenBatchTest, EachSampleIsReadOnce) {
  const CountingSource source;
  LayoutRun how;
  how.layout.data = 3;
  how.layout.micro_batch_size = 2;
  how.steps = 3;
  TrainOnLayout(TinyRun(SmallLlama(), OptimizerOptions::kSgd), how, source);
  for (int64_t sample = 0; sample < 3 * 8; ++sample) EXPECT_EQ(source.reads(sample), 1) << sample;
  EXPECT_EQ(source.reads(3 * 8), 0);
}

}  // namespace
}  // namespace megatron
