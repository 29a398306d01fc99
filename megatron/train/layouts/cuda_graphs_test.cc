// Training with CUDA graphs is training without them, bit for bit. On the emulated device a graph
// holds its operations with the arguments that they had when they were captured. A launch does not
// see what the host has changed since, and the losses or the weights would show that.
#include <cstdlib>
#include <string>

#include "gtest/gtest.h"
#include "megatron/models/model_harness.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/emulated_graph.h"
#include "megatron/train/layouts/layout_harness.h"

namespace megatron {
namespace {

constexpr int kSteps = 5, kMicroBatches = 8;

class CudaGraphsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (CudaDeviceCount() > 0) return;
    if (std::getenv("MEGATRON_REQUIRE_GPU") != nullptr) GTEST_FAIL() << "there is no GPU";
    GTEST_SKIP() << "there is no GPU";
  }

  LayoutOutcome Train(TrainerOptions options, LayoutRun how, const SampleSource& source,
                      bool graphs) {
    how.steps = kSteps;
    how.device = DeviceType::kCuda;
    how.evaluate = true;
    options.cuda_graphs.enabled = graphs;
    return TrainOnLayout(options, how, source);
  }

  // Returns how many passes of the run with graphs were captured, launched and so on.
  GraphedStage::Counts ExpectSameWithGraphs(TrainerOptions options, LayoutRun how,
                                            const SampleSource& source) {
    SCOPED_TRACE(ToString(how.layout));
    options.cuda_graphs.warmup_steps = 1;
    const LayoutOutcome want = Train(options, how, source, /*graphs=*/false);
    const LayoutOutcome got = Train(options, how, source, /*graphs=*/true);
    EXPECT_EQ(got.losses, want.losses);
    EXPECT_EQ(got.norms, want.norms);
    EXPECT_EQ(got.evaluation, want.evaluation);
    EXPECT_TRUE(got.sources == want.sources);
    EXPECT_TRUE(got.state == want.state);
    EXPECT_GT(got.graphs.launched, 0);
    EXPECT_NE(want.losses.front(), want.losses.back());
    // No operand has changed since the capture either.
    how.compare_graphs = [](const CudaGraph& graph, const CudaGraph& now) {
      EXPECT_GT(graph.num_operations(), 0);
      EXPECT_EQ(FirstDifference(graph, now), "");
    };
    const LayoutOutcome compared = Train(options, how, source, /*graphs=*/true);
    EXPECT_TRUE(compared.state == want.state);
    return got.graphs;
  }

  static TrainerOptions Options(const ModelOptions& model) {
    return TinyRun(model, OptimizerOptions::kAdamW);
  }

  // Experts that the host sends rows to without knowing the choices.
  static TrainerOptions PaddedExperts(ModelOptions model) {
    model.transformer.moe.capacity_factor = 1;
    model.transformer.moe.pad_to_capacity = true;
    return Options(model);
  }

  CountingSource source_;
};

TEST_F(CudaGraphsTest, MicroBatchesOfOneShapeShareTwoGraphs) {
  for (const ModelOptions& model : {SmallGpt2(), SmallLlama()}) {
    const GraphedStage::Counts counts = ExpectSameWithGraphs(Options(model), {}, source_);
    EXPECT_EQ(counts.enqueued, 2 * kMicroBatches);  // the first step
    EXPECT_EQ(counts.captured, 2);
    EXPECT_EQ(counts.launched, 2 * kMicroBatches * (kSteps - 1) - 2);
    EXPECT_EQ(counts.caught_up, 0);
  }
}

TEST_F(CudaGraphsTest, EachLengthOfACurriculumHasGraphsOfItsOwn) {
  TrainerOptions options = Options(SmallLlama());
  options.curriculum.lengths = {8, 16};
  options.curriculum.last_steps = {2};
  const GraphedStage::Counts counts = ExpectSameWithGraphs(options, {}, source_);
  EXPECT_EQ(counts.captured, 4);
}

// Layers see 8, 12, 12 and 16 tokens of each sample.
TEST_F(CudaGraphsTest, EachNumberOfKeptTokensHasGraphsOfItsOwn) {
  TrainerOptions options = Options(SmallLlama());
  options.random_ltd.min = 8;
  options.random_ltd.max = CountingSource::kLength;
  options.random_ltd.total_steps = options.random_ltd.multiple = 4;
  const GraphedStage::Counts counts = ExpectSameWithGraphs(options, {}, source_);
  EXPECT_GE(counts.captured, 4);
}

TEST_F(CudaGraphsTest, RecomputationIsCapturedToo) {
  for (const LayerRecompute recompute :
       {LayerRecompute{LayerRecompute::kUniform, 3}, LayerRecompute{LayerRecompute::kBlock, 2}}) {
    TrainerOptions options = Options(SmallGpt2());
    options.model.layer_recompute = recompute;
    ExpectSameWithGraphs(options, {}, source_);
  }
}

TEST_F(CudaGraphsTest, LayersWithAStateAreCapturedToo) {
  ModelOptions model = SmallHybrid();
  for (const bool together : {false, true}) {
    model.transformer.mamba.norm_all_groups = together;
    ExpectSameWithGraphs(Options(model), {}, source_);
  }
}

TEST_F(CudaGraphsTest, LatentAttentionIsCapturedToo) {
  ModelOptions without_q_latent = SmallLatent();
  without_q_latent.transformer.latent.q_rank = 0;
  for (const ModelOptions& model : {SmallLatent(), without_q_latent}) {
    TrainerOptions options = Options(model);
    EXPECT_EQ(ExpectSameWithGraphs(options, {}, source_).captured, 2);
    options.model.transformer.recompute.latent_heads = true;
    ExpectSameWithGraphs(options, {}, source_);
  }
  LayoutRun how;
  how.layout.pipeline = 2;
  how.layout.schedule = ScheduleKind::kZeroBubbleH1;
  ExpectSameWithGraphs(Options(SmallLatent()), how, source_);
}

TEST_F(CudaGraphsTest, AttentionInChunksIsCapturedToo) {
  for (const ModelOptions& model : {SmallLlama(), SmallLatent()}) {
    TrainerOptions options = Options(model);
    options.model.transformer.recompute.attention_chunk_tokens = 5;
    ExpectSameWithGraphs(options, {}, source_);
  }
}

TEST_F(CudaGraphsTest, ExpertsWithPaddedRowsAreCapturedToo) {
  for (const ModelOptions& model : {SmallMixtral(), SmallBalanced(), SmallDeepSeek()}) {
    const GraphedStage::Counts counts = ExpectSameWithGraphs(PaddedExperts(model), {}, source_);
    EXPECT_EQ(counts.captured, 2);
    EXPECT_EQ(counts.launched, 2 * kMicroBatches * (kSteps - 1) - 2);
  }
}

TEST_F(CudaGraphsTest, ExpertsTrainTheSameInEveryForm) {
  TrainerOptions options = PaddedExperts(SmallMixtral());
  TransformerOptions& transformer = options.model.transformer;
  transformer.moe.balance = BalanceUnit::kMicroBatch;
  transformer.moe.further_balances = {{BalanceUnit::kSample, 0.02f}};
  LayoutRun how;
  how.layout.micro_batch_size = 2;
  ExpectSameWithGraphs(options, how, CountingSource(/*documents=*/true));
  transformer.recompute.experts = true;
  ExpectSameWithGraphs(options, how, source_);
  how.layout.pipeline = 2;
  how.layout.schedule = ScheduleKind::kZeroBubbleH1;
  ExpectSameWithGraphs(options, how, source_);
  transformer.dtype = DType::kBFloat16;
  transformer.moe.ffn_hidden_size = 32;
  transformer.float8.enabled = true;
  ExpectSameWithGraphs(options, {}, source_);
}

// The losses of routers are multiplied by it on the host. It grows after each two steps.
TEST_F(CudaGraphsTest, EachLossScaleHasGraphsOfItsOwnWithExperts) {
  TrainerOptions options = PaddedExperts(SmallMixtral());
  options.model.transformer.dtype = DType::kFloat16;
  DynamicLossScaleOptions dynamic;
  dynamic.initial_scale = 8;
  dynamic.window = 2;
  const absl::StatusOr<LossScaler> scaler = LossScaler::CreateDynamic(dynamic);
  ASSERT_TRUE(scaler.ok());
  LayoutRun how;
  how.scaler = &*scaler;
  EXPECT_GT(ExpectSameWithGraphs(options, how, source_).captured, 2);
}

TEST_F(CudaGraphsTest, LogitsInChunksAreCapturedToo) {
  TrainerOptions options = Options(SmallLlama());
  options.model.logits_chunk = 5;
  ExpectSameWithGraphs(options, {}, source_);
}

// Micro-batches of any sources have the same graphs.
TEST_F(CudaGraphsTest, LossesOfSourcesNeedNoGraphsOfTheirOwn) {
  using Sources = SeveralSources<CountingSource>;
  for (const int64_t chunk : {0, 5}) {
    TrainerOptions options = Options(SmallLlama());
    options.model.logits_chunk = chunk;
    options.num_sources = Sources::kSources;
    EXPECT_EQ(ExpectSameWithGraphs(options, {}, Sources()).captured, 2);
  }
}

TEST_F(CudaGraphsTest, HalfPrecisionTrainsTheSame) {
  TrainerOptions options = Options(SmallLlama());
  options.model.transformer.dtype = DType::kBFloat16;
  ExpectSameWithGraphs(options, {}, source_);
}

// The first step of delayed scales has those of the moment, and is not captured.
TEST_F(CudaGraphsTest, EveryRecipeOfFloat8TrainsTheSame) {
  for (const Float8Recipe recipe :
       {Float8Recipe::kTensorwise, Float8Recipe::kDelayed, Float8Recipe::kBlockwise}) {
    for (ModelOptions model : {SmallLlama(), SmallWideLatent()}) {
      model.transformer.dtype = DType::kBFloat16;
      model.transformer.ffn_hidden_size = 64;
      model.transformer.float8.enabled = true;
      model.transformer.float8.recipe = recipe;
      ExpectSameWithGraphs(Options(model), {}, source_);
    }
  }
}

TEST_F(CudaGraphsTest, ALossScaleThatChangesReachesTheGraphs) {
  TrainerOptions options = Options(SmallGpt2());
  options.model.transformer.dtype = DType::kFloat16;
  DynamicLossScaleOptions dynamic;
  dynamic.initial_scale = 1 << 20;  // the first steps overflow
  dynamic.window = 1;
  dynamic.hysteresis = 1;
  const absl::StatusOr<LossScaler> scaler = LossScaler::CreateDynamic(dynamic);
  ASSERT_TRUE(scaler.ok());
  LayoutRun how;
  how.scaler = &*scaler;
  ExpectSameWithGraphs(options, how, source_);
}

TEST_F(CudaGraphsTest, AnEvaluationBetweenStepsLeavesGraphsAsTheyAre) {
  LayoutRun how;
  how.eval_interval = 2;
  const GraphedStage::Counts counts = ExpectSameWithGraphs(Options(SmallGpt2()), how, source_);
  EXPECT_EQ(counts.captured, 2);
}

TEST_F(CudaGraphsTest, EachNumberOfSequencesHasItsOwnGraphs) {
  const CountingSource documents(/*documents=*/true);
  LayoutRun how;
  how.layout.micro_batch_size = 2;
  const GraphedStage::Counts counts = ExpectSameWithGraphs(Options(SmallGpt2()), how, documents);
  EXPECT_GT(counts.captured, 2);
  EXPECT_GT(counts.enqueued, 2 * kMicroBatches / 2);
}

TEST_F(CudaGraphsTest, BeyondTheMostGraphsPassesRunWithout) {
  TrainerOptions options = Options(SmallGpt2());
  options.cuda_graphs.max_graphs = 1;
  const GraphedStage::Counts counts = ExpectSameWithGraphs(options, {}, source_);
  EXPECT_EQ(counts.captured, 1);
  EXPECT_EQ(counts.launched, kMicroBatches * (kSteps - 1) - 1);
  // Each backward that is not launched makes up for its forward, which was launched, except for the
  // first.
  EXPECT_EQ(counts.caught_up, counts.launched);
  EXPECT_EQ(counts.enqueued, 2 * kMicroBatches + kMicroBatches * (kSteps - 1));
}

TEST_F(CudaGraphsTest, PipelineStagesCaptureTheWorkBetweenMessages) {
  LayoutRun how;
  how.layout.pipeline = 4;
  EXPECT_EQ(ExpectSameWithGraphs(Options(SmallGpt2()), how, source_).caught_up, 0);
  how.layout.pipeline = 2;
  how.layout.chunks = 2;
  ExpectSameWithGraphs(Options(SmallLlama()), how, source_);
}

TEST_F(CudaGraphsTest, ABackwardInTwoPartsIsTwoGraphs) {
  LayoutRun how;
  how.layout.pipeline = 2;
  how.layout.schedule = ScheduleKind::kZeroBubbleH1;
  ExpectSameWithGraphs(Options(SmallGpt2()), how, source_);
  how.layout.schedule = ScheduleKind::kZeroBubbleV;
  how.layout.chunks = 2;
  TrainerOptions options = Options(SmallLlama());
  options.model.layer_recompute = {LayerRecompute::kBlock, 1};
  ExpectSameWithGraphs(options, how, source_);
}

TEST_F(CudaGraphsTest, DataParallelRanksReduceBehindTheGraphs) {
  for (const DataSharding sharding : {DataSharding::kNone, DataSharding::kStates}) {
    LayoutRun how;
    how.layout.data = 2;
    how.layout.sharding = sharding;
    ExpectSameWithGraphs(Options(SmallGpt2()), how, source_);
  }
}

TEST_F(CudaGraphsTest, BertAndT5TrainTheSame) {
  ExpectSameWithGraphs(Options(SmallBert()), {}, PairSource());
  ModelOptions t5 = SmallGpt2();
  t5.kind = ModelKind::kT5;
  t5.num_encoder_layers = 4;
  t5.output_bias = true;
  ModelOptions relative = t5;
  relative.learned_positions = false;
  relative.transformer.relative_positions = {8, 12};
  for (const ModelOptions& model : {t5, relative}) {
    ExpectSameWithGraphs(Options(model), {}, GapSource());
  }
}

}  // namespace
}  // namespace megatron
