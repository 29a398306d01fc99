#include "megatron/layers/self_attention.h"

#include <memory>

#include "gtest/gtest.h"
#include "megatron/layers/layer_harness.h"

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
  for (int64_t groups : {4, 2, 1}) {
    SCOPED_TRACE(testing::Message() << groups << " query groups");
    TransformerOptions options = Options(groups);
    options.rotary = true;
    ExpectTwoRanksEqualOne(
        {5, 3},
        [&](const ProcessGroup& group, bool sequence_parallel) {
          return MakeAttention(options, &tables, group, sequence_parallel);
        },
        kHidden);
  }
}

}  // namespace
}  // namespace megatron
