// Trains on the emulated device, whose streams are checked for missing waits and whose copies
// arrive as late as they may, with attention's tensors of all tokens in host memory, and with what
// layers keep besides.
#include <cstdint>
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

TrainerOptions Of(const ModelOptions& model, int64_t chunk) {
  TrainerOptions options = TinyRun(model, OptimizerOptions::kAdamW);
  options.model.transformer.recompute.attention_chunk_tokens = chunk;
  return options;
}

// `layers`: the number of first layers of each part that leave for host memory.
LayoutOutcome Train(TrainerOptions options, bool on_host, const LayoutRun& how = {},
                    int64_t layers = 0) {
  LayoutRun run = how;
  run.device = DeviceType::kCuda;
  run.steps = 2;
  run.evaluate = true;
  options.model.attention_on_host = on_host;
  options.model.num_offloaded_layers = layers;
  CountingSource source;
  return TrainOnLayout(options, run, source);
}

void ExpectTheSame(const LayoutOutcome& with, const LayoutOutcome& without) {
  EXPECT_EQ(with.losses, without.losses);
  EXPECT_EQ(with.norms, without.norms);
  EXPECT_EQ(with.evaluation, without.evaluation);
  EXPECT_EQ(with.state, without.state);
}

// Expects that losses, norms, weights and states have the bits of attention in chunks that lie on
// the device.
void ExpectSameBits(const TrainerOptions& options, const LayoutRun& how = {}) {
  SCOPED_TRACE(absl::StrCat(ToString(how.layout), ", chunks of ",
                            options.model.transformer.recompute.attention_chunk_tokens));
  const LayoutOutcome without = Train(options, false, how), with = Train(options, true, how);
  EXPECT_EQ(Bytes(without, "host/activations"), 0);
  EXPECT_GT(Bytes(with, "host/activations"), 0);
  ExpectTheSame(with, without);
}

// Expects the same where layers leave besides, with each of these numbers of them.
void ExpectSameBitsBeside(const std::vector<int64_t>& numbers, const TrainerOptions& options,
                          const LayoutRun& how = {}) {
  const LayoutOutcome without = Train(options, false, how);
  for (const int64_t layers : numbers) {
    SCOPED_TRACE(absl::StrCat(ToString(how.layout), ", ", layers, " layers"));
    const LayoutOutcome with = Train(options, true, how, layers);
    EXPECT_GT(Bytes(with, "activations/windows"), 0);
    ExpectTheSame(with, without);
  }
}

TrainerOptions Deep(const ModelOptions& model, int64_t num_layers = 6) {
  TrainerOptions options = Of(model, 5);
  options.model.transformer.num_layers = num_layers;
  return options;
}

TEST(AttentionOffloadTest, ChunksOfAnySizeHaveTheSameBits) {
  for (const int64_t chunk : {1, 3, 4, 7, 11, 1000}) {
    ExpectSameBits(Of(SmallGpt2(), chunk));
    ExpectSameBits(Of(SmallWindowed(), chunk));
  }
}

TEST(AttentionOffloadTest, EveryModelHasTheSameBits) {
  for (const ModelOptions& model : {SmallLlama(), SmallWindowed(), SmallLatent(), SmallMixtral(),
                                    SmallDeepSeek(), SmallBalanced()}) {
    ExpectSameBits(Of(model, 5));
  }
  TrainerOptions norms = Of(SmallLlama(), 5);
  norms.model.transformer.qk_norm = true;
  norms.model.transformer.dtype = DType::kBFloat16;
  ExpectSameBits(norms);
}

TEST(AttentionOffloadTest, RecomputationAndDiagnosticsGoWithIt) {
  TrainerOptions options = Of(SmallLlama(), 5);
  options.model.transformer.recompute.mlp_chunk_tokens = 8;
  options.model.transformer.recompute.norm = true;
  options.diagnostics_interval = 1;
  ExpectSameBits(options);
  options.model.transformer.recompute.core_attention = true;
  ExpectSameBits(options);
  options = Of(SmallGpt2(), 5);
  for (const LayerRecompute& recompute :
       {LayerRecompute{LayerRecompute::kUniform, 1}, LayerRecompute{LayerRecompute::kUniform, 2},
        LayerRecompute{LayerRecompute::kBlock, 1}}) {
    options.model.layer_recompute = recompute;
    ExpectSameBits(options);
  }
}

TEST(AttentionOffloadTest, RanksHaveTheSameBits) {
  LayoutRun tensor, pipeline, context, data;
  tensor.layout.tensor = 2;
  ExpectSameBits(Of(SmallGpt2(), 5), tensor);
  ExpectSameBits(Of(SmallLatent(), 5), tensor);
  pipeline.layout.pipeline = 2;
  ExpectSameBits(Of(SmallGpt2(), 5), pipeline);
  context.layout.context = 2;
  context.layout.context_parallel = ContextParallel::kAllToAll;
  for (const int64_t chunk : {8, 24}) ExpectSameBits(Of(SmallGpt2(), chunk), context);
  data.layout.data = 2;
  data.layout.sharding = DataSharding::kWeights;
  data.layout.overlap = true;
  ExpectSameBits(Of(SmallGpt2(), 5), data);
}

// What layers keep of attention, and its temporary tensors of all tokens, are on the host.
TEST(AttentionOffloadTest, TheDeviceHasNoTensorOfAllTokensFromAttention) {
  TrainerOptions options = Of(SmallGpt2(), 4);
  const TransformerOptions& layer = options.model.transformer;
  LayoutRun how;
  how.layout.micro_batch_size = 4;
  const LayoutOutcome without = Train(options, false, how), with = Train(options, true, how);
  const int64_t tokens = how.layout.micro_batch_size * options.packing.seq_length;
  const int64_t hidden = tokens * layer.hidden_size * 4,
                lse = tokens * layer.num_attention_heads * 4;
  // Queries, keys, values and outputs of each layer.
  EXPECT_EQ(Bytes(without, "activations/saved") - Bytes(with, "activations/saved"),
            layer.num_layers * (4 * hidden + lse));
  // One layer at a time has gradients of outputs and of queries besides.
  EXPECT_EQ(Bytes(with, "host/activations"), layer.num_layers * (4 * hidden + lse) + 2 * hidden);
}

// There are three windows. So of more layers that leave, some come back.
TEST(AttentionOffloadTest, LayersLeaveBesideIt) {
  ExpectSameBitsBeside({1, 3, 4, 6}, Deep(SmallGpt2()));
  for (const ModelOptions& model :
       {SmallLlama(), SmallLatent(), SmallMixtral(), SmallDeepSeek(), SmallBalanced()}) {
    ExpectSameBitsBeside({5}, Deep(model));
  }
  ExpectSameBitsBeside({4}, Of(SmallWindowed(), 5));
  TrainerOptions diagnosed = Deep(SmallLlama());
  diagnosed.model.transformer.dtype = DType::kBFloat16;
  diagnosed.diagnostics_interval = 1;
  ExpectSameBitsBeside({5}, diagnosed);
}

TEST(AttentionOffloadTest, RecomputedLayersLeaveBesideIt) {
  TrainerOptions options = Deep(SmallGpt2());
  for (const LayerRecompute& recompute :
       {LayerRecompute{LayerRecompute::kUniform, 1}, LayerRecompute{LayerRecompute::kUniform, 2},
        LayerRecompute{LayerRecompute::kBlock, 2}}) {
    SCOPED_TRACE(absl::StrCat("method ", recompute.method, ", ", recompute.num_layers));
    options.model.layer_recompute = recompute;
    ExpectSameBitsBeside({3, 6}, options);
  }
  options = Deep(SmallLlama());
  options.model.transformer.recompute.mlp_chunk_tokens = 8;
  options.model.transformer.recompute.norm = true;
  options.model.transformer.recompute.core_attention = true;
  ExpectSameBitsBeside({5}, options);
}

TEST(AttentionOffloadTest, SingleModulesLeaveBesideIt) {
  TrainerOptions options = Deep(SmallGpt2());
  options.model.offload_modules = {OffloadModule::kAttentionNorm, OffloadModule::kQkvLinear,
                                   OffloadModule::kMlpNorm};
  ExpectSameBitsBeside({5}, options);
  options = Deep(SmallLatent());
  options.model.offload_modules = {OffloadModule::kQkvLinear, OffloadModule::kMlp};
  ExpectSameBitsBeside({5}, options);
}

// Frozen layers work in the windows, and keep nothing there.
TEST(AttentionOffloadTest, LayersBehindFrozenOnesLeaveBesideIt) {
  TrainerOptions options = Deep(SmallGpt2());
  options.freeze = {"embedding", R"(layers\.[01]\.)"};
  ExpectSameBitsBeside({3, 6}, options);
}

TEST(AttentionOffloadTest, LayersOfRanksLeaveBesideIt) {
  LayoutRun tensor, pipeline, context, data;
  tensor.layout.tensor = 2;
  tensor.layout.sequence_parallel = true;
  ExpectSameBitsBeside({5}, Deep(SmallGpt2()), tensor);
  // Micro-batches in flight share the windows.
  pipeline.layout.pipeline = 2;
  ExpectSameBitsBeside({1, 4}, Deep(SmallGpt2(), 8), pipeline);
  pipeline.layout.chunks = 2;
  ExpectSameBitsBeside({3}, Deep(SmallGpt2(), 12), pipeline);
  context.layout.context = 2;
  for (const ContextParallel kind :
       {ContextParallel::kRing, ContextParallel::kAllToAll, ContextParallel::kGather}) {
    context.layout.context_parallel = kind;
    TrainerOptions options = Of(SmallGpt2(), 8);
    options.model.transformer.num_layers = 6;
    ExpectSameBitsBeside({5}, options, context);
  }
  data.layout.data = 2;
  data.layout.sharding = DataSharding::kWeights;
  data.layout.overlap = true;
  ExpectSameBitsBeside({5}, Deep(SmallGpt2()), data);
}

// What leaves with layers, and their windows, have nothing of attention's.
TEST(AttentionOffloadTest, LayersLeaveWithoutWhatAttentionHasOnTheHost) {
  TrainerOptions options = Of(SmallGpt2(), 4);
  const TransformerOptions& layer = options.model.transformer;
  LayoutRun how;
  how.layout.micro_batch_size = 4;
  const int64_t tokens = how.layout.micro_batch_size * options.packing.seq_length;
  const int64_t hidden = tokens * layer.hidden_size * 4,
                attention = 4 * hidden + tokens * layer.num_attention_heads * 4;
  const LayoutOutcome kept = Train(options, true, how), left = Train(options, true, how, 3),
                      whole = Train(options, false, how, 3);
  EXPECT_EQ(Bytes(whole, "activations/windows") - Bytes(left, "activations/windows"),
            3 * attention);
  EXPECT_EQ(Bytes(left, "host/activations") - Bytes(whole, "host/activations"),
            attention + 2 * hidden);
  // The last layer stays, and so does the first one's input.
  const int64_t leaving = Bytes(left, "host/activations") - Bytes(kept, "host/activations");
  EXPECT_EQ(leaving, Bytes(left, "activations/windows") - hidden);
  EXPECT_EQ(Bytes(kept, "activations/saved") - Bytes(left, "activations/saved"), leaving);
}

// With `full` they are the inputs of layers alone.
TEST(AttentionOffloadTest, MoreLayersTakeNoMoreOfTheDevice) {
  TrainerOptions few = Of(SmallGpt2(), 4), many = few;
  few.model.layer_recompute = many.model.layer_recompute = {LayerRecompute::kUniform, 1};
  few.model.transformer.num_layers = 20;
  many.model.transformer.num_layers = 24;
  LayoutRun how;
  how.layout.micro_batch_size = 4;
  const int64_t hidden =
      how.layout.micro_batch_size * few.packing.seq_length * few.model.transformer.hidden_size * 4;
  const LayoutOutcome less = Train(few, true, how, 20), more = Train(many, true, how, 24);
  EXPECT_EQ(Bytes(more, "activations/"), Bytes(less, "activations/"));
  EXPECT_EQ(Bytes(more, "host/activations") - Bytes(less, "host/activations"), 4 * hidden);
}

}  // namespace
}  // namespace megatron
