// Trains on the emulated device, whose streams are checked for missing waits and whose copies
// arrive as late as they may, with attention's tensors of all tokens in host memory.
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

LayoutOutcome Train(TrainerOptions options, bool on_host, const LayoutRun& how = {}) {
  LayoutRun run = how;
  run.device = DeviceType::kCuda;
  run.steps = 2;
  run.evaluate = true;
  options.model.attention_on_host = on_host;
  CountingSource source;
  return TrainOnLayout(options, run, source);
}

// Expects that losses, norms, weights and states have the bits of attention in chunks that lie on
// the device.
void ExpectSameBits(const TrainerOptions& options, const LayoutRun& how = {}) {
  SCOPED_TRACE(absl::StrCat(ToString(how.layout), ", chunks of ",
                            options.model.transformer.recompute.attention_chunk_tokens));
  const LayoutOutcome without = Train(options, false, how), with = Train(options, true, how);
  EXPECT_EQ(Bytes(without, "host/activations"), 0);
  EXPECT_GT(Bytes(with, "host/activations"), 0);
  EXPECT_EQ(with.losses, without.losses);
  EXPECT_EQ(with.norms, without.norms);
  EXPECT_EQ(with.evaluation, without.evaluation);
  EXPECT_EQ(with.state, without.state);
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

}  // namespace
}  // namespace megatron
