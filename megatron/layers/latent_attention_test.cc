#include "megatron/layers/latent_attention.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/layers/layer_harness.h"
#include "megatron/layers/transformer_layer.h"
#include "megatron/ops/host_tensor.h"

namespace megatron {
namespace {

constexpr int64_t kHidden = 8, kHeads = 2, kOwn = 3, kRotated = 2, kValue = 4;
constexpr int64_t kQRank = 5, kKvRank = 6, kKey = kOwn + kRotated;

TransformerOptions Options(int64_t q_rank = kQRank) {
  TransformerOptions options;
  options.num_layers = 1;
  options.hidden_size = kHidden;
  options.ffn_hidden_size = 12;
  options.num_attention_heads = options.num_query_groups = kHeads;
  options.kv_channels = kKey;
  options.value_channels = kValue;
  options.latent = {kKvRank, q_rank, kRotated};
  options.norm.kind = ops::Norm::kRmsNorm;
  options.qk_norm = true;
  options.rotary = true;
  options.rotary_options.interleaved = true;
  options.linear_bias = options.qkv_bias = false;
  options.hidden_dropout = options.attention_dropout = 0;
  return options;
}

RotaryTables Tables() {
  RotaryOptions options;
  options.interleaved = true;
  return RotaryTables(options, kRotated, /*positions=*/200, {}, nullptr);
}

LayerCalls MakeAttention(TransformerOptions options, const RotaryTables* rotary,
                         const ProcessGroup& group, bool sequence_parallel = false) {
  options.sequence_parallel = sequence_parallel;
  return CallsOf(std::make_shared<LatentAttention>(options, "attention", /*layer=*/0, group),
                 rotary, "attention.linear_proj.bias");
}

// With and without a latent for queries, norms, rotation, a window.
std::vector<TransformerOptions> Kinds() {
  std::vector<TransformerOptions> kinds = {Options(), Options(0), Options(), Options(0), Options()};
  kinds[2].qk_norm = kinds[3].qk_norm = false;
  kinds[3].rotary = false;
  kinds[4].window_size = 2;
  kinds[4].norm.kind = ops::Norm::kLayerNorm;
  kinds[4].linear_bias = true;
  return kinds;
}

TEST(LatentAttentionTest, GradientsAreThoseOfFiniteDifferences) {
  const RotaryTables tables = Tables();
  for (const TransformerOptions& options : Kinds()) {
    LayerHarness harness({4, 1, 3});
    ExpectGradients(&harness, MakeAttention(options, &tables, harness.tensor_group()), kHidden);
  }
}

TEST(LatentAttentionTest, RecomputationChangesNoBit) {
  const RotaryTables tables = Tables();
  for (TransformerOptions options : Kinds()) {
    options.attention_dropout = 0.3f;
    for (const auto& [core, heads] : {std::pair{true, false}, {false, true}, {true, true}}) {
      TransformerOptions again = options;
      again.recompute.core_attention = core;
      again.recompute.latent_heads = heads;
      ExpectSameBits({150, 37}, MakeAttention(options, &tables, {}),
                     MakeAttention(again, &tables, {}), kHidden);
    }
  }
}

TEST(LatentAttentionTest, RecomputedHeadsAreNotKept) {
  const RotaryTables tables = Tables();
  const auto kept = [&](bool heads) {
    TransformerOptions options = Options();
    options.recompute.latent_heads = heads;
    LayerHarness harness({64});
    const LayerCalls calls = MakeAttention(options, &tables, {});
    harness.Bind(calls.parameters);
    harness.Run(calls, ops::HostTensor::Normal({64, kHidden}, DType::kFloat32, 1),
                ops::HostTensor::Normal({64, kHidden}, DType::kFloat32, 2));
    return harness.context().saved->high_water();
  };
  const int64_t heads = 64 * kHeads * (2 * kKey + kOwn + kValue) * SizeOf(DType::kFloat32);
  EXPECT_EQ(kept(false) - kept(true), heads);
}

TEST(LatentAttentionTest, TwoTensorParallelRanksEqualOne) {
  const RotaryTables tables = Tables();
  for (TransformerOptions options : Kinds()) {
    for (bool recompute : {false, true}) {
      options.recompute.core_attention = options.recompute.latent_heads = recompute;
      ExpectTwoRanksEqualOne(
          {5, 3},
          [&](const ProcessGroup& group, bool sequence_parallel) {
            return MakeAttention(options, &tables, group, sequence_parallel);
          },
          kHidden);
    }
  }
}

TransformerOptions InChunks(TransformerOptions options, int64_t tokens) {
  options.recompute.attention_chunk_tokens = tokens;
  return options;
}

TEST(LatentAttentionTest, GradientsInChunksAreThoseOfFiniteDifferences) {
  const RotaryTables tables = Tables();
  for (TransformerOptions options : Kinds()) {
    for (const int64_t chunk : {1, 3, 8}) {
      options.recompute.core_attention = chunk == 3;
      LayerHarness harness({4, 1, 3});
      ExpectGradients(&harness,
                      MakeAttention(InChunks(options, chunk), &tables, harness.tensor_group()),
                      kHidden);
    }
  }
}

TEST(LatentAttentionTest, AChunkOfAllTokensChangesNoBit) {
  const RotaryTables tables = Tables();
  for (TransformerOptions options : Kinds()) {
    options.attention_dropout = 0.3f;
    for (const bool recompute : {false, true}) {
      options.recompute.core_attention = recompute;
      ExpectSameBits({150, 37}, MakeAttention(options, &tables, {}),
                     MakeAttention(InChunks(options, 187), &tables, {}), kHidden);
    }
  }
}

TEST(LatentAttentionTest, ChunksGiveTheResultsOfAllTokensAtOnce) {
  constexpr int64_t kTokens = 187;
  const RotaryTables tables = Tables();
  const auto near = [](const std::vector<double>& got, const std::vector<double>& want) {
    const Shape shape{static_cast<int64_t>(want.size())};
    ops::ExpectNear(ops::HostTensor::Of(shape, DType::kFloat32, got), want, 1e-5);
  };
  for (TransformerOptions options : Kinds()) {
    options.attention_dropout = 0.3f;
    std::vector<LayerHarness::Results> results;
    for (const int64_t chunk : {0, 16, 100}) {
      SCOPED_TRACE(chunk);
      LayerHarness harness({150, 2, 35});
      const LayerCalls calls = MakeAttention(InChunks(options, chunk), &tables, {});
      harness.Bind(calls.parameters);
      results.push_back(
          harness.Run(calls, ops::HostTensor::Normal({kTokens, kHidden}, DType::kFloat32, 1),
                      ops::HostTensor::Normal({kTokens, kHidden}, DType::kFloat32, 2)));
      near(results.back().y, results.front().y);
      near(results.back().dx, results.front().dx);
      for (size_t i = 0; i < calls.parameters.size(); ++i)
        near(results.back().gradients[i], results.front().gradients[i]);
    }
  }
}

// Forward keeps queries, whole keys, values and outputs of all tokens, with the latents. There are
// no projections of all tokens, in which keys' own parts are once more.
TEST(LatentAttentionTest, InChunksTheProjectionsOfAllTokensAreNotKept) {
  const RotaryTables tables = Tables();
  const auto kept = [&](int64_t chunk) {
    LayerHarness harness({64});
    const LayerCalls calls = MakeAttention(InChunks(Options(), chunk), &tables, {});
    harness.Bind(calls.parameters);
    harness.Run(calls, ops::HostTensor::Normal({64, kHidden}, DType::kFloat32, 1),
                ops::HostTensor::Normal({64, kHidden}, DType::kFloat32, 2));
    return harness.context().saved->high_water();
  };
  EXPECT_EQ(kept(0) - kept(16), 64 * kHeads * kOwn * SizeOf(DType::kFloat32));
}

TEST(LatentAttentionTest, TwoTensorParallelRanksEqualOneInChunks) {
  const RotaryTables tables = Tables();
  for (TransformerOptions options : Kinds()) {
    for (bool recompute : {false, true}) {
      options.recompute.core_attention = recompute;
      ExpectTwoRanksEqualOne(
          {5, 3},
          [&](const ProcessGroup& group, bool sequence_parallel) {
            return MakeAttention(InChunks(options, 3), &tables, group, sequence_parallel);
          },
          kHidden);
    }
  }
}

LayerCalls MakeLayer(TransformerOptions options, const RotaryTables* rotary,
                     const ProcessGroup& group, bool sequence_parallel = false) {
  options.sequence_parallel = sequence_parallel;
  return CallsOf(std::make_shared<TransformerLayer>(options, /*layer=*/0, group, ExpertGroups{}),
                 rotary);
}

TEST(LatentAttentionTest, IsPartOfALayer) {
  const RotaryTables tables = Tables();
  LayerHarness harness({4, 2});
  TransformerOptions options = Options();
  options.softmax_scale = 2;  // else the gradients of queries are too small for differences
  ExpectGradients(&harness, MakeLayer(options, &tables, harness.tensor_group()), kHidden);
  TransformerOptions recomputing = options;
  recomputing.recompute = {true, true, true, true};
  ExpectSameBits({4, 2}, MakeLayer(options, &tables, {}), MakeLayer(recomputing, &tables, {}),
                 kHidden);
  ExpectTwoRanksEqualOne(
      {5, 3},
      [&](const ProcessGroup& group, bool sequence_parallel) {
        return MakeLayer(options, &tables, group, sequence_parallel);
      },
      kHidden);
}

// The layer in double precision, a token and a head at a time.
class Reference {
 public:
  Reference(const std::vector<Parameter*>& parameters, const std::vector<ops::HostTensor>& values) {
    for (size_t i = 0; i < parameters.size(); ++i)
      weights_[parameters[i]->name.substr(std::string("attention.").size())] = values[i].Values();
  }

  std::vector<double> Forward(const std::vector<double>& x, int64_t tokens, double scale) const {
    std::vector<double> y;
    std::vector<std::vector<double>> q, kv, shared;
    for (int64_t t = 0; t < tokens; ++t) {
      const std::vector<double> row(x.begin() + t * kHidden, x.begin() + (t + 1) * kHidden);
      const std::vector<double> down = Times("linear_kv_down_proj.weight", row);
      q.push_back(
          Times("linear_q_up_proj.weight", Normalized("linear_q_up_proj.layer_norm_weight",
                                                      Times("linear_q_down_proj.weight", row))));
      kv.push_back(
          Times("linear_kv_up_proj.weight", Normalized("linear_kv_up_proj.layer_norm_weight",
                                                       {down.begin(), down.begin() + kKvRank})));
      shared.push_back({down.begin() + kKvRank, down.end()});
      Turn(t, &shared.back()[0]);
      for (int64_t n = 0; n < kHeads; ++n) Turn(t, &q.back()[n * kKey + kOwn]);
      std::vector<double> context;
      for (int64_t n = 0; n < kHeads; ++n) {
        std::vector<double> p(t + 1);
        double sum = 0;
        for (int64_t j = 0; j <= t; ++j) {
          for (int64_t d = 0; d < kOwn; ++d)
            p[j] += q[t][n * kKey + d] * kv[j][n * (kOwn + kValue) + d];
          for (int64_t d = 0; d < kRotated; ++d) p[j] += q[t][n * kKey + kOwn + d] * shared[j][d];
          sum += p[j] = std::exp(scale * p[j]);
        }
        for (int64_t d = 0; d < kValue; ++d) {
          double out = 0;
          for (int64_t j = 0; j <= t; ++j)
            out += p[j] / sum * kv[j][n * (kOwn + kValue) + kOwn + d];
          context.push_back(out);
        }
      }
      const std::vector<double> out = Times("linear_proj.weight", context);
      y.insert(y.end(), out.begin(), out.end());
    }
    return y;
  }

 private:
  std::vector<double> Times(const std::string& name, const std::vector<double>& x) const {
    const std::vector<double>& weight = weights_.at(name);
    std::vector<double> y(weight.size() / x.size());
    for (size_t i = 0; i < weight.size(); ++i) y[i / x.size()] += weight[i] * x[i % x.size()];
    return y;
  }
  std::vector<double> Normalized(const std::string& name, std::vector<double> x) const {
    double square = 0;
    for (double value : x) square += value * value / static_cast<double>(x.size());
    for (size_t i = 0; i < x.size(); ++i) x[i] *= weights_.at(name)[i] / std::sqrt(square + 1e-5);
    return x;
  }
  // With one pair the angle is the position.
  static void Turn(int64_t position, double* pair) {
    const double c = std::cos(position), s = std::sin(position), a = pair[0], b = pair[1];
    pair[0] = a * c - b * s;
    pair[1] = b * c + a * s;
  }

  std::map<std::string, std::vector<double>> weights_;
};

TEST(LatentAttentionTest, IsTheFormula) {
  constexpr int64_t kTokens = 11;
  const RotaryTables tables = Tables();
  TransformerOptions options = Options();
  options.softmax_scale = 0.7f;
  LayerHarness harness({kTokens});
  const LayerCalls calls = MakeAttention(options, &tables, {});
  harness.Bind(calls.parameters);
  const auto x = ops::HostTensor::Normal({kTokens, kHidden}, DType::kFloat32, 1);
  const ops::HostTensor y({kTokens, kHidden}, DType::kFloat32);
  harness.Forward(calls, x, y);
  ops::ExpectNear(
      y, Reference(calls.parameters, harness.values()).Forward(x.Values(), kTokens, 0.7f), 3e-6);
}

TEST(LatentAttentionTest, HasTheParametersOfMegatronsCheckpoints) {
  std::map<std::string, Shape> shapes;
  const LayerCalls calls = MakeAttention(Options(), nullptr, {});
  for (const Parameter* parameter : calls.parameters)
    shapes[parameter->name] = parameter->sharding.global_shape;
  const std::map<std::string, Shape> want = {
      {"attention.linear_q_down_proj.weight", {kQRank, kHidden}},
      {"attention.linear_q_up_proj.layer_norm_weight", {kQRank}},
      {"attention.linear_q_up_proj.weight", {kHeads, kKey, kQRank}},
      {"attention.linear_kv_down_proj.weight", {kKvRank + kRotated, kHidden}},
      {"attention.linear_kv_up_proj.layer_norm_weight", {kKvRank}},
      {"attention.linear_kv_up_proj.weight", {kHeads, kOwn + kValue, kKvRank}},
      {"attention.linear_proj.weight", {kHidden, kHeads * kValue}},
  };
  EXPECT_EQ(shapes, want);
}

}  // namespace
}  // namespace megatron
