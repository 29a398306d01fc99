#include "megatron/layers/self_attention.h"

#include <cmath>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/layers/layer_harness.h"
#include "megatron/ops/host_tensor.h"

namespace megatron {
namespace {

constexpr int64_t kHidden = 8, kHeads = 4, kHeadSize = 4;

TransformerOptions Options(int64_t query_groups = kHeads) {
  TransformerOptions options;
  options.hidden_size = kHidden;
  options.num_attention_heads = kHeads;
  options.num_query_groups = query_groups;
  options.kv_channels = kHeadSize;
  options.attention_dropout = 0;
  return options;
}

LayerCalls MakeAttention(TransformerOptions options, const RotaryTables* rotary,
                         const ProcessGroup& group, bool sequence_parallel = false) {
  options.sequence_parallel = sequence_parallel;
  return CallsOf(std::make_shared<SelfAttention>(options, "attention", /*layer=*/0, group), rotary,
                 "attention.linear_proj.bias");
}

void ExpectAttentionGradients(const TransformerOptions& options,
                              const RotaryTables* rotary = nullptr) {
  LayerHarness harness({4, 1, 3});
  ExpectGradients(&harness, MakeAttention(options, rotary, harness.tensor_group()), kHidden);
}

RotaryTables Tables(const RotaryOptions& options = {}) {
  return RotaryTables(options, kHeadSize, /*positions=*/8, {}, nullptr);
}

TEST(SelfAttentionTest, GradientsAreThoseOfFiniteDifferences) {
  ExpectAttentionGradients(Options());
}

TEST(SelfAttentionTest, GradientsOfAttentionInBothDirectionsAreThoseOfFiniteDifferences) {
  TransformerOptions options = Options();
  options.causal = false;
  ExpectAttentionGradients(options);
}

// Returns the output of a layer for the same input and weights.
std::vector<double> Output(const TransformerOptions& options, const RotaryTables* rotary) {
  LayerHarness harness({6, 2});
  const LayerCalls calls = MakeAttention(options, rotary, {});
  harness.Bind(calls.parameters);
  const auto x = ops::HostTensor::Normal({8, kHidden}, DType::kFloat32, 1);
  const ops::HostTensor y({8, kHidden}, DType::kFloat32);
  harness.Forward(calls, x, y);
  return y.Values();
}

TEST(SelfAttentionTest, GradientsOfGroupedQueriesAreThoseOfFiniteDifferences) {
  for (int64_t groups : {1, 2}) ExpectAttentionGradients(Options(groups));
}

TEST(SelfAttentionTest, GradientsThroughRotationAreThoseOfFiniteDifferences) {
  for (bool interleaved : {false, true}) {
    RotaryOptions rotary;
    rotary.interleaved = interleaved;
    const RotaryTables tables = Tables(rotary);
    TransformerOptions options = Options(2);
    options.rotary = true;
    ExpectAttentionGradients(options, &tables);
  }
}

TEST(SelfAttentionTest, GradientsThroughNormsOfQueriesAndKeysAreThoseOfFiniteDifferences) {
  const RotaryTables tables = Tables();
  TransformerOptions options = Options(2);
  options.rotary = options.qk_norm = true;
  options.norm.kind = ops::Norm::kRmsNorm;
  ExpectAttentionGradients(options, &tables);
}

TEST(SelfAttentionTest, GradientsThroughNormsOfAllHeadsTogetherAreThoseOfFiniteDifferences) {
  const RotaryTables tables = Tables();
  for (const auto kind : {ops::Norm::kRmsNorm, ops::Norm::kLayerNorm}) {
    for (int64_t groups : {1, 2, 4}) {
      TransformerOptions options = Options(groups);
      options.rotary = options.qk_norm = options.qk_norm_all_heads = true;
      options.norm.kind = kind;
      ExpectAttentionGradients(options, &tables);
    }
  }
}

TEST(SelfAttentionTest, NormsOfAllHeadsAreOthersThanOfEach) {
  TransformerOptions each = Options(2);
  each.qk_norm = true;
  TransformerOptions all = each;
  all.qk_norm_all_heads = true;
  EXPECT_NE(Output(each, nullptr), Output(all, nullptr));
}

// Queries and keys are normalized by gains of each head.
TransformerOptions WithGainsOfHeads(int64_t groups, ops::Norm::Kind kind = ops::Norm::kLayerNorm) {
  TransformerOptions options = Options(groups);
  options.rotary = options.qk_norm = options.qk_norm_each_head = true;
  options.norm.kind = kind;
  return options;
}

TEST(SelfAttentionTest, GradientsOfGainsOfEachHeadAreThoseOfFiniteDifferences) {
  const RotaryTables tables = Tables();
  for (const auto kind : {ops::Norm::kRmsNorm, ops::Norm::kLayerNorm}) {
    for (const int64_t groups : {1, 2, 4})
      ExpectAttentionGradients(WithGainsOfHeads(groups, kind), &tables);
  }
}

TEST(SelfAttentionTest, GainsOfEachHeadMultiplyThatHead) {
  const RotaryTables tables = Tables();
  const TransformerOptions options = WithGainsOfHeads(2);
  TransformerOptions alike = options;
  alike.qk_norm_each_head = alike.norm.bias = false;
  LayerHarness harness({6, 2}), harness_alike({6, 2});
  const LayerCalls calls = MakeAttention(options, &tables, {}),
                   calls_alike = MakeAttention(alike, &tables, {});
  harness.Bind(calls.parameters);
  harness_alike.Bind(calls_alike.parameters);
  ASSERT_EQ(calls.parameters.size(), calls_alike.parameters.size());
  size_t queries = 0;  // the parameter of the queries' gains
  for (size_t i = 0; i < calls.parameters.size(); ++i) {
    ASSERT_EQ(calls.parameters[i]->name, calls_alike.parameters[i]->name);
    if (calls.parameters[i]->name == "attention.q_layernorm.weight") queries = i;
    ops::HostTensor& gains = harness.values()[i];
    const ops::HostTensor& of_all = harness_alike.values()[i];
    for (int64_t j = 0; j < gains.numel(); ++j) gains.Set(j, of_all.Get(j % of_all.numel()));
  }
  EXPECT_EQ(calls.parameters[queries]->sharding.global_shape, (Shape{kHeads, kHeadSize}));
  const auto x = ops::HostTensor::Normal({8, kHidden}, DType::kFloat32, 1);
  const ops::HostTensor y({8, kHidden}, DType::kFloat32), z({8, kHidden}, DType::kFloat32);
  harness.Forward(calls, x, y);
  harness_alike.Forward(calls_alike, x, z);
  EXPECT_EQ(y.Bytes(), z.Bytes());
  // The last channel of the last head alone.
  harness.values()[queries].Set(kHeads * kHeadSize - 1, 5);
  harness.Forward(calls, x, y);
  EXPECT_NE(y.Bytes(), z.Bytes());
}

TEST(SelfAttentionTest, TwoTensorParallelRanksWithGainsOfEachHeadEqualOne) {
  const RotaryTables tables = Tables();
  for (const int64_t groups : {4, 2}) {
    ExpectTwoRanksEqualOne(
        {5, 3},
        [&](const ProcessGroup& group, bool sequence_parallel) {
          return MakeAttention(WithGainsOfHeads(groups), &tables, group, sequence_parallel);
        },
        kHidden);
  }
}

TEST(SelfAttentionTest, GradientsThroughGatesAreThoseOfFiniteDifferences) {
  const RotaryTables tables = Tables();
  for (int64_t groups : {1, 2, 4}) {
    for (const bool recompute : {false, true}) {
      TransformerOptions options = Options(groups);
      options.output_gate = options.rotary = options.qk_norm = true;
      options.recompute.core_attention = recompute;
      ExpectAttentionGradients(options, &tables);
    }
  }
}

// Where the gates' rows are 0 and their biases b, all that attention gives is multiplied by the
// sigmoid of b.
TEST(SelfAttentionTest, AGateMultipliesWhatItsHeadGivesByItsSigmoid) {
  constexpr int64_t kGroups = 2, kOfGroup = kHeads / kGroups;
  TransformerOptions options = Options(kGroups);
  LayerHarness plain({6, 2}), gated({6, 2});
  const LayerCalls plain_calls = MakeAttention(options, nullptr, {});
  options.output_gate = true;
  const LayerCalls gated_calls = MakeAttention(options, nullptr, {});
  plain.Bind(plain_calls.parameters);
  gated.Bind(gated_calls.parameters);
  ASSERT_EQ(gated_calls.parameters[0]->name, "attention.linear_qkv.weight");
  ASSERT_EQ(gated_calls.parameters[1]->name, "attention.linear_qkv.bias");
  ASSERT_EQ(gated_calls.parameters[0]->sharding.global_shape,
            (Shape{kGroups, 2 * kOfGroup + 2, kHeadSize, kHidden}));
  constexpr double kBias = 0.75;
  for (int64_t group = 0; group < kGroups; ++group) {
    for (int64_t slot = 0; slot < 2 * kOfGroup + 2; ++slot) {
      const bool is_gate = slot >= kOfGroup && slot < 2 * kOfGroup;
      const int64_t from = slot < kOfGroup ? slot : slot - kOfGroup;
      for (int64_t d = 0; d < kHeadSize; ++d) {
        const int64_t row = (group * (2 * kOfGroup + 2) + slot) * kHeadSize + d;
        const int64_t plain_row = (group * (kOfGroup + 2) + from) * kHeadSize + d;
        gated.values()[1].Set(row, is_gate ? kBias : plain.values()[1].Get(plain_row));
        for (int64_t h = 0; h < kHidden; ++h) {
          gated.values()[0].Set(row * kHidden + h,
                                is_gate ? 0 : plain.values()[0].Get(plain_row * kHidden + h));
        }
      }
    }
  }
  const auto x = ops::HostTensor::Normal({8, kHidden}, DType::kFloat32, 1);
  const ops::HostTensor y({8, kHidden}, DType::kFloat32), z({8, kHidden}, DType::kFloat32);
  plain.Forward(plain_calls, x, y);
  gated.Forward(gated_calls, x, z);
  std::vector<double> want = y.Values();
  for (double& value : want) value /= 1 + std::exp(-kBias);
  ops::ExpectNear(z, want, 3e-6);
}

TEST(SelfAttentionTest, GradientsOfCappedScoresAreThoseOfFiniteDifferences) {
  for (const float cap : {0.3f, 20.0f}) {
    TransformerOptions options = Options(2);
    options.score_softcap = cap;
    ExpectAttentionGradients(options);
    options.window_size = 2;
    ExpectAttentionGradients(options);
  }
  TransformerOptions plain = Options(2), capped = plain;
  capped.score_softcap = 0.3f;
  EXPECT_NE(Output(plain, nullptr), Output(capped, nullptr));
}

TEST(SelfAttentionTest, GradientsOfValuesThatAreNotAsWideAsKeysAreThoseOfFiniteDifferences) {
  const RotaryTables tables = Tables();
  for (int64_t groups : {1, 2, 4}) {
    for (int64_t value_channels : {3, 6}) {
      TransformerOptions options = Options(groups);
      options.rotary = true;
      options.value_channels = value_channels;
      options.sink = AttentionSink::kLearned;
      ExpectAttentionGradients(options, &tables);
    }
  }
}

TEST(SelfAttentionTest, GradientsInWindowsAndOfSinksAreThoseOfFiniteDifferences) {
  for (const AttentionSink sink : {AttentionSink::kZero, AttentionSink::kLearned}) {
    TransformerOptions options = Options(2);
    options.window_size = 2;
    options.sink = sink;
    ExpectAttentionGradients(options);
  }
}

TEST(SelfAttentionTest, LayersSeeWindowsAndRotateAsTheirOptionsSay) {
  RotaryOptions rotary;
  rotary.local_base = 3;
  const RotaryTables tables = Tables(rotary), plain = Tables();
  TransformerOptions whole = Options(), window = Options();
  whole.rotary = window.rotary = true;
  window.window_size = 2;
  TransformerOptions other = window, still = whole;
  other.window_layers = {false};
  still.rotary_layers = {false};
  EXPECT_EQ(Output(other, &tables), Output(whole, &plain));
  EXPECT_NE(Output(window, &plain), Output(whole, &plain));
  EXPECT_NE(Output(window, &tables), Output(window, &plain));
  RotaryOptions of_window;
  of_window.base = 3;
  const RotaryTables local = Tables(of_window);
  EXPECT_EQ(Output(window, &tables), Output(window, &local));
  EXPECT_EQ(Output(still, &tables), Output(whole, nullptr));
}

TransformerOptions InChunks(TransformerOptions options, int64_t tokens) {
  options.recompute.attention_chunk_tokens = tokens;
  return options;
}

// Options of all kinds of queries and keys.
std::vector<TransformerOptions> Kinds() {
  std::vector<TransformerOptions> kinds = {Options(),  Options(2), Options(1), Options(2),
                                           Options(2), Options(),  Options(2), Options(1)};
  kinds[1].rotary = true;
  kinds[2].rotary = kinds[2].recompute.core_attention = true;
  kinds[3].rotary = kinds[3].qk_norm = true;
  kinds[3].norm.kind = ops::Norm::kRmsNorm;
  kinds[4].window_size = 2;
  kinds[4].sink = AttentionSink::kLearned;
  kinds[4].score_softcap = 1;
  kinds[5].window_size = 20;
  kinds[5].sink = AttentionSink::kZero;
  kinds[5].recompute.core_attention = true;
  kinds[6].rotary = kinds[6].qk_norm = true;
  kinds[6].value_channels = 3;
  kinds[7].value_channels = 6;
  kinds[7].recompute.core_attention = true;
  kinds.push_back(WithGainsOfHeads(2));
  return kinds;
}

const RotaryTables* TablesOf(const TransformerOptions& options, const RotaryTables& tables) {
  return options.rotary ? &tables : nullptr;
}

TEST(SelfAttentionTest, GradientsInChunksAreThoseOfFiniteDifferences) {
  const RotaryTables tables = Tables();
  for (const TransformerOptions& options : Kinds()) {
    for (const int64_t chunk : {1, 3, 5, 8})
      ExpectAttentionGradients(InChunks(options, chunk), TablesOf(options, tables));
  }
}

TEST(SelfAttentionTest, AChunkOfAllTokensChangesNoBit) {
  const RotaryTables tables({}, kHeadSize, /*positions=*/200, {}, nullptr);
  for (TransformerOptions options : Kinds()) {
    options.attention_dropout = 0.3f;
    const RotaryTables* const rotary = TablesOf(options, tables);
    ExpectSameBits({150, 37}, MakeAttention(options, rotary, {}),
                   MakeAttention(InChunks(options, 187), rotary, {}), kHidden);
  }
}

TEST(SelfAttentionTest, ChunksGiveTheResultsOfAllTokensAtOnce) {
  constexpr int64_t kTokens = 187;
  const RotaryTables tables({}, kHeadSize, /*positions=*/200, {}, nullptr);
  const auto near = [](const std::vector<double>& got, const std::vector<double>& want) {
    const Shape shape{static_cast<int64_t>(want.size())};
    ops::ExpectNear(ops::HostTensor::Of(shape, DType::kFloat32, got), want, 3e-6);
  };
  for (TransformerOptions options : Kinds()) {
    // The masks are keyed by the places of queries and keys, whatever chunks they are in.
    options.attention_dropout = 0.3f;
    std::vector<LayerHarness::Results> results;
    for (const int64_t chunk : {0, 1, 16, 64, 100}) {
      SCOPED_TRACE(chunk);
      LayerHarness harness({150, 2, 35});
      const LayerCalls calls =
          MakeAttention(InChunks(options, chunk), TablesOf(options, tables), {});
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

TEST(SelfAttentionTest, TemporaryMemoryInChunksGrowsWithTheGradientsOfQueriesAndOutputs) {
  // Returns the most bytes of temporary memory of a forward and a backward.
  const auto bytes = [](int tokens, int64_t chunk) {
    LayerHarness harness({tokens});
    const LayerCalls calls = MakeAttention(InChunks(Options(2), chunk), nullptr, {});
    harness.Bind(calls.parameters);
    const auto rows = ops::HostTensor::Normal({tokens, kHidden}, DType::kFloat32, 1);
    harness.Run(calls, rows, rows);
    return harness.context().scratch->high_water() - rows.tensor().bytes();
  };
  // Besides these gradients, each chunk has its places and its boundaries of sequences.
  constexpr int64_t kOfAToken = 2 * kHeads * kHeadSize * 4, kOfAChunk = 2 * 128;
  EXPECT_EQ(bytes(256, 16) - bytes(64, 16), 192 * kOfAToken + 12 * kOfAChunk);
  // At once, gradients of keys and values come on top.
  EXPECT_GT(bytes(256, 0) - bytes(64, 0), 192 * kOfAToken + 12 * kOfAChunk);
}

TEST(SelfAttentionTest, ATokenSeesOnlyEarlierTokensOfItsSequence) {
  LayerHarness harness({4, 4});
  const LayerCalls calls = MakeAttention(Options(), nullptr, harness.tensor_group());
  harness.Bind(calls.parameters);
  auto x = ops::HostTensor::Normal({8, kHidden}, DType::kFloat32, 1);
  const ops::HostTensor y({8, kHidden}, DType::kFloat32);
  harness.Forward(calls, x, y);
  const std::vector<double> before = y.Values();
  constexpr int64_t kChanged = 2;  // the third token of the first sequence
  for (int64_t h = 0; h < kHidden; ++h) x.Set(kChanged * kHidden + h, 1);
  harness.Forward(calls, x, y);
  for (int64_t token = 0; token < 8; ++token) {
    bool same = true;
    for (int64_t h = 0; h < kHidden; ++h)
      same = same && y.Get(token * kHidden + h) == before[token * kHidden + h];
    EXPECT_EQ(same, token < kChanged || token >= 4) << "token " << token;
  }
}

TEST(SelfAttentionTest, TwoTensorParallelRanksEqualOne) {
  const RotaryTables tables = Tables();
  // With one group two ranks share it, each with half of its queries.
  for (const auto& [groups, value_channels] :
       {std::pair{4, 0}, std::pair{2, 0}, std::pair{1, 0}, std::pair{2, 3}, std::pair{1, 6}}) {
    SCOPED_TRACE(testing::Message() << groups << " query groups");
    TransformerOptions options = Options(groups);
    options.value_channels = value_channels;
    options.rotary = true;
    options.window_size = 2;
    options.sink = AttentionSink::kLearned;
    ExpectTwoRanksEqualOne(
        {5, 3},
        [&](const ProcessGroup& group, bool sequence_parallel) {
          return MakeAttention(options, &tables, group, sequence_parallel);
        },
        kHidden);
  }
}

TEST(SelfAttentionTest, TwoTensorParallelRanksWithGatesEqualOne) {
  const RotaryTables tables = Tables();
  for (const int64_t groups : {4, 2}) {
    TransformerOptions options = Options(groups);
    options.output_gate = options.rotary = options.qk_norm = true;
    ExpectTwoRanksEqualOne(
        {5, 3},
        [&](const ProcessGroup& group, bool sequence_parallel) {
          return MakeAttention(options, &tables, group, sequence_parallel);
        },
        kHidden);
  }
}

TEST(SelfAttentionTest, TwoTensorParallelRanksEqualOneInChunks) {
  const RotaryTables tables = Tables();
  for (TransformerOptions options : Kinds()) {
    ExpectTwoRanksEqualOne(
        {5, 3},
        [&](const ProcessGroup& group, bool sequence_parallel) {
          return MakeAttention(InChunks(options, 3), TablesOf(options, tables), group,
                               sequence_parallel);
        },
        kHidden);
  }
}

}  // namespace
}  // namespace megatron
