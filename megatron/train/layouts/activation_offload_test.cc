// Trains on the emulated device, whose streams are checked for missing waits, with what layers keep
// for backward in host memory.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "megatron/models/model_harness.h"
#include "megatron/train/layouts/layout_harness.h"

namespace megatron {
namespace {

// Bytes of the kinds whose names begin so, at the peak.
int64_t Bytes(const LayoutOutcome& outcome, const std::string& prefix) {
  int64_t bytes = 0;
  for (const auto& [name, held] : outcome.memory)
    bytes += absl::StartsWith(name, prefix) ? held : 0;
  return bytes;
}

class ActivationOffloadTest : public testing::Test {
 protected:
  static TrainerOptions Gpt(int64_t num_layers = 6) { return Of(SmallGpt2(), num_layers); }
  static TrainerOptions Of(const ModelOptions& model, int64_t num_layers = 6) {
    TrainerOptions options = TinyRun(model, OptimizerOptions::kAdamW);
    options.model.transformer.num_layers = num_layers;
    return options;
  }
  static LayoutRun On(const Layout& layout) {
    LayoutRun run;
    run.layout = layout;
    return run;
  }

  LayoutOutcome Train(TrainerOptions options, int64_t layers, const LayoutRun& how) {
    LayoutRun run = how;
    run.device = DeviceType::kCuda;
    if (run.steps == 0) run.steps = 2;
    run.evaluate = true;
    options.model.num_offloaded_layers = layers;
    return TrainOnLayout(options, run, *source_);
  }

  // Expects that the bits of losses, norms, weights and states do not depend on these numbers of
  // offloaded layers.
  void ExpectSameBits(const TrainerOptions& options, const std::vector<int64_t>& numbers,
                      const LayoutRun& how = {}) {
    const LayoutOutcome without = Train(options, 0, how);
    EXPECT_EQ(Bytes(without, "host/activations") + Bytes(without, "activations/windows"), 0);
    int64_t less = 0;
    for (const int64_t layers : numbers) {
      SCOPED_TRACE(absl::StrCat(ToString(how.layout), ", ", layers, " layers"));
      const LayoutOutcome with = Train(options, layers, how);
      EXPECT_EQ(with.losses, without.losses);
      EXPECT_EQ(with.norms, without.norms);
      EXPECT_EQ(with.evaluation, without.evaluation);
      EXPECT_EQ(with.state, without.state);
      EXPECT_LE(Bytes(with, "activations/saved"), Bytes(without, "activations/saved"));
      EXPECT_GT(Bytes(with, "host/activations"), less);
      less = Bytes(with, "host/activations");
    }
  }

  CountingSource counting_;
  PairSource pairs_;
  const SampleSource* source_ = &counting_;
};

TEST_F(ActivationOffloadTest, AnyNumberOfLayersHasTheSameBits) {
  ExpectSameBits(Gpt(), {1, 2, 3, 4, 5, 6});
}

TEST_F(ActivationOffloadTest, EveryModelHasTheSameBits) {
  for (const ModelOptions& model :
       {SmallLlama(), SmallMixtral(), SmallDeepSeek(), SmallBalanced()}) {
    ExpectSameBits(Of(model), {2, 5});
  }
  source_ = &pairs_;
  for (const ModelOptions& model : {SmallBert(), SmallPostNormBert()}) {
    ExpectSameBits(Of(model), {2, 5});
  }
}

TEST_F(ActivationOffloadTest, ReducedPrecisionHasTheSameBits) {
  TrainerOptions options = Of(SmallLlama());
  options.model.transformer.dtype = DType::kBFloat16;
  options.model.transformer.ffn_hidden_size = 64;
  ExpectSameBits(options, {5});
  for (const Float8Recipe recipe :
       {Float8Recipe::kTensorwise, Float8Recipe::kDelayed, Float8Recipe::kBlockwise}) {
    options.model.transformer.float8.enabled = true;
    options.model.transformer.float8.recipe = recipe;
    ExpectSameBits(options, {5});
  }
}

TEST_F(ActivationOffloadTest, RecomputedLayersOffloadTheirInputs) {
  for (const LayerRecompute& recompute :
       {LayerRecompute{LayerRecompute::kUniform, 1}, LayerRecompute{LayerRecompute::kUniform, 2},
        LayerRecompute{LayerRecompute::kBlock, 2}}) {
    for (const ModelOptions& model : {SmallGpt2(), SmallBalanced()}) {
      TrainerOptions options = Of(model);
      options.model.layer_recompute = recompute;
      SCOPED_TRACE(absl::StrCat("method ", recompute.method, ", ", recompute.num_layers));
      ExpectSameBits(options, {3, 5});
    }
  }
  TrainerOptions options = Gpt();
  options.model.transformer.recompute = {true, true, true};
  ExpectSameBits(options, {3, 5});
}

TEST_F(ActivationOffloadTest, MicroBatchesInFlightHavePlacesOfTheirOwn) {
  Layout layout;
  layout.pipeline = 2;
  for (const ScheduleKind kind : {ScheduleKind::kGPipe, ScheduleKind::kOneForwardOneBackward}) {
    layout.schedule = kind;
    ExpectSameBits(Gpt(8), {1, 4}, On(layout));
  }
  layout.chunks = 2;
  ExpectSameBits(Gpt(12), {1, 3}, On(layout));
  // A part without layers of its own offloads none.
  layout.chunks = 1;
  layout.layers = {1, 5};
  ExpectSameBits(Gpt(), {4}, On(layout));
}

TEST_F(ActivationOffloadTest, RanksHaveTheSameBits) {
  Layout tensor;
  tensor.tensor = 2;
  tensor.sequence_parallel = tensor.tp_comm_overlap = true;
  ExpectSameBits(Gpt(), {5}, On(tensor));
  for (const ContextParallel kind :
       {ContextParallel::kRing, ContextParallel::kAllToAll, ContextParallel::kGather}) {
    Layout context;
    context.context = 2;
    context.context_parallel = kind;
    ExpectSameBits(Gpt(), {5}, On(context));
  }
  for (const bool overlap : {false, true}) {
    Layout data;
    data.data = 2;
    data.sharding = DataSharding::kWeights;
    data.overlap = overlap;
    ExpectSameBits(Gpt(), {5}, On(data));
  }
  Layout experts;
  experts.data = experts.expert = 2;
  ExpectSameBits(Of(SmallMixtral()), {5}, On(experts));
}

TEST_F(ActivationOffloadTest, StatesInHostMemoryAndMeasuredStepsGoWithIt) {
  TrainerOptions options = Gpt();
  options.host_fraction = 1;
  options.diagnostics_interval = 1;
  ExpectSameBits(options, {5});
}

// Three windows and the layer that stays are as much as four layers keep.
TEST_F(ActivationOffloadTest, ManyLayersTrainInTheMemoryOfAFew) {
  LayoutRun how;
  how.layout.micro_batch_size = 4;
  const LayoutOutcome few = Train(Gpt(5), 0, how);
  const LayoutOutcome many = Train(Gpt(20), 19, how), more = Train(Gpt(24), 23, how);
  EXPECT_LT(Bytes(many, "activations/"), Bytes(few, "activations/"));
  EXPECT_EQ(Bytes(more, "activations/"), Bytes(many, "activations/"));
  EXPECT_GT(Bytes(more, "host/activations"), Bytes(many, "host/activations"));
}

}  // namespace
}  // namespace megatron
