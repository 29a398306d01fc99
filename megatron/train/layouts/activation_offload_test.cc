// Trains on the emulated device, whose streams are checked for missing waits, with what layers keep
// for backward in host memory.
#include <cstdint>
#include <map>
#include <string>
#include <utility>
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

TEST_F(ActivationOffloadTest, ClassifiersHaveTheSameBits) {
  source_ = &pairs_;
  for (ModelOptions model : {SmallBert(), SmallPostNormBert()}) {
    SCOPED_TRACE(model.transformer.post_norm);
    model.num_classes = 2;
    TrainerOptions options = Of(model);
    ExpectSameBits(options, {2, 5});
    const LayoutOutcome without = Train(options, 0, {});
    // The optimizer's states and the gradients go to the host as well.
    options.host_fraction = 1;
    options.gradients_on_host = true;
    const LayoutOutcome with = Train(options, 5, {});
    EXPECT_EQ(without.state.count("classification_head.weight"), 1u);
    EXPECT_EQ(with.losses, without.losses);
    EXPECT_EQ(with.norms, without.norms);
    EXPECT_EQ(with.state, without.state);
    EXPECT_GT(Bytes(with, "host/gradients"), 0);
    EXPECT_EQ(Bytes(without, "host/"), 0);
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

using Module = OffloadModule;

TEST_F(ActivationOffloadTest, SingleModulesHaveTheSameBits) {
  for (const Module module : {Module::kAttentionNorm, Module::kQkvLinear, Module::kCoreAttention,
                              Module::kAttentionProj, Module::kMlpNorm, Module::kMlp}) {
    SCOPED_TRACE(absl::StrCat("module ", static_cast<int>(module)));
    TrainerOptions options = Gpt();
    options.model.offload_modules = {module};
    ExpectSameBits(options, {5});
    source_ = &pairs_;
    options = Of(SmallPostNormBert());
    options.model.offload_modules = {module};
    ExpectSameBits(options, {5});
    source_ = &counting_;
  }
  for (const ModelOptions& model : {SmallMixtral(), SmallDeepSeek(), SmallBalanced()}) {
    for (const Module module : {Module::kMlp, Module::kExpertFc1, Module::kMoeActivation}) {
      TrainerOptions options = Of(model);
      options.model.offload_modules = {module};
      ExpectSameBits(options, {5});
    }
  }
  // Both branches read what one norm gives.
  for (const Module module : {Module::kAttentionNorm, Module::kQkvLinear, Module::kMlp}) {
    TrainerOptions options = Gpt();
    options.model.transformer.parallel_residual = true;
    options.model.transformer.parallel_shared_norm = true;
    options.model.offload_modules = {module};
    ExpectSameBits(options, {5});
  }
  TrainerOptions latent = Of(SmallLatent());
  latent.model.offload_modules = {Module::kQkvLinear, Module::kCoreAttention};
  ExpectSameBits(latent, {6});
}

// Bytes that leave are those of the module's tensors, and the arenas lose as many.
TEST_F(ActivationOffloadTest, TheTensorsOfAModuleLeaveAndNoOthers) {
  const TransformerOptions transformer = Gpt().model.transformer;
  const int64_t hidden = CountingSource::kLength * transformer.hidden_size * 4;
  const int64_t inner = CountingSource::kLength * transformer.ffn_hidden_size * 4;
  const LayoutOutcome without = Train(Gpt(), 0, {});
  for (const auto& [module, layer] :
       {std::pair(Module::kAttentionNorm, hidden), std::pair(Module::kQkvLinear, hidden),
        std::pair(Module::kAttentionProj, hidden), std::pair(Module::kMlpNorm, hidden),
        std::pair(Module::kMlp, hidden + 2 * inner)}) {
    SCOPED_TRACE(absl::StrCat("module ", static_cast<int>(module)));
    TrainerOptions options = Gpt();
    options.model.offload_modules = {module};
    const LayoutOutcome with = Train(options, 5, {});
    // The input of the first layer stays.
    const int64_t layers = module == Module::kAttentionNorm ? 4 : 5;
    EXPECT_EQ(Bytes(with, "host/activations"), layers * layer);
    EXPECT_EQ(Bytes(without, "activations/saved") - Bytes(with, "activations/saved"),
              layers * layer);
    EXPECT_EQ(Bytes(with, "activations/windows"), 3 * layer);
  }
}

TEST_F(ActivationOffloadTest, ModulesLeaveBesideRecomputation) {
  TrainerOptions options = Gpt();
  options.model.transformer.recompute.core_attention = true;
  options.model.offload_modules = {Module::kCoreAttention, Module::kMlpNorm, Module::kMlp};
  ExpectSameBits(options, {5});
  options.model.transformer.recompute.norm = options.model.transformer.recompute.mlp = true;
  options.model.offload_modules = {Module::kAttentionNorm, Module::kCoreAttention};
  ExpectSameBits(options, {5});
  TrainerOptions mixture = Of(SmallMixtral());
  mixture.model.transformer.recompute.experts = true;
  mixture.model.offload_modules = {Module::kCoreAttention, Module::kMlp};
  ExpectSameBits(mixture, {5});
  TrainerOptions chunks = Gpt();
  chunks.model.transformer.recompute.attention_chunk_tokens = 8;
  chunks.model.offload_modules = {Module::kCoreAttention, Module::kAttentionProj};
  ExpectSameBits(chunks, {5});
}

TEST_F(ActivationOffloadTest, ModulesOfRanksAndOfMicroBatchesInFlightHaveTheSameBits) {
  TrainerOptions options = Gpt(8);
  options.model.offload_modules = {Module::kCoreAttention, Module::kMlpNorm};
  Layout pipeline;
  pipeline.pipeline = 2;
  ExpectSameBits(options, {2, 4}, On(pipeline));
  pipeline.chunks = 2;
  ExpectSameBits(options, {2}, On(pipeline));
  options.model.transformer.num_layers = 6;
  options.model.offload_modules = {Module::kQkvLinear, Module::kCoreAttention,
                                   Module::kAttentionProj, Module::kMlp};
  Layout tensor;
  tensor.tensor = 2;
  tensor.sequence_parallel = tensor.tp_comm_overlap = true;
  ExpectSameBits(options, {5}, On(tensor));
  Layout context;
  context.context = 2;
  context.context_parallel = ContextParallel::kAllToAll;
  ExpectSameBits(options, {5}, On(context));
  Layout experts;
  experts.data = experts.expert = 2;
  TrainerOptions mixture = Of(SmallMixtral());
  mixture.model.offload_modules = {Module::kExpertFc1, Module::kMoeActivation};
  ExpectSameBits(mixture, {5}, On(experts));
}

TEST_F(ActivationOffloadTest, CodesOfProductsLeaveWithTheirModule) {
  TrainerOptions options = Of(SmallLlama());
  options.model.transformer.dtype = DType::kBFloat16;
  options.model.transformer.ffn_hidden_size = 64;
  options.model.transformer.float8.enabled = true;
  options.model.offload_modules = {Module::kQkvLinear, Module::kAttentionProj, Module::kMlp};
  ExpectSameBits(options, {5});
  TrainerOptions mixture = Of(SmallMixtral());
  mixture.model.transformer.dtype = DType::kBFloat16;
  mixture.model.transformer.moe.ffn_hidden_size = 32;
  mixture.model.transformer.float8.enabled = true;
  for (const Module module : {Module::kExpertFc1, Module::kMoeActivation}) {
    mixture.model.offload_modules = {module};
    ExpectSameBits(mixture, {5});
  }
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
