#include "megatron/layers/transformer_layer.h"

#include <memory>

#include "gtest/gtest.h"
#include "megatron/layers/layer_harness.h"
#include "megatron/layers/moe/expert_groups.h"

namespace megatron {
namespace {

constexpr int64_t kHidden = 8;

TransformerOptions Options() {
  TransformerOptions options;
  options.num_layers = 1;
  options.hidden_size = kHidden;
  options.ffn_hidden_size = 12;
  options.num_attention_heads = options.num_query_groups = 2;
  options.kv_channels = 4;
  options.hidden_dropout = options.attention_dropout = 0;
  return options;
}

LayerCalls MakeLayer(TransformerOptions options, const ProcessGroup& group,
                     bool sequence_parallel = false) {
  options.sequence_parallel = sequence_parallel;
  return CallsOf(std::make_shared<TransformerLayer>(options, /*layer=*/0, group, ExpertGroups{}),
                 /*rotary=*/nullptr);
}

void ExpectLayerGradients(const TransformerOptions& options) {
  LayerHarness harness({4, 2});
  ExpectGradients(&harness, MakeLayer(options, harness.tensor_group()), kHidden);
}

TEST(TransformerLayerTest, GradientsWithNormsInFrontAreThoseOfFiniteDifferences) {
  ExpectLayerGradients(Options());
}

TEST(TransformerLayerTest, GradientsWithNormsBehindAreThoseOfFiniteDifferences) {
  TransformerOptions options = Options();
  options.post_norm = true;
  ExpectLayerGradients(options);
}

TEST(TransformerLayerTest, GradientsOfALlamasLayerAreThoseOfFiniteDifferences) {
  TransformerOptions options = Options();
  options.norm.kind = ops::Norm::kRmsNorm;
  options.gated = true;
  options.linear_bias = options.qkv_bias = false;
  ExpectLayerGradients(options);
}

TEST(TransformerLayerTest, RecomputationChangesNoBit) {
  TransformerOptions recomputing = Options();
  recomputing.recompute = {true, true, true};
  ExpectSameBits({4, 2}, MakeLayer(Options(), {}), MakeLayer(recomputing, {}), kHidden);
}

TEST(TransformerLayerTest, TwoTensorParallelRanksEqualOne) {
  for (bool post_norm : {false, true}) {
    TransformerOptions options = Options();
    options.post_norm = post_norm;
    ExpectTwoRanksEqualOne(
        {5, 3},
        [&](const ProcessGroup& group, bool sequence_parallel) {
          return MakeLayer(options, group, sequence_parallel);
        },
        kHidden);
  }
}

}  // namespace
}  // namespace megatron
