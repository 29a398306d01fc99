#include "megatron/layers/mlp.h"

#include <memory>

#include "gtest/gtest.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/layers/layer_harness.h"
#include "megatron/ops/host_tensor.h"

namespace megatron {
namespace {

constexpr int64_t kHidden = 8;

TransformerOptions Plain() {
  TransformerOptions options;
  options.hidden_size = kHidden;
  options.ffn_hidden_size = 12;
  return options;
}

TransformerOptions Gated() {
  TransformerOptions options = Plain();
  options.gated = true;
  options.linear_bias = false;
  return options;
}

LayerCalls MakeMlp(TransformerOptions options, const ProcessGroup& group,
                   bool sequence_parallel = false) {
  options.sequence_parallel = sequence_parallel;
  return CallsOf(std::make_shared<Mlp>(options, "mlp", group), "mlp.linear_fc2.bias");
}

void ExpectMlpGradients(const TransformerOptions& options) {
  LayerHarness harness({4, 3});
  ExpectGradients(&harness, MakeMlp(options, harness.tensor_group()), kHidden);
}

TEST(MlpTest, GradientsAreThoseOfFiniteDifferences) {
  for (ops::Activation activation :
       {ops::Activation::kGeluTanh, ops::Activation::kGeluErf, ops::Activation::kSilu}) {
    TransformerOptions options = Plain();
    options.activation = activation;
    ExpectMlpGradients(options);
  }
}

TEST(MlpTest, GradientsOfAGatedMlpAreThoseOfFiniteDifferences) { ExpectMlpGradients(Gated()); }

TEST(MlpTest, MayHaveBiasesWhereOtherLinearLayersHaveNone) {
  TransformerOptions options = Gated();
  EXPECT_EQ(MakeMlp(options, {}).parameters.size(), 2u);
  options.mlp_bias = true;
  EXPECT_EQ(MakeMlp(options, {}).parameters.size(), 3u);  // and fc2's, which is left to the caller
  ExpectMlpGradients(options);
}

TEST(MlpTest, RecomputationChangesNoBit) {
  for (const TransformerOptions& options : {Plain(), Gated()}) {
    TransformerOptions recomputing = options;
    recomputing.recompute.mlp = true;
    ExpectSameBits({4, 3}, MakeMlp(options, {}), MakeMlp(recomputing, {}), kHidden);
  }
}

TransformerOptions InChunks(TransformerOptions options, int64_t tokens) {
  options.recompute.mlp_chunk_tokens = tokens;
  return options;
}

TEST(MlpTest, GradientsInChunksAreThoseOfFiniteDifferences) {
  for (const TransformerOptions& options : {Plain(), Gated()}) {
    for (const int64_t chunk : {1, 3, 7, 8}) ExpectMlpGradients(InChunks(options, chunk));
  }
}

// Each chunk rounds its sum of the rows' products before the next is added.
TEST(MlpTest, ChunksChangeNoBitButOfWeightGradients) {
  for (const TransformerOptions& options : {Plain(), Gated()}) {
    std::vector<LayerHarness::Results> results;
    for (const int64_t chunk : {0, 1, 5, 16, 36, 37, 1000}) {
      SCOPED_TRACE(chunk);
      LayerHarness harness({20, 17});
      const LayerCalls calls = MakeMlp(InChunks(options, chunk), {});
      harness.Bind(calls.parameters);
      results.push_back(harness.Run(calls,
                                    ops::HostTensor::Normal({37, kHidden}, DType::kFloat32, 1),
                                    ops::HostTensor::Normal({37, kHidden}, DType::kFloat32, 2)));
      EXPECT_EQ(results.back().y, results.front().y);
      EXPECT_EQ(results.back().dx, results.front().dx);
      for (size_t i = 0; i < calls.parameters.size(); ++i) {
        const std::vector<double>& want = results.front().gradients[i];
        ops::ExpectNear(ops::HostTensor::Of({static_cast<int64_t>(want.size())}, DType::kFloat32,
                                            results.back().gradients[i]),
                        want, 1e-6);
      }
    }
  }
}

// What is not kept for backward takes no memory between the two parts.
TEST(MlpTest, ForwardInTwoPartsChangesNoBit) {
  TransformerOptions recomputing = Gated();
  recomputing.recompute.mlp = true;
  for (const TransformerOptions& options : {Plain(), Gated(), recomputing, InChunks(Gated(), 3)}) {
    const auto mlp = std::make_shared<Mlp>(options, "mlp", ProcessGroup());
    const auto saved = std::make_shared<Mlp::Saved>();
    LayerCalls in_parts = CallsOf(mlp, "mlp.linear_fc2.bias");
    in_parts.forward = [=](const LayerContext& ctx, const Tensor& x, const Tensor& y) {
      *saved = {};
      const int64_t mark = ctx.scratch->Mark();
      mlp->BeginForward(ctx, x, y, saved.get());
      EXPECT_EQ(ctx.scratch->Mark(), mark);
      mlp->EndForward(ctx, y, saved.get());
    };
    in_parts.backward = [=](const LayerContext& ctx, const Tensor& dy, const Tensor& dx) {
      mlp->Backward(ctx, dy, dx, saved.get());
    };
    in_parts.backward_weight = [=](const LayerContext& ctx) {
      mlp->BackwardWeight(ctx, saved.get());
    };
    ExpectSameBits({4, 3}, MakeMlp(options, {}), in_parts, kHidden);
  }
}

TEST(MlpTest, MemoryGrowsWithTheChunkAndNotWithTheTokens) {
  // Returns the most bytes between x and y, or dy and dx, of a forward and a backward.
  const auto bytes = [](int tokens, int64_t chunk, bool deferred) {
    LayerHarness harness({tokens});
    const LayerCalls calls = MakeMlp(InChunks(Gated(), chunk), {});
    harness.Bind(calls.parameters);
    const auto rows = ops::HostTensor::Normal({tokens, kHidden}, DType::kFloat32, 1);
    harness.Run(calls, rows, rows, deferred);
    EXPECT_EQ(harness.context().saved->high_water(), 0);
    // dy lies in scratch, unless Run has put it beside what is deferred.
    return harness.context().scratch->high_water() - (deferred ? 0 : rows.tensor().bytes());
  };
  for (const bool deferred : {false, true}) {
    const int64_t of_16 = bytes(64, 16, deferred);
    EXPECT_EQ(bytes(256, 16, deferred), of_16);
    EXPECT_EQ(bytes(256, 32, deferred), 2 * of_16);
  }
}

TEST(MlpTest, UnderSequenceParallelismTheTokensOfAllRanksMakeAChunk) {
  const absl::Status status = RunRanks(2, [](int, const ProcessGroup& group) {
    const auto bytes = [&](bool sequence_parallel) {
      LayerHarness harness({64}, group, sequence_parallel);
      const LayerCalls calls = MakeMlp(InChunks(Gated(), 16), group, sequence_parallel);
      harness.Bind(calls.parameters);
      const auto rows =
          ops::HostTensor::Normal({harness.context().rows(), kHidden}, DType::kFloat32, 1);
      harness.Run(calls, rows, rows);
      return harness.context().scratch->high_water() - rows.tensor().bytes();
    };
    // Gathered rows lie beside the intermediate, and are narrower than it is.
    EXPECT_LT(bytes(true), 2 * bytes(false));
    return absl::OkStatus();
  });
  EXPECT_EQ(status, absl::OkStatus());
}

TEST(MlpTest, TwoTensorParallelRanksEqualOne) {
  for (const TransformerOptions& options :
       {Plain(), Gated(), InChunks(Plain(), 3), InChunks(Gated(), 2), InChunks(Plain(), 1)}) {
    ExpectTwoRanksEqualOne(
        {5, 3},
        [&](const ProcessGroup& group, bool sequence_parallel) {
          return MakeMlp(options, group, sequence_parallel);
        },
        kHidden);
  }
}

}  // namespace
}  // namespace megatron
