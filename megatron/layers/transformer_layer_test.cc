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

// Norms on both sides of a branch, as in Gemma's layers.
TransformerOptions Sandwich() {
  TransformerOptions options = Options();
  options.norm.kind = ops::Norm::kRmsNorm;
  options.norm.zero_centered_gamma = true;
  options.gated = true;
  options.gate = ops::Activation::kGeluTanh;
  options.linear_bias = options.qkv_bias = false;
  options.softmax_scale = 0.7f;
  options.sandwich_norm = true;
  return options;
}

TEST(TransformerLayerTest, GradientsWithNormsOnBothSidesAreThoseOfFiniteDifferences) {
  ExpectLayerGradients(Sandwich());
}

// Norms behind the branches alone, and of all heads together, as in OLMo 2.
TransformerOptions Reordered() {
  TransformerOptions options = Options();
  options.norm.kind = ops::Norm::kRmsNorm;
  options.gated = true;
  options.linear_bias = options.qkv_bias = false;
  options.reordered_norm = options.qk_norm = options.qk_norm_all_heads = true;
  return options;
}

TEST(TransformerLayerTest, GradientsWithNormsBehindBranchesAreThoseOfFiniteDifferences) {
  ExpectLayerGradients(Reordered());
}

// What branches give is gated and multiplied, as in Qwen3-Next and in Granite.
TransformerOptions Multiplied(TransformerOptions options) {
  options.linear_bias = options.qkv_bias = false;
  options.output_gate = true;
  options.residual_multiplier = 0.4f;
  return options;
}

TEST(TransformerLayerTest, GradientsOfMultipliedBranchesAreThoseOfFiniteDifferences) {
  for (const TransformerOptions& options : {Options(), Sandwich(), Reordered()})
    ExpectLayerGradients(Multiplied(options));
}

TEST(TransformerLayerTest, RecomputationChangesNoBit) {
  for (const TransformerOptions& options :
       {Options(), Sandwich(), Reordered(), Multiplied(Options())}) {
    TransformerOptions recomputing = options;
    recomputing.recompute = {true, true, true};
    ExpectSameBits({4, 2}, MakeLayer(options, {}), MakeLayer(recomputing, {}), kHidden);
  }
}

TEST(TransformerLayerTest, TwoTensorParallelRanksEqualOne) {
  TransformerOptions post_norm = Options();
  post_norm.post_norm = true;
  for (const TransformerOptions& options :
       {Options(), post_norm, Sandwich(), Reordered(), Multiplied(Sandwich())}) {
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
