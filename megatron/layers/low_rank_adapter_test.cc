#include "megatron/layers/low_rank_adapter.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/layers/layer_harness.h"
#include "megatron/layers/mlp.h"
#include "megatron/layers/self_attention.h"
#include "megatron/layers/transformer_options.h"
#include "megatron/ops/host_tensor.h"
#include "megatron/tensor/parameter.h"

namespace megatron {
namespace {

constexpr int64_t kHidden = 8, kFfn = 12, kDim = 3;
constexpr double kScale = 2;

TransformerOptions Adapted(bool gated,
                           const std::vector<std::string>& modules = {"linear_qkv", "linear_proj",
                                                                      "linear_fc1", "linear_fc2"}) {
  TransformerOptions options;
  options.hidden_size = kHidden;
  options.ffn_hidden_size = kFfn;
  options.gated = gated;
  options.num_attention_heads = 4;
  options.num_query_groups = 2;
  options.kv_channels = 4;
  options.attention_dropout = 0;
  options.lora = {kDim, kScale * kDim, modules};
  return options;
}

LayerCalls MakeMlp(TransformerOptions options, const ProcessGroup& group,
                   bool sequence_parallel = false) {
  options.sequence_parallel = sequence_parallel;
  return CallsOf(std::make_shared<Mlp>(options, "mlp", group), "mlp.linear_fc2.bias");
}

LayerCalls MakeAttention(TransformerOptions options, const ProcessGroup& group,
                         bool sequence_parallel = false) {
  options.sequence_parallel = sequence_parallel;
  return CallsOf(std::make_shared<SelfAttention>(options, "attention", /*layer=*/0, group), nullptr,
                 "attention.linear_proj.bias");
}

Parameter* Find(const LayerCalls& calls, const std::string& name) {
  for (Parameter* parameter : calls.parameters) {
    if (parameter->name == name) return parameter;
  }
  return nullptr;
}

TEST(LowRankAdapterTest, GradientsAreThoseOfFiniteDifferences) {
  for (const bool gated : {false, true}) {
    LayerHarness mlp({4, 3});
    ExpectGradients(&mlp, MakeMlp(Adapted(gated), mlp.tensor_group()), kHidden);
  }
  LayerHarness attention({4, 1, 3});
  ExpectGradients(&attention, MakeAttention(Adapted(false), attention.tensor_group()), kHidden);
}

TransformerOptions WithDropout(bool gated) {
  TransformerOptions options = Adapted(gated);
  options.lora.dropout = 0.3f;
  return options;
}

TEST(LowRankAdapterTest, GradientsThroughDropoutAreThoseOfFiniteDifferences) {
  for (const bool gated : {false, true}) {
    LayerHarness mlp({4, 3});
    ExpectGradients(&mlp, MakeMlp(WithDropout(gated), mlp.tensor_group()), kHidden);
  }
  LayerHarness attention({4, 1, 3});
  ExpectGradients(&attention, MakeAttention(WithDropout(false), attention.tensor_group()), kHidden);
}

TEST(LowRankAdapterTest, DropoutIsThatOfTheLayerAndOfTheSample) {
  LayerHarness harness({4, 3});
  const LayerCalls calls = MakeMlp(WithDropout(false), harness.tensor_group());
  harness.Bind(calls.parameters);
  const ops::HostTensor x = ops::HostTensor::Normal({7, kHidden}, DType::kFloat32, 1),
                        one({7, kHidden}, DType::kFloat32), other({7, kHidden}, DType::kFloat32);
  const auto differ = [&](int64_t row) {
    for (int64_t c = 0; c < kHidden; ++c) {
      if (one.Get(row * kHidden + c) != other.Get(row * kHidden + c)) return true;
    }
    return false;
  };
  harness.Forward(calls, x, one);
  harness.Forward(calls, x, other);
  for (int64_t row = 0; row < 7; ++row) EXPECT_FALSE(differ(row)) << row;
  harness.batch().sample_T.data<int64_t>()[5] = 77;
  harness.Forward(calls, x, other);
  for (int64_t row = 0; row < 7; ++row) EXPECT_EQ(differ(row), row == 5) << row;
  harness.context().training = false;
  harness.Forward(calls, x, other);
  EXPECT_TRUE(differ(0));
}

TEST(LowRankAdapterTest, RecomputationAndChunksChangeNoBit) {
  for (const bool gated : {false, true}) {
    TransformerOptions recomputing = Adapted(gated);
    recomputing.recompute.mlp = recomputing.recompute.core_attention = true;
    ExpectSameBits({4, 3}, MakeMlp(Adapted(gated), {}), MakeMlp(recomputing, {}), kHidden);
    ExpectSameBits({4, 3}, MakeAttention(Adapted(gated), {}), MakeAttention(recomputing, {}),
                   kHidden);
    TransformerOptions chunks = Adapted(gated);
    chunks.recompute.mlp_chunk_tokens = 3;
    LayerHarness harness({4, 3});
    ExpectGradients(&harness, MakeMlp(chunks, harness.tensor_group()), kHidden);
  }
}

TEST(LowRankAdapterTest, TwoTensorParallelRanksEqualOne) {
  for (const bool overlaps : {false, true}) {
    for (const bool gated : {false, true}) {
      TransformerOptions options = Adapted(gated);
      options.tp_comm_overlap = overlaps;
      if (!overlaps && gated) options.lora.dropout = 0.3f;  // it needs all rows at once
      const auto mlp = [&](const ProcessGroup& group, bool sequence_parallel) {
        return MakeMlp(options, group, sequence_parallel);
      };
      ExpectTwoRanksEqualOne({5, 3}, mlp, kHidden);
      const auto attention = [&](const ProcessGroup& group, bool sequence_parallel) {
        return MakeAttention(options, group, sequence_parallel);
      };
      ExpectTwoRanksEqualOne({5, 3}, attention, kHidden);
    }
  }
}

// A layer with adapters computes what one computes whose weights have the adapters' products added.
TEST(LowRankAdapterTest, AnAdapterIsAProductThatIsAddedToTheWeight) {
  LayerHarness adapted({4, 3}), merged({4, 3});
  const LayerCalls with = MakeMlp(Adapted(true), {});
  TransformerOptions plain = Adapted(true);
  plain.lora = {};
  const LayerCalls without = MakeMlp(plain, {});
  adapted.Bind(with.parameters);
  merged.Bind(without.parameters);
  for (const std::string layer : {"mlp.linear_fc1", "mlp.linear_fc2"}) {
    const Tensor a = Find(with, layer + ".adapter.linear_in.weight")->data;
    const Tensor b = Find(with, layer + ".adapter.linear_out.weight")->data;
    const Tensor w = Find(without, layer + ".weight")->data;
    const int64_t inputs = a.dim(1), outputs = w.numel() / inputs;
    ASSERT_EQ(a.dim(0), kDim);
    ASSERT_EQ(b.numel(), outputs * kDim);
    for (int64_t o = 0; o < outputs; ++o) {
      for (int64_t i = 0; i < inputs; ++i) {
        double sum = w.data<float>()[o * inputs + i];
        for (int64_t r = 0; r < kDim; ++r)
          sum += kScale * b.data<float>()[o * kDim + r] * a.data<float>()[r * inputs + i];
        w.data<float>()[o * inputs + i] = static_cast<float>(sum);
      }
    }
  }
  const auto x = ops::HostTensor::Normal({7, kHidden}, DType::kFloat32, 1);
  const LayerHarness::Results got = adapted.Run(with, x, x), want = merged.Run(without, x, x);
  ops::ExpectNear(ops::HostTensor::Of({7, kHidden}, DType::kFloat32, got.y), want.y, 1e-5);
  ops::ExpectNear(ops::HostTensor::Of({7, kHidden}, DType::kFloat32, got.dx), want.dx, 1e-5);
}

TEST(LowRankAdapterTest, OnlyTheModulesThatAreNamedHaveOne) {
  const LayerCalls calls = MakeMlp(Adapted(false, {"linear_fc2", "linear_qkv"}), {});
  EXPECT_EQ(Find(calls, "mlp.linear_fc1.adapter.linear_in.weight"), nullptr);
  EXPECT_NE(Find(calls, "mlp.linear_fc2.adapter.linear_in.weight"), nullptr);
  const LayerCalls attention = MakeAttention(Adapted(false, {"linear_fc2", "linear_qkv"}), {});
  const Parameter* const b = Find(attention, "attention.linear_qkv.adapter.linear_out.weight");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->sharding.global_shape, Shape({2, 4, 4, kDim}));
  EXPECT_EQ(Find(attention, "attention.linear_proj.adapter.linear_out.weight"), nullptr);
}

TEST(LowRankAdapterTest, AnAdapterBeginsAsPeftsDoes) {
  const LayerCalls calls = MakeMlp(Adapted(true), {});
  const Parameter& a = *Find(calls, "mlp.linear_fc2.adapter.linear_in.weight");
  const ops::HostTensor values(a.sharding.local_shape, DType::kFloat32);
  FillInitial(a, /*seed=*/1, values);
  // kaiming_uniform_ with a = sqrt(5).
  const double bound = 1 / std::sqrt(static_cast<double>(kFfn));
  double largest = 0;
  for (const double value : values.Values()) largest = std::max(largest, std::abs(value));
  EXPECT_LE(largest, bound);
  EXPECT_GT(largest, 0.8 * bound);
  EXPECT_EQ(Find(calls, "mlp.linear_fc2.adapter.linear_out.weight")->initializer.kind,
            Initializer::kZeros);
}

}  // namespace
}  // namespace megatron
