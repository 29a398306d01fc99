// Tests on a machine without a GPU what a run places on a device: on the emulated device, host code
// that touches device memory crashes, and results equal the CPU's bit for bit. On a real device
// results agree as far as the kernels do.
#include <cstdlib>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/models/model_harness.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/emulated_cuda.h"
#include "megatron/train/layouts/layout_harness.h"

namespace megatron {
namespace {

constexpr int kSteps = 4;

bool Emulated() { return CudaFacts(0).name == kEmulatedDeviceName; }

class CudaPlacementTest : public testing::Test {
 protected:
  void SetUp() override {
    if (CudaDeviceCount() > 0) return;
    if (std::getenv("MEGATRON_REQUIRE_GPU") != nullptr) GTEST_FAIL() << "there is no GPU";
    GTEST_SKIP() << "there is no GPU";
  }

  LayoutOutcome Run(const TrainerOptions& options, LayoutRun how, DeviceType device) {
    how.device = device;
    how.evaluate = true;
    if (options.model.kind == ModelKind::kT5) return TrainOnLayout(options, how, GapSource());
    if (options.model.kind == ModelKind::kBert) return TrainOnLayout(options, how, PairSource());
    if (options.num_sources > 0)
      return TrainOnLayout(options, how, SeveralSources<CountingSource>());
    return TrainOnLayout(options, how, CountingSource());
  }

  // Expects equality on the emulated device, else a difference within a multiple of the tolerance
  // of fp32 kernels.
  static void ExpectSame(double got, double want, double multiple) {
    const double tolerance = Emulated() ? 0 : multiple * 1e-4;
    EXPECT_NEAR(got, want, tolerance * want);
  }

  void ExpectSameOnBoth(const TrainerOptions& options, const LayoutRun& how) {
    SCOPED_TRACE(ToString(how.layout));
    // If sums differ in their last bit, some values that are rounded to 16 bits differ by 2^-9.
    const double multiple = options.model.transformer.dtype == DType::kFloat32 ? 1 : 10;
    const LayoutOutcome cpu = Run(options, how, DeviceType::kCpu);
    const LayoutOutcome cuda = Run(options, how, DeviceType::kCuda);
    for (int i = 0; i < how.steps; ++i) {
      ExpectSame(cuda.losses[i], cpu.losses[i], multiple);
      ExpectSame(cuda.norms[i], cpu.norms[i], 20 * multiple);
    }
    ASSERT_EQ(cuda.sources.size(), cpu.sources.size());
    for (size_t i = 0; i < cpu.sources.size(); ++i) {
      ASSERT_EQ(cuda.sources[i].size(), cpu.sources[i].size());
      for (size_t j = 0; j < cpu.sources[i].size(); ++j) {
        EXPECT_EQ(cuda.sources[i][j].source, cpu.sources[i][j].source);
        EXPECT_EQ(cuda.sources[i][j].weight, cpu.sources[i][j].weight);
        ExpectSame(cuda.sources[i][j].sum, cpu.sources[i][j].sum, multiple);
      }
    }
    ExpectSame(cuda.evaluation, cpu.evaluation, multiple);
    ASSERT_EQ(cuda.token_losses.size(), cpu.token_losses.size());
    for (size_t i = 0; i < cpu.token_losses.size(); ++i)
      ExpectSame(cuda.token_losses[i], cpu.token_losses[i], multiple);
    if (Emulated()) {
      EXPECT_TRUE(cuda.state == cpu.state);
    }
  }
};

LayoutRun Alone() {
  LayoutRun run;
  run.steps = kSteps;
  return run;
}

struct NamedModel {
  const char* name;
  ModelOptions options;
};

ModelOptions Changed(ModelOptions options, void (*change)(ModelOptions*)) {
  change(&options);
  return options;
}

std::vector<NamedModel> Models() {
  return {
      {"GPT-2", SmallGpt2()},
      {"Llama", SmallLlama()},
      {"windows and sinks", SmallWindowed()},
      {"latent attention", SmallLatent()},
      {"layers with a state", SmallHybrid()},
      {"multi-token prediction", SmallMtp()},
      {"multi-token prediction with experts", SmallMtpMixture()},
      {"values narrower than keys",
       Changed(SmallLlama(), [](ModelOptions* o) { o->transformer.value_channels = 6; })},
      {"Mixtral", SmallMixtral()},
      {"DeepSeek", SmallDeepSeek()},
      {"balanced experts", SmallBalanced()},
      {"BERT", SmallBert()},
      {"post-norm BERT", SmallPostNormBert()},
      {"Megatron's T5", SmallMegatronT5()},
      {"T5", SmallT5()},
      {"dropout", Changed(SmallGpt2(),
                          [](ModelOptions* o) {
                            o->transformer.hidden_dropout = o->transformer.attention_dropout = 0.2f;
                          })},
      {"norms of queries and keys",
       Changed(SmallLlama(), [](ModelOptions* o) { o->transformer.qk_norm = true; })},
      {"recomputed parts", Changed(SmallGpt2(),
                                   [](ModelOptions* o) {
                                     o->transformer.recompute = {true, true, true};
                                     o->logits_chunk = 5;
                                   })},
      {"recomputed parts of latent attention",
       Changed(SmallMtpMixture(),
               [](ModelOptions* o) {
                 o->transformer.recompute = {true, true, true, true};
                 o->logits_chunk = 5;
               })},
      {"recomputed layers", Changed(SmallLlama(),
                                    [](ModelOptions* o) {
                                      o->layer_recompute = {LayerRecompute::kUniform, 1};
                                    })},
      {"fp16",
       Changed(SmallGpt2(), [](ModelOptions* o) { o->transformer.dtype = DType::kFloat16; })},
  };
}

TEST_F(CudaPlacementTest, OneRankTrainsAsOnTheCpu) {
  for (const NamedModel& model : Models()) {
    SCOPED_TRACE(model.name);
    ExpectSameOnBoth(TinyRun(model.options, OptimizerOptions::kAdamW), Alone());
  }
}

TEST_F(CudaPlacementTest, RanksWithPartsOfAModelTrainAsOnTheCpu) {
  LayoutRun tensor = Alone(), context = Alone(), experts = Alone(), pipeline = Alone();
  tensor.layout.tensor = context.layout.context = 2;
  tensor.layout.sequence_parallel = true;
  experts.layout.data = experts.layout.expert = 2;
  pipeline.layout.pipeline = 2;
  pipeline.layout.schedule = ScheduleKind::kZeroBubbleH1;
  ExpectSameOnBoth(TinyRun(SmallMegatronT5(), OptimizerOptions::kAdamW), tensor);
  ExpectSameOnBoth(TinyRun(SmallBert(), OptimizerOptions::kAdamW), tensor);
  ExpectSameOnBoth(TinyRun(SmallLlama(), OptimizerOptions::kAdamW), context);
  ExpectSameOnBoth(TinyRun(SmallWindowed(), OptimizerOptions::kAdamW), context);
  ExpectSameOnBoth(TinyRun(SmallWindowed(), OptimizerOptions::kAdamW), tensor);
  ExpectSameOnBoth(TinyRun(SmallLatent(), OptimizerOptions::kAdamW), context);
  ExpectSameOnBoth(TinyRun(SmallLatent(), OptimizerOptions::kAdamW), tensor);
  ExpectSameOnBoth(TinyRun(SmallHybrid(), OptimizerOptions::kAdamW), tensor);
  ExpectSameOnBoth(TinyRun(SmallHybrid(), OptimizerOptions::kAdamW), context);
  ExpectSameOnBoth(TinyRun(SmallHybrid(), OptimizerOptions::kAdamW), pipeline);
  const ModelOptions together =
      Changed(SmallHybrid(), [](ModelOptions* o) { o->transformer.mamba.norm_all_groups = true; });
  ExpectSameOnBoth(TinyRun(together, OptimizerOptions::kAdamW), tensor);
  ExpectSameOnBoth(TinyRun(together, OptimizerOptions::kAdamW), context);
  ExpectSameOnBoth(TinyRun(SmallMtp(), OptimizerOptions::kAdamW), pipeline);
  LayoutRun mtp_stage = Alone();
  mtp_stage.layout.pipeline = 3;
  mtp_stage.layout.layers = {4, 0, 0};
  mtp_stage.layout.mtp_before_last = true;
  ExpectSameOnBoth(TinyRun(SmallMtp(), OptimizerOptions::kAdamW), mtp_stage);
  ExpectSameOnBoth(TinyRun(SmallMtp(), OptimizerOptions::kAdamW), context);
  ExpectSameOnBoth(TinyRun(SmallMixtral(), OptimizerOptions::kAdamW), experts);
  ExpectSameOnBoth(TinyRun(SmallLlama(), OptimizerOptions::kAdamW), pipeline);
}

TEST_F(CudaPlacementTest, LayersThatDropTokensTrainAsOnTheCpu) {
  LayoutRun tensor = Alone(), context = Alone(), experts = Alone();
  tensor.layout.tensor = context.layout.context = 2;
  tensor.layout.sequence_parallel = true;
  experts.layout.data = experts.layout.expert = 2;
  const auto run = [](const ModelOptions& model) {
    TrainerOptions options = TinyRun(model, OptimizerOptions::kAdamW);
    options.random_ltd.min = options.random_ltd.multiple = CountingSource::kLength / 2;
    options.random_ltd.max = CountingSource::kLength;
    options.random_ltd.total_steps = kSteps;
    return options;
  };
  for (const LayoutRun& how : {Alone(), tensor, context}) {
    ExpectSameOnBoth(run(SmallGpt2()), how);
    ExpectSameOnBoth(run(SmallLlama()), how);
  }
  ExpectSameOnBoth(run(SmallMixtral()), experts);
}

TEST_F(CudaPlacementTest, GridsOfRanksTrainAsOnTheCpu) {
  LayoutRun square = Alone(), squares = Alone(), cube = Alone();
  square.layout.tensor = 4;
  squares.layout.tensor = 8;
  square.layout.tensor_side = squares.layout.tensor_side = squares.layout.tensor_depth = 2;
  square.layout.micro_batch_size = 2;
  squares.layout.micro_batch_size = 4;
  cube.layout = squares.layout;
  cube.layout.tensor_cube = true;
  for (const LayoutRun& run : {square, squares, cube}) {
    ExpectSameOnBoth(TinyRun(SmallGpt2(), OptimizerOptions::kAdamW), run);
    ExpectSameOnBoth(TinyRun(SmallLlama(), OptimizerOptions::kAdamW), run);
  }
}

TEST_F(CudaPlacementTest, MasterWeightsAndMomentumTrainAsOnTheCpu) {
  TrainerOptions options = TinyRun(SmallGpt2(), OptimizerOptions::kSgd);
  options.model.transformer.dtype = DType::kBFloat16;
  options.log_params_norm = options.log_num_zeros_in_grad = true;
  ExpectSameOnBoth(options, Alone());
}

TEST_F(CudaPlacementTest, RulesForMatricesTrainAsOnTheCpu) {
  LayoutRun tensor = Alone(), shards = Alone();
  tensor.layout.tensor = shards.layout.data = 2;
  shards.layout.sharding = DataSharding::kStates;
  for (const auto kind : {OptimizerOptions::kMuon, OptimizerOptions::kLamb}) {
    TrainerOptions options = TinyRun(SmallLlama(), kind);
    options.optimizer.muon.nesterov = true;
    options.optimizer.muon.tensor_mode = MuonTensorMode::kDuplicated;
    ExpectSameOnBoth(options, tensor);
    options.optimizer.muon.tensor_mode = MuonTensorMode::kDistributed;
    options.optimizer.muon.product_dtype = DType::kFloat32;
    ExpectSameOnBoth(options, tensor);
    options.model.transformer.dtype = DType::kBFloat16;
    ExpectSameOnBoth(options, shards);
  }
}

// The threshold is so low that each step scales weights.
TEST_F(CudaPlacementTest, QkClipTrainsAsOnTheCpu) {
  LayoutRun run = Alone();
  run.layout.data = run.layout.context = 2;
  run.layout.sharding = DataSharding::kStates;
  TrainerOptions options = TinyRun(SmallLlama(), OptimizerOptions::kSgd);
  options.qk_clip = {true, 1e-3, 0.5};
  ExpectSameOnBoth(options, run);
  options.model.transformer.dtype = DType::kBFloat16;
  ExpectSameOnBoth(options, Alone());
}

TEST_F(CudaPlacementTest, TokensAreScoredAsOnTheCpu) {
  TrainerOptions options = TinyRun(SmallLlama(), OptimizerOptions::kAdamW);
  options.scores_tokens = true;
  const CountingSource source(/*documents=*/true);
  LayoutRun run = Alone();
  run.scored = &source;
  ExpectSameOnBoth(options, run);
  run.layout.tensor = run.layout.context = run.layout.pipeline = 2;
  ExpectSameOnBoth(options, run);
}

TEST_F(CudaPlacementTest, SourcesHaveTheLossesThatTheyHaveOnTheCpu) {
  TrainerOptions options = TinyRun(SmallLlama(), OptimizerOptions::kAdamW);
  options.num_sources = SeveralSources<CountingSource>::kSources;
  LayoutRun run = Alone();
  run.layout.micro_batch_size = 4;
  ExpectSameOnBoth(options, run);
  run.layout.tensor = run.layout.context = run.layout.pipeline = 2;
  ExpectSameOnBoth(options, run);
  options.model.logits_chunk = 5;
  ExpectSameOnBoth(options, Alone());
}

TEST_F(CudaPlacementTest, GradientsSentAsCodesTrainAsOnTheCpu) {
  LayoutRun all = Alone(), shards = Alone();
  all.layout.data = shards.layout.data = 2;
  shards.layout.sharding = DataSharding::kStates;
  TrainerOptions options = TinyRun(SmallLlama(), OptimizerOptions::kAdamW);
  options.data_parallel.compression.type = CompressionType::kInt8;
  ExpectSameOnBoth(options, all);
  ExpectSameOnBoth(options, shards);
}

TEST_F(CudaPlacementTest, EightRanksThatShareOneDeviceTrainAsOnTheCpu) {
  LayoutRun run = Alone();
  run.layout.tensor = run.layout.pipeline = run.layout.data = 2;
  run.layout.sequence_parallel = true;
  run.layout.sharding = DataSharding::kWeights;
  ExpectSameOnBoth(TinyRun(SmallLlama(), OptimizerOptions::kAdamW), run);
}

TEST_F(CudaPlacementTest, ACheckpointMovesBetweenDevices) {
  const TrainerOptions options = TinyRun(SmallGpt2(), OptimizerOptions::kAdamW);
  const LayoutOutcome whole = Run(options, Alone(), DeviceType::kCpu);
  for (const DeviceType first : {DeviceType::kCpu, DeviceType::kCuda}) {
    LayoutRun start = Alone(), rest = Alone();
    start.save = rest.load =
        testing::TempDir() + "/moves" + std::to_string(static_cast<int>(first));
    start.steps = 1;
    rest.steps = kSteps - 1;
    Run(options, start, first);
    const LayoutOutcome outcome =
        Run(options, rest, first == DeviceType::kCpu ? DeviceType::kCuda : DeviceType::kCpu);
    for (int i = 0; i < rest.steps; ++i) ExpectSame(outcome.losses[i], whole.losses[i + 1], 1);
    if (Emulated()) {
      EXPECT_TRUE(outcome.state == whole.state);
    }
  }
}

}  // namespace
}  // namespace megatron
