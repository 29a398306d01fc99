// Trains on the emulated device with gradients in host memory, to which those of a layer leave
// during backward, and with gradients that are kept in bf16 wherever they lie.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "megatron/models/model_harness.h"
#include "megatron/train/layouts/layout_harness.h"

namespace megatron {
namespace {

int64_t BytesOf(const LayoutOutcome& outcome, const std::string& kind) {
  const auto found = outcome.memory.find(kind);
  return found == outcome.memory.end() ? 0 : found->second;
}

TrainerOptions With(DType dtype, DType gradients, const ModelOptions& model = SmallGpt2(),
                    OptimizerOptions::Kind kind = OptimizerOptions::kAdamW) {
  TrainerOptions options = TinyRun(model, kind);
  options.model.transformer.dtype = dtype;
  options.main_grads_dtype = gradients;
  options.clip_grad = 0.1;
  return options;
}

TrainerOptions Offloaded(TrainerOptions options, bool states_in_file = false) {
  options.gradients_on_host = true;
  options.host_fraction = 1;
  options.state_extent_elements = 1000;
  if (states_in_file) options.state_directory = testing::TempDir();
  return options;
}

LayoutRun On(int tensor, int pipeline, int data, bool overlap = true) {
  LayoutRun how;
  how.layout.tensor = tensor;
  how.layout.sequence_parallel = tensor > 1;
  how.layout.pipeline = pipeline;
  how.layout.data = data;
  how.layout.overlap = overlap;
  if (data > 1) how.layout.sharding = DataSharding::kGradients;
  how.evaluate = true;
  return how;
}

LayoutOutcome Train(const TrainerOptions& options, const LayoutRun& how) {
  LayoutRun run = how;
  run.device = DeviceType::kCuda;
  if (run.steps == 0) run.steps = 3;
  return TrainOnLayout(options, run, CountingSource());
}

void ExpectSame(const LayoutOutcome& with, const LayoutOutcome& without) {
  EXPECT_EQ(with.losses, without.losses);
  EXPECT_EQ(with.norms, without.norms);
  EXPECT_EQ(with.evaluation, without.evaluation);
  EXPECT_TRUE(with.state == without.state);
}

void ExpectSameBits(const TrainerOptions& options, const LayoutRun& how) {
  const LayoutOutcome without = Train(options, how);
  for (const bool states_in_file : {false, true}) {
    SCOPED_TRACE(absl::StrCat(ToString(how.layout), states_in_file ? ", states in files" : ""));
    const LayoutOutcome with = Train(Offloaded(options, states_in_file), how);
    ExpectSame(with, without);
    EXPECT_EQ(BytesOf(with, "gradients"), 0);
    EXPECT_EQ(BytesOf(with, "host/gradients"), BytesOf(without, "gradients"));
    EXPECT_EQ(BytesOf(with, "weights"), BytesOf(without, "weights"));
    EXPECT_GT(BytesOf(with, "gradients/whole"), 0);
    EXPECT_EQ(BytesOf(with, "master weights"), 0);
  }
}

constexpr DType kGradients[] = {DType::kFloat32, DType::kBFloat16};

TEST(GradientOffloadTest, OneRankHasTheSameBitsWithEveryDtypeAndOptimizer) {
  for (const DType gradients : kGradients) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      for (const auto kind :
           {OptimizerOptions::kAdamW, OptimizerOptions::kSgd, OptimizerOptions::kLion}) {
        SCOPED_TRACE(absl::StrCat(SizeOf(dtype), " bytes, gradients of ", SizeOf(gradients),
                                  ", optimizer ", kind));
        ExpectSameBits(With(dtype, gradients, SmallGpt2(), kind), On(1, 1, 1));
      }
    }
    ExpectSameBits(With(DType::kBFloat16, gradients), On(1, 1, 1, /*overlap=*/false));
  }
}

TEST(GradientOffloadTest, RanksThatShareGradientsOutHaveTheSameBits) {
  for (const DType gradients : kGradients) {
    for (const DataSharding sharding : {DataSharding::kGradients, DataSharding::kWeights}) {
      for (const bool overlap : {false, true}) {
        LayoutRun how = On(1, 1, 2, overlap);
        how.layout.sharding = sharding;
        ExpectSameBits(With(DType::kBFloat16, gradients), how);
      }
    }
    LayoutRun instances = On(1, 1, 4);
    instances.layout.optimizer_instances = 2;
    ExpectSameBits(With(DType::kBFloat16, gradients), instances);
  }
}

// The table of SmallGpt2 is on both stages.
TEST(GradientOffloadTest, TensorAndPipelineRanksHaveTheSameBits) {
  for (const DType gradients : kGradients) {
    for (const int data : {1, 2}) ExpectSameBits(With(DType::kBFloat16, gradients), On(2, 2, data));
  }
}

TEST(GradientOffloadTest, EveryScheduleHasTheSameBits) {
  for (const ScheduleKind schedule : {ScheduleKind::kZeroBubbleH1, ScheduleKind::kZeroBubbleV}) {
    LayoutRun how = On(1, 2, 1);
    how.layout.schedule = schedule;
    if (schedule == ScheduleKind::kZeroBubbleV) how.layout.chunks = 2;
    ExpectSameBits(With(DType::kBFloat16, DType::kFloat32), how);
  }
}

TEST(GradientOffloadTest, ExpertsHaveTheSameBits) {
  LayoutRun how = On(1, 1, 2);
  how.layout.expert = 2;
  for (const DType gradients : kGradients)
    ExpectSameBits(With(DType::kBFloat16, gradients, SmallMixtral()), how);
}

TEST(GradientOffloadTest, RemaindersHaveTheSameBits) {
  for (const DType gradients : kGradients) {
    TrainerOptions options = With(DType::kBFloat16, gradients);
    options.optimizer.store_param_remainders = true;
    options.optimizer.exp_avg_dtype = options.optimizer.exp_avg_sq_dtype = DType::kUInt8;
    ExpectSameBits(options, On(1, 1, 1));
  }
}

TEST(GradientOffloadTest, NormsOfGradientsAndUpdatesHaveTheSameBits) {
  for (const DType gradients : kGradients) {
    TrainerOptions options = With(DType::kBFloat16, gradients);
    options.diagnostics_interval = 1;
    const LayoutOutcome without = Train(options, On(1, 1, 1));
    TrainerOptions offloaded = options;
    offloaded.gradients_on_host = true;
    offloaded.host_fraction = 1;
    const LayoutOutcome with = Train(offloaded, On(1, 1, 1));
    ExpectSame(with, without);
    ASSERT_EQ(with.diagnostics.size(), without.diagnostics.size());
    for (size_t step = 0; step < with.diagnostics.size(); ++step) {
      const auto &got = with.diagnostics[step].layers, &want = without.diagnostics[step].layers;
      ASSERT_FALSE(want.empty());
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_EQ(got[i].value, want[i].value) << want[i].name;
    }
  }
}

// Half of the states, all of them, and weights too.
TEST(RoundedGradientsTest, EveryFormOfOffloadHasTheSameBits) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const TrainerOptions options = With(dtype, DType::kBFloat16);
    for (const int data : {1, 2}) {
      LayoutRun how = On(1, 1, data);
      if (data > 1) how.layout.sharding = DataSharding::kWeights;
      const LayoutOutcome without = Train(options, how);
      for (const double fraction : {0.5, 1.0}) {
        for (const bool in_files : {false, true}) {
          SCOPED_TRACE(absl::StrCat(ToString(how.layout), ", ", fraction, " on the host"));
          TrainerOptions states = options;
          states.host_fraction = fraction;
          states.state_extent_elements = 1000;
          if (in_files) states.state_directory = testing::TempDir();
          const LayoutOutcome with = Train(states, how);
          ExpectSame(with, without);
          EXPECT_EQ(BytesOf(with, "gradients"), BytesOf(without, "gradients"));
        }
      }
      for (const bool in_files : {false, true}) {
        SCOPED_TRACE(absl::StrCat(ToString(how.layout), ", weights on the host ", in_files));
        TrainerOptions weights = options;
        weights.host_fraction = 1;
        weights.weights_on_host = true;
        weights.state_extent_elements = 1000;
        if (in_files) weights.state_directory = weights.weight_directory = testing::TempDir();
        const LayoutOutcome with = Train(weights, how);
        ExpectSame(with, without);
        EXPECT_EQ(BytesOf(with, "host/gradients"), BytesOf(without, "gradients"));
        EXPECT_EQ(BytesOf(with, "weights"), 0);
      }
    }
  }
}

}  // namespace
}  // namespace megatron
