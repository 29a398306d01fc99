// Training losses of several sources of samples, each by itself: on layouts and on one rank, and
// beside a plain computation.

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "megatron/models/model_harness.h"
#include "megatron/train/layouts/layout_harness.h"
#include "megatron/train/layouts/same_training.h"

namespace megatron {
namespace {

using Sources = SeveralSources<CountingSource>;

TrainerOptions RunOf(const ModelOptions& model) {
  TrainerOptions run = TinyRun(model, OptimizerOptions::kSgd);
  run.num_sources = Sources::kSources;
  return run;
}

LayoutOutcome Train(const TrainerOptions& run, const Layout& layout, const SampleSource& source) {
  LayoutRun how;
  how.layout = layout;
  how.steps = 3;
  how.eval_interval = 1;  // evaluations between the steps add nothing
  return TrainOnLayout(run, how, source);
}

LayoutOutcome Train(const ModelOptions& model, const Layout& layout) {
  return Train(RunOf(model), layout, Sources(/*documents=*/true));
}

std::vector<Layout> Layouts() {
  std::vector<Layout> layouts(13);
  layouts[0].tensor = layouts[0].data = 2;
  layouts[0].sequence_parallel = true;
  layouts[1].pipeline = layouts[1].chunks = 2;
  layouts[2].pipeline = layouts[2].chunks = 2;
  layouts[2].schedule = ScheduleKind::kZeroBubbleV;
  layouts[3].pipeline = 2;
  layouts[3].schedule = ScheduleKind::kZeroBubbleH1;
  layouts[3].micro_batch_size = 2;
  layouts[4].data = 2;
  layouts[4].sharding = DataSharding::kWeights;
  layouts[4].overlap = true;
  layouts[4].micro_batch_size = 4;
  layouts[5].data = 3;  // the batch does not divide
  layouts[6].context = 2;
  layouts[6].micro_batch_size = 2;
  layouts[7].context = layouts[7].data = 2;
  layouts[7].context_parallel = ContextParallel::kAllToAll;
  layouts[8].context = 4;
  layouts[8].context_parallel = ContextParallel::kGather;
  layouts[8].micro_batch_size = 4;
  layouts[9].tensor = layouts[9].context = layouts[9].pipeline = 2;
  layouts[10].tensor = 4;
  layouts[10].tensor_side = 2;
  layouts[10].micro_batch_size = 4;
  layouts[11].tensor = 8;
  layouts[11].tensor_side = layouts[11].tensor_depth = 2;
  layouts[11].tensor_cube = true;
  layouts[11].micro_batch_size = 4;
  layouts[12].micro_batch_size = 8;
  return layouts;
}

// Layouts for models that differ in their last stage.
std::vector<Layout> FewLayouts() {
  std::vector<Layout> layouts(4);
  layouts[0].tensor = layouts[0].data = 2;
  layouts[1].pipeline = 2;
  layouts[1].micro_batch_size = 2;
  layouts[2].context = 2;
  layouts[2].micro_batch_size = 4;
  layouts[3].data = 2;
  layouts[3].micro_batch_size = 2;
  return layouts;
}

TEST(SourceLossesLayoutTest, EveryLayoutHasTheLossesOfOneRank) {
  const LayoutOutcome alone = Train(SmallLlama(), {});
  ExpectLossesOfSources(alone, alone);
  for (const Layout& layout : Layouts()) {
    SCOPED_TRACE(ToString(layout));
    ExpectLossesOfSources(Train(SmallLlama(), layout), alone);
  }
}

TEST(SourceLossesLayoutTest, LogitsInChunksHaveTheLossesOfWholeOnes) {
  ModelOptions chunked = SmallGpt2();
  chunked.logits_chunk = 6;
  const LayoutOutcome whole = Train(SmallGpt2(), {});
  ExpectLossesOfSources(Train(chunked, {}), whole);
  std::vector<Layout> layouts = FewLayouts();
  layouts.resize(6);
  layouts[4].pipeline = layouts[5].pipeline = 2;
  layouts[4].schedule = ScheduleKind::kZeroBubbleH1;
  layouts[5].schedule = ScheduleKind::kZeroBubbleV;
  layouts[5].chunks = 2;
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(ToString(layout));
    ExpectLossesOfSources(Train(chunked, layout), whole);
  }
}

// The losses of other depths do not count: the sums make up the loss of the next tokens.
TEST(SourceLossesLayoutTest, OfMultiTokenPredictionTheNextTokensCount) {
  const LayoutOutcome alone = Train(SmallMtp(), {});
  EXPECT_NE(alone.losses, alone.lm_losses);
  for (const Layout& layout : FewLayouts()) {
    if (layout.context > 1) continue;
    SCOPED_TRACE(ToString(layout));
    ExpectLossesOfSources(Train(SmallMtp(), layout), alone);
  }
}

TEST(SourceLossesLayoutTest, SentencesOfAnyLengthHaveLossesOfTheirSources) {
  ModelOptions t5 = SmallGpt2();
  t5.kind = ModelKind::kT5;
  t5.num_encoder_layers = 4;
  t5.output_bias = true;
  std::vector<Layout> layouts = FewLayouts();
  layouts.resize(5);
  layouts[4].tensor = layouts[4].data = 2;
  layouts[4].sequence_parallel = true;
  layouts[4].micro_batch_size = 2;
  const SeveralSources<PairSource> pairs;
  const SeveralSources<GapSource> gaps;
  const LayoutOutcome bert = Train(RunOf(SmallBert()), {}, pairs), gap = Train(RunOf(t5), {}, gaps);
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(ToString(layout));
    ExpectLossesOfSources(Train(RunOf(SmallBert()), layout, pairs), bert);
    ExpectLossesOfSources(Train(RunOf(t5), layout, gaps), gap);
  }
}

TEST(SourceLossesLayoutTest, ACurriculumTakesTheBeginningsOfSamples) {
  TrainerOptions run = RunOf(SmallLlama());
  run.curriculum.lengths = {8, 16};
  run.curriculum.last_steps = {2};
  const LayoutOutcome alone = Train(run, {}, Sources());
  for (const Layout& layout : FewLayouts()) {
    SCOPED_TRACE(ToString(layout));
    ExpectLossesOfSources(Train(run, layout, Sources()), alone);
  }
}

TEST(SourceLossesLayoutTest, StepsThatAreComputedAgainHaveTheirLossesOnce) {
  TrainerOptions run = RunOf(SmallLlama());
  const LayoutOutcome once = Train(run, {}, Sources());
  run.rerun.mode = RerunMode::kValidateResults;
  run.rerun.interval = 1;
  Layout layout;
  layout.data = 2;
  ExpectLossesOfSources(Train(run, layout, Sources()), once);
}

// Islands train apart, and each source has its loss over all of them.
TEST(SourceLossesLayoutTest, IslandsAddTheirLosses) {
  TrainerOptions run = RunOf(SmallLlama());
  run.outer.sync_every = 2;
  Layout layout;
  layout.data = 4;
  layout.optimizer_instances = 2;
  const LayoutOutcome outcome = Train(run, layout, Sources());
  ExpectLossesOfSources(outcome, outcome);
}

TEST(SourceLossesLayoutTest, TellingSourcesApartChangesNoBit) {
  for (const int64_t chunk : {0, 6}) {
    TrainerOptions run = RunOf(SmallLlama());
    run.model.logits_chunk = chunk;
    Layout layout;
    layout.tensor = layout.pipeline = layout.data = 2;
    const LayoutOutcome apart = Train(run, layout, Sources());
    run.num_sources = 0;
    const LayoutOutcome together = Train(run, layout, Sources());
    EXPECT_EQ(apart.losses, together.losses);
    EXPECT_TRUE(apart.state == together.state);
    EXPECT_TRUE(together.sources.back().empty());
    EXPECT_EQ(together.memory.count("losses by file"), 0u);
  }
}

// The losses of the second source count a quarter.
class WeightedSources : public Sources {
 public:
  absl::Status Get(int64_t index, Sample* sample) const override {
    const absl::Status status = Sources::Get(index, sample);
    for (float& weight : sample->loss_mask) weight *= SourceOf(index) == 1 ? 0.25f : 1;
    return status;
  }
};

TEST(SourceLossesLayoutTest, TheSumsAreThoseOfAPlainComputation) {
  constexpr int64_t kBatch = 8, kLength = CountingSource::kLength;
  const WeightedSources source;
  TrainerOptions run = RunOf(SmallLlama());
  run.model.transformer.hidden_dropout = run.model.transformer.attention_dropout = 0;
  run.scores_tokens = true;
  std::vector<float> losses;  // those of the first batch's tokens, with the first weights
  LayoutRun how;
  how.steps = 1;
  how.layout.micro_batch_size = 4;
  how.at_start = [&](int, Trainer* trainer) {
    return trainer->ScoreTokens(
        source, [&](int64_t first, absl::Span<const float> scored, absl::Span<const float>) {
          if (first == 0) losses.assign(scored.begin(), scored.end());
        });
  };
  const LayoutOutcome outcome = TrainOnLayout(run, how, source);
  ASSERT_EQ(losses.size(), kBatch * kLength);
  double sums[Sources::kSources] = {}, weights[Sources::kSources] = {};
  Sample sample;
  for (int64_t i = 0; i < kBatch; ++i) {
    ASSERT_TRUE(source.Get(i, &sample).ok());
    for (int64_t t = 0; t < kLength; ++t) {
      sums[source.SourceOf(i)] += double{sample.loss_mask[t]} * losses[i * kLength + t];
      weights[source.SourceOf(i)] += sample.loss_mask[t];
    }
  }
  ASSERT_EQ(outcome.sources[0].size(), 2u);
  for (const SourceLoss& loss : outcome.sources[0]) {
    EXPECT_EQ(loss.weight, weights[loss.source]) << loss.source;
    EXPECT_NEAR(loss.sum, sums[loss.source], 1e-5 * sums[loss.source]) << loss.source;
  }
}

}  // namespace
}  // namespace megatron
