#include "megatron/layers/transformer_layer.h"

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/layers/layer_harness.h"
#include "megatron/layers/moe/expert_groups.h"
#include "megatron/ops/host_tensor.h"

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

// Both branches read the layer's input, through a norm each as in GPT-NeoX, or through one.
TransformerOptions Parallel(bool shared_norm) {
  TransformerOptions options = Options();
  options.parallel_residual = true;
  options.parallel_shared_norm = shared_norm;
  return options;
}

// One norm with a bias, and biases of the MLP alone, as in GPT-J.
TransformerOptions GptJ() {
  TransformerOptions options = Parallel(/*shared_norm=*/true);
  options.linear_bias = options.qkv_bias = false;
  options.mlp_bias = true;
  return options;
}

// One norm without a bias, and no biases at all, as in Cohere's layers.
TransformerOptions Cohere() {
  TransformerOptions options = GptJ();
  options.gated = true;
  options.mlp_bias = options.norm.bias = false;
  return options;
}

TEST(TransformerLayerTest, GradientsOfParallelBranchesAreThoseOfFiniteDifferences) {
  for (const bool shared_norm : {false, true}) ExpectLayerGradients(Parallel(shared_norm));
  ExpectLayerGradients(GptJ());
  ExpectLayerGradients(Cohere());
}

TEST(TransformerLayerTest, BiasesOfMlpsAloneAndNormsWithoutBiases) {
  const auto names = [](const TransformerOptions& options) {
    std::vector<std::string> biases;
    for (const Parameter* parameter : MakeLayer(options, {}).parameters) {
      const std::string& name = parameter->name;
      if (name.size() > 4 && name.substr(name.size() - 4) == "bias") biases.push_back(name);
    }
    return biases;
  };
  const std::string layer = "decoder.layers.0.";
  EXPECT_EQ(names(GptJ()), (std::vector<std::string>{
                               layer + "self_attention.linear_qkv.layer_norm_bias",
                               layer + "mlp.linear_fc1.bias", layer + "mlp.linear_fc2.bias"}));
  EXPECT_EQ(names(Cohere()), std::vector<std::string>());
}

using Rows = std::vector<double>;

// The norm of each row of x.
Rows Normed(const Rows& x, const Rows& gain, const Rows& offset, double epsilon) {
  Rows y;
  for (size_t row = 0; row < x.size(); row += kHidden) {
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < kHidden; ++i) mean += x[row + i] / kHidden;
    for (int64_t i = 0; i < kHidden; ++i)
      variance += (x[row + i] - mean) * (x[row + i] - mean) / kHidden;
    for (int64_t i = 0; i < kHidden; ++i)
      y.push_back((x[row + i] - mean) / std::sqrt(variance + epsilon) * gain[i] + offset[i]);
  }
  return y;
}

// The product of each row of x with a weight, and a bias.
Rows Product(const Rows& x, const Rows& weight, const Rows& bias) {
  const size_t outputs = bias.size(), inputs = weight.size() / outputs;
  Rows y;
  for (size_t row = 0; row < x.size(); row += inputs) {
    for (size_t o = 0; o < outputs; ++o) {
      double sum = bias[o];
      for (size_t i = 0; i < inputs; ++i) sum += x[row + i] * weight[o * inputs + i];
      y.push_back(sum);
    }
  }
  return y;
}

// Causal attention of one sequence. A token has a query, a key and a value of each of two heads.
Rows Attention(const Rows& qkv) {
  constexpr size_t kHeads = 2, kSize = 4, kRow = 3 * kHeads * kSize;
  Rows y;
  for (size_t t = 0; t < qkv.size() / kRow; ++t) {
    for (size_t head = 0; head < kHeads; ++head) {
      const auto at = [&](size_t token, size_t part, size_t channel) {
        return qkv[token * kRow + (head * 3 + part) * kSize + channel];
      };
      Rows shares;
      double total = 0;
      for (size_t s = 0; s <= t; ++s) {
        double score = 0;
        for (size_t c = 0; c < kSize; ++c) score += at(t, 0, c) * at(s, 1, c);
        shares.push_back(std::exp(score / std::sqrt(static_cast<double>(kSize))));
        total += shares.back();
      }
      for (size_t c = 0; c < kSize; ++c) {
        double sum = 0;
        for (size_t s = 0; s <= t; ++s) sum += shares[s] / total * at(s, 2, c);
        y.push_back(sum);
      }
    }
  }
  return y;
}

double GeluTanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

TEST(TransformerLayerTest, ParallelBranchesAreThoseOfAPlainProgram) {
  constexpr int64_t kTokens = 5;
  for (const bool shared_norm : {false, true}) {
    const TransformerOptions options = Parallel(shared_norm);
    LayerHarness harness({kTokens});
    const LayerCalls calls = MakeLayer(options, harness.tensor_group());
    harness.Bind(calls.parameters);
    const auto value = [&](const std::string& name) -> Rows {
      for (size_t i = 0; i < calls.parameters.size(); ++i) {
        if (calls.parameters[i]->name == "decoder.layers.0." + name)
          return harness.values()[i].Values();
      }
      ADD_FAILURE() << name;
      return Rows(kHidden);
    };
    const auto linear = [&](const std::string& name, const Rows& rows) {
      return Product(rows, value(name + ".weight"), value(name + ".bias"));
    };
    const auto norm = [&](const std::string& name, const Rows& rows) {
      return Normed(rows, value(name + ".layer_norm_weight"), value(name + ".layer_norm_bias"),
                    options.norm.epsilon);
    };
    const ops::HostTensor x =
        ops::HostTensor::Normal({kTokens, kHidden}, DType::kFloat32, /*seed=*/3);
    const ops::HostTensor y({kTokens, kHidden}, DType::kFloat32);
    harness.Forward(calls, x, y);

    const std::string qkv = "self_attention.linear_qkv", fc1 = "mlp.linear_fc1";
    EXPECT_EQ(calls.parameters.size(), shared_norm ? 10u : 12u);
    const Rows normed = norm(qkv, x.Values());
    const Rows attention = linear("self_attention.linear_proj", Attention(linear(qkv, normed)));
    Rows inner = linear(fc1, shared_norm ? normed : norm(fc1, x.Values()));
    for (double& element : inner) element = GeluTanh(element);
    const Rows mlp = linear("mlp.linear_fc2", inner);
    Rows want = x.Values();
    for (size_t i = 0; i < want.size(); ++i) want[i] += attention[i] + mlp[i];
    ops::ExpectNear(y, want, 1e-5);
  }
}

// What branches give is gated and multiplied, as in Qwen3-Next and in Granite.
TransformerOptions Multiplied(TransformerOptions options) {
  options.linear_bias = options.qkv_bias = false;
  options.output_gate = true;
  options.residual_multiplier = 0.4f;
  return options;
}

TEST(TransformerLayerTest, GradientsOfMultipliedBranchesAreThoseOfFiniteDifferences) {
  for (const TransformerOptions& options :
       {Options(), Sandwich(), Reordered(), Parallel(false), Parallel(true)})
    ExpectLayerGradients(Multiplied(options));
}

TEST(TransformerLayerTest, RecomputationChangesNoBit) {
  for (const TransformerOptions& options :
       {Options(), Sandwich(), Reordered(), Parallel(false), Parallel(true), GptJ(), Cohere(),
        Multiplied(Options())}) {
    TransformerOptions recomputing = options;
    recomputing.recompute = {true, true, true};
    ExpectSameBits({4, 2}, MakeLayer(options, {}), MakeLayer(recomputing, {}), kHidden);
  }
}

TEST(TransformerLayerTest, TwoTensorParallelRanksEqualOne) {
  TransformerOptions post_norm = Options();
  post_norm.post_norm = true;
  for (const TransformerOptions& options :
       {Options(), post_norm, Sandwich(), Reordered(), Parallel(false), Parallel(true), GptJ(),
        Cohere(), Multiplied(Sandwich())}) {
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
