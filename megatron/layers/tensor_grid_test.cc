// Each layer on a grid of ranks against the same layer on one rank, whose gradients other tests
// compare with finite differences.

#include "megatron/layers/tensor_grid.h"

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/counted_communicator.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/layers/cube.h"
#include "megatron/layers/layer_harness.h"
#include "megatron/layers/norm_layer.h"
#include "megatron/layers/parallel_linear.h"
#include "megatron/layers/rotary.h"
#include "megatron/layers/summa.h"
#include "megatron/layers/transformer_layer.h"
#include "megatron/ops/host_tensor.h"

namespace megatron {
namespace {

using ops::HostTensor;

constexpr int64_t kHidden = 12;

// A grid, and the sequences of each part of the samples.
struct Grid {
  GridForm form;
  std::vector<std::vector<int>> lengths;
};

const std::vector<Grid>& Grids() {
  static const auto* const grids = new std::vector<Grid>{
      {{2}, {{5, 3}, {2, 6}}},
      {{3}, {{4}, {2, 2}, {1, 3}}},
      {{2, 2}, {{5, 3}, {2, 6}, {8}, {4, 4}}},
      {{2, 3}, {{4}, {2, 2}, {1, 3}, {3, 1}, {4}, {1, 1, 2}}},
      {{2, 2, true}, {{5, 3}, {2, 6}, {8}, {4, 4}}},
  };
  return *grids;
}

// The calls of a linear layer, whose backward is two calls; a row layer leaves its bias out.
template <typename Linear>
LayerCalls CallsOfLinear(const std::shared_ptr<Linear>& linear, const std::string& left_out = "") {
  const auto saved = std::make_shared<LinearSaved>();
  LayerCalls calls;
  calls.forward = [=](const LayerContext& ctx, const Tensor& x, const Tensor& y) {
    linear->Forward(ctx, x, y, saved.get());
  };
  calls.backward = [=](const LayerContext& ctx, const Tensor& dy, const Tensor& dx) {
    if constexpr (std::is_same_v<Linear, ColumnParallelLinear>) {
      linear->BackwardInput(ctx, dy, dx, saved.get()).Wait();
    } else {
      linear->BackwardInput(ctx, dy, dx, saved.get());
    }
    if (!ctx.defers()) linear->BackwardWeight(ctx, *saved);
  };
  calls.backward_weight = [=](const LayerContext& ctx) { linear->BackwardWeight(ctx, *saved); };
  calls.parameters = ParametersOf(linear.get(), left_out);
  return calls;
}

LinearOptions Linear(const TensorGrid& grid) {
  LinearOptions options;
  options.name = "linear";
  options.input_size = kHidden;
  options.output_shape = {18};
  options.grid = grid;
  return options;
}

void ExpectLinearLayersEqualThoseOfOneRank(const Grid& grid, int64_t inputs) {
  const auto options = [&](const TensorGrid& place) {
    LinearOptions linear = Linear(place);
    linear.input_size = inputs;
    return linear;
  };
  ExpectGridEqualsOne(
      grid.form, grid.lengths,
      [&](const ProcessGroup& heads, const TensorGrid& place) {
        return CallsOfLinear(std::make_shared<ColumnParallelLinear>(options(place), heads));
      },
      {inputs, 18, GridLayout::kResidual, GridLayout::kInner});
  ExpectGridEqualsOne(grid.form, grid.lengths,
                      [&](const ProcessGroup& heads, const TensorGrid& place) {
                        return CallsOfLinear(
                            std::make_shared<RowParallelLinear>(options(place), heads),
                            "linear.bias");
                      },
                      {inputs, 18, GridLayout::kInner, GridLayout::kResidual});
}

TEST(TensorGridTest, LinearLayersEqualThoseOfOneRank) {
  for (const Grid& grid : Grids()) ExpectLinearLayersEqualThoseOfOneRank(grid, kHidden);
  ExpectLinearLayersEqualThoseOfOneRank(
      {{3, 3, true}, {{2}, {1, 1}, {2}, {1, 1}, {2}, {2}, {1, 1}, {2}, {2}}}, 27);
}

TEST(TensorGridTest, NormsEqualThoseOfOneRank) {
  for (const ops::Norm::Kind kind : {ops::Norm::kLayerNorm, ops::Norm::kRmsNorm}) {
    for (const bool zero_centered : {false, true}) {
      const ops::Norm norm{kind, 1e-5f, zero_centered};
      const auto make = [&](const ProcessGroup&, const TensorGrid& grid) {
        const auto layer = std::make_shared<NormLayer>(
            NormOptions{norm, "norm.weight", "norm.bias", kHidden, false, grid});
        const auto saved = std::make_shared<NormLayer::Saved>();
        LayerCalls calls;
        calls.forward = [=](const LayerContext& ctx, const Tensor& x, const Tensor& y) {
          layer->Forward(ctx, x, y, saved.get());
        };
        calls.backward = [=](const LayerContext& ctx, const Tensor& dy, const Tensor& dx) {
          layer->Backward(ctx, dy, /*dresidual_TH=*/dy, dx, *saved);
        };
        calls.parameters = ParametersOf(layer.get());
        return calls;
      };
      for (const Grid& grid : Grids())
        ExpectGridEqualsOne(grid.form, grid.lengths, make, {kHidden, kHidden});
    }
  }
}

TransformerOptions Gpt() {
  TransformerOptions options;
  options.num_layers = 2;
  options.hidden_size = kHidden;
  options.ffn_hidden_size = 24;
  options.num_attention_heads = options.num_query_groups = 6;
  options.kv_channels = 4;
  options.hidden_dropout = options.attention_dropout = 0;
  return options;
}

TransformerOptions Llama() {
  TransformerOptions options = Gpt();
  options.norm.kind = ops::Norm::kRmsNorm;
  options.gated = options.rotary = options.qk_norm = true;
  options.linear_bias = options.qkv_bias = false;
  return options;
}

TEST(TensorGridTest, TransformerLayersEqualThoseOfOneRank) {
  const RotaryTables tables(RotaryOptions(), /*head_size=*/4, /*positions=*/8, {}, nullptr);
  TransformerOptions recomputing = Gpt(), post_norm = Gpt(), parallel = Gpt(), fewer_biases = Gpt();
  recomputing.recompute = {true, true, true};
  post_norm.post_norm = true;
  parallel.parallel_residual = parallel.parallel_shared_norm = true;
  fewer_biases.linear_bias = fewer_biases.qkv_bias = fewer_biases.norm.bias = false;
  fewer_biases.mlp_bias = true;
  for (const TransformerOptions& options :
       {Gpt(), Llama(), recomputing, post_norm, parallel, fewer_biases}) {
    const auto make = [&](const ProcessGroup& heads, const TensorGrid& grid) {
      TransformerOptions mine = options;
      mine.grid = grid;
      return CallsOf(std::make_shared<TransformerLayer>(mine, /*layer=*/0, heads, ExpertGroups{}),
                     options.rotary ? &tables : nullptr);
    };
    for (const Grid& grid : Grids())
      ExpectGridEqualsOne(grid.form, grid.lengths, make, {kHidden, kHidden});
  }
}

// What a rank sends in the passes of one product, in elements: as root of a broadcast its block,
// counted once, and of what it adds up the blocks of all other ranks.
TEST(TensorGridTest, ProductsSendWhatSummaSends) {
  constexpr int kSide = 3;
  constexpr int64_t kTokens = 5, kIn = 4, kOut = 7;
  const absl::Status status =
      RunRanks(kSide * kSide, [&](int, const ProcessGroup& world) -> absl::Status {
        BytesSent sent;
        LayerHarness harness({5});
        LayerContext& ctx = harness.context();
        MEGATRON_RETURN_IF_ERROR(
            UseGrid(ProcessGroup(Counted(world.communicator(), &sent)), {kSide}, &ctx));
        const HostTensor x({kTokens, kIn}, DType::kFloat32), w({kOut, kIn}, DType::kFloat32),
            y({kTokens, kOut}, DType::kFloat32);
        const auto expect = [&](const char* group, Collective call, int64_t elements) {
          EXPECT_EQ(sent.Of(group, call), 4 * elements) << group;
        };
        SummaForward(ctx, x, w, Tensor(), y);
        expect("tp-row", Collective::kBroadcast, kTokens * kIn);
        expect("tp-column", Collective::kBroadcast, kOut * kIn);
        EXPECT_EQ(sent.Total(), 4 * (kTokens * kIn + kOut * kIn));
        EXPECT_EQ(sent.CallsOf("tp-row", Collective::kBroadcast), kSide);
        sent.Reset();
        SummaBackwardInput(ctx, y, w, x);
        expect("tp-column", Collective::kBroadcast, kOut * kIn);
        expect("tp-row", Collective::kReduceScatter, (kSide - 1) * kTokens * kIn);
        sent.Reset();
        SummaBackwardWeight(ctx, y, x, w, Tensor());
        expect("tp-row", Collective::kBroadcast, kTokens * kIn);
        expect("tp-column", Collective::kReduceScatter, (kSide - 1) * kOut * kIn);
        return world.status();
      });
  EXPECT_EQ(status, absl::OkStatus());
}

// The same in a cube: what is gathered over a group, each rank sends to the others, and of what is
// summed their parts.
TEST(TensorGridTest, ProductsInACubeSendWhatTheyGatherAndSum) {
  constexpr int kSide = 3;
  constexpr int64_t kTokens = 2, kIn = 6, kOut = 5, kWeight = kOut * kIn / kSide;
  const absl::Status status =
      RunRanks(kSide * kSide * kSide, [&](int, const ProcessGroup& world) -> absl::Status {
        BytesSent sent;
        LayerHarness harness({2});
        LayerContext& ctx = harness.context();
        MEGATRON_RETURN_IF_ERROR(UseGrid(ProcessGroup(Counted(world.communicator(), &sent)),
                                         {kSide, kSide, true}, &ctx));
        const HostTensor x({kTokens, kIn}, DType::kFloat32),
            w({kOut, kIn / kSide}, DType::kFloat32), y({kTokens, kOut}, DType::kFloat32);
        const auto expect = [&](const char* group, Collective call, int64_t elements) {
          EXPECT_EQ(sent.Of(group, call), 4 * (kSide - 1) * elements) << group;
        };
        CubeForward(ctx, GridTurn::kInward, x, w, Tensor(), y);
        expect("tp-column", Collective::kAllGather, kTokens * kIn);
        expect("tp-depth", Collective::kAllGather, kWeight);
        expect("tp-row", Collective::kReduceScatter, kTokens * kOut);
        EXPECT_EQ(sent.Total(), 4 * (kSide - 1) * (kTokens * kIn + kWeight + kTokens * kOut));
        sent.Reset();
        const Tensor dy = CubeBackwardInput(ctx, GridTurn::kInward, y, w, x);
        expect("tp-row", Collective::kAllGather, kTokens * kOut);
        expect("tp-depth", Collective::kAllGather, kWeight);
        expect("tp-column", Collective::kReduceScatter, kTokens * kIn);
        sent.Reset();
        CubeBackwardWeight(ctx, GridTurn::kInward, dy, x, w, Tensor());
        expect("tp-row", Collective::kAllGather, 0);
        expect("tp-column", Collective::kAllGather, kTokens * kIn);
        expect("tp-depth", Collective::kReduceScatter, kWeight);
        return world.status();
      });
  EXPECT_EQ(status, absl::OkStatus());
}

}  // namespace
}  // namespace megatron
