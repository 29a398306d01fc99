#include "megatron/layers/layer_harness.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "gtest/gtest.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/communicator.h"
#include "megatron/comm/overlap/async_group.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/ops/finite_difference.h"
#include "megatron/ops/tolerances.h"

namespace megatron {
namespace {

using ops::HostTensor;

constexpr int64_t kArenaBytes = 4 << 20;
constexpr DType kF32 = DType::kFloat32;

// The tolerance between one rank and two, which sum in another order.
constexpr double kRanksTolerance = 1e-5;

HostTensor Rows(int64_t rows, int64_t width, uint32_t seed) {
  return HostTensor::Normal({rows, width}, kF32, seed);
}

// The rows [first, first + count) of x.
HostTensor SomeRows(const HostTensor& x, int64_t first, int64_t count) {
  const int64_t width = x.tensor().dim(1);
  HostTensor rows({count, width}, kF32);
  for (int64_t i = 0; i < count * width; ++i) rows.Set(i, x.Get(first * width + i));
  return rows;
}

// A rank's block of a whole tensor's values.
std::vector<double> BlockOf(const std::vector<double>& whole, const Sharding& sharding) {
  std::vector<double> block(sharding.local_shape.numel());
  const int rank = sharding.local_shape.rank();
  for (int64_t i = 0; i < static_cast<int64_t>(block.size()); ++i) {
    int64_t rest = i, index = 0, stride = 1;
    for (int d = rank - 1; d >= 0; --d) {
      index += (sharding.offset[d] + rest % sharding.local_shape[d]) * stride;
      rest /= sharding.local_shape[d];
      stride *= sharding.global_shape[d];
    }
    block[i] = whole[index];
  }
  return block;
}

size_t IndexOf(const std::string& name, const LayerCalls& calls) {
  for (size_t i = 0; i < calls.parameters.size(); ++i) {
    if (calls.parameters[i]->name == name) return i;
  }
  LOG(FATAL) << "no parameter " << name;
}

void ExpectClose(const std::vector<double>& got, const std::vector<double>& want,
                 double tolerance) {
  ops::ExpectNear(HostTensor::Of({static_cast<int64_t>(got.size())}, kF32, got), want, tolerance);
}

std::vector<double> SumOverRanks(const std::vector<double>& summand, const LayerContext& ctx) {
  const HostTensor sum = HostTensor::Of({static_cast<int64_t>(summand.size())}, kF32, summand);
  ctx.tensor_group.AllReduce(sum, ReduceOp::kSum, ctx.stream);
  return sum.Values();
}

std::vector<double> RowsOf(const std::vector<double>& x, int64_t first, int64_t count,
                           int64_t width) {
  return std::vector<double>(x.begin() + first * width, x.begin() + (first + count) * width);
}

}  // namespace

LayerHarness::LayerHarness(const std::vector<int>& lengths, const ProcessGroup& tensor_group,
                           bool sequence_parallel)
    : saved_({}, kArenaBytes, "saved", nullptr),
      scratch_({}, kArenaBytes, "scratch", nullptr),
      recompute_({}, kArenaBytes, "recompute", nullptr),
      deferred_({}, kArenaBytes, "deferred", nullptr),
      cu_seqlens_(1, 0),
      context_{tensor_group, Stream::Cpu(&pool_), &saved_, &scratch_, &batch_} {
  for (size_t sample = 0; sample < lengths.size(); ++sample) {
    for (int t = 0; t < lengths[sample]; ++t) {
      tokens_.push_back(static_cast<int32_t>(tokens_.size()));
      positions_.push_back(t);
      samples_.push_back(static_cast<int64_t>(sample));
    }
    cu_seqlens_.push_back(static_cast<int32_t>(tokens_.size()));
  }
  const Shape shape{static_cast<int64_t>(tokens_.size())};
  batch_.tokens_T = Tensor(tokens_.data(), DType::kInt32, shape);
  batch_.position_T = batch_.sample_position_T = Tensor(positions_.data(), DType::kInt32, shape);
  batch_.sample_T = Tensor(samples_.data(), DType::kInt64, shape);
  batch_.cu_seqlens =
      Tensor(cu_seqlens_.data(), DType::kInt32, {static_cast<int64_t>(cu_seqlens_.size())});
  batch_.max_seqlen = *std::max_element(lengths.begin(), lengths.end());
  batch_.num_samples = static_cast<int64_t>(lengths.size());
  context_.sequence_parallel = sequence_parallel;
  context_.recompute = &recompute_;
}

void LayerHarness::Bind(const std::vector<Parameter*>& parameters) {
  for (Parameter* parameter : parameters) {
    Parameter normal;
    normal.name = parameter->name;
    normal.sharding = parameter->sharding;
    normal.initializer = Initializer::Normal(0.3f);
    HostTensor value(parameter->sharding.local_shape, kF32);
    FillInitial(normal, /*seed=*/7, value);
    parameter->data = value.tensor();
    HostTensor gradient(parameter->sharding.local_shape, kF32);
    parameter->grad = gradient.tensor();
    values_.push_back(std::move(value));
    gradients_.push_back(std::move(gradient));
  }
}

void LayerHarness::ResetArenas() {
  for (Arena* arena : {&saved_, &scratch_, &recompute_, &deferred_}) arena->Reset();
}

void LayerHarness::Forward(const LayerCalls& calls, const Tensor& x, const Tensor& y) {
  ResetArenas();
  calls.forward(context_, x, y);
}

LayerHarness::Results LayerHarness::Run(const LayerCalls& calls, const HostTensor& x,
                                        const HostTensor& dy, bool deferred) {
  for (HostTensor& gradient : gradients_) {
    for (int64_t i = 0; i < gradient.numel(); ++i) gradient.Set(i, 0);
  }
  context_.deferred = deferred ? &deferred_ : nullptr;
  const HostTensor y(dy.tensor().shape(), kF32), dx(x.tensor().shape(), kF32);
  Forward(calls, x, y);
  const Tensor kept_dy = context_.kept()->Allocate(kF32, dy.tensor().shape(), "dy");
  std::memcpy(kept_dy.raw(), dy.tensor().raw(), dy.tensor().bytes());
  calls.backward(context_, kept_dy, dx);
  if (deferred) calls.backward_weight(context_);
  context_.deferred = nullptr;
  Results results{y.Values(), dx.Values(), {}};
  for (const HostTensor& gradient : gradients_) results.gradients.push_back(gradient.Values());
  return results;
}

void ExpectGradients(LayerHarness* harness, const LayerCalls& calls, int64_t input_width,
                     int64_t output_width) {
  harness->Bind(calls.parameters);
  const int64_t rows = harness->context().rows();
  HostTensor x = Rows(rows, input_width, 1);
  const HostTensor dy = Rows(rows, output_width, 2);
  const LayerHarness::Results results = harness->Run(calls, x, dy);
  const HostTensor y({rows, output_width}, kF32);
  const auto loss = [&] {
    harness->Forward(calls, x, y);
    return ops::Dot(y, dy);
  };
  {
    SCOPED_TRACE("gradient of the input");
    ExpectClose(results.dx, ops::FiniteDifference(&x, loss), ops::kFiniteDifferenceTolerance);
  }
  for (size_t i = 0; i < calls.parameters.size(); ++i) {
    SCOPED_TRACE("gradient of " + calls.parameters[i]->name);
    ExpectClose(results.gradients[i], ops::FiniteDifference(&harness->values()[i], loss),
                ops::kFiniteDifferenceTolerance);
  }
  if (calls.backward_weight == nullptr) return;
  const LayerHarness::Results deferred = harness->Run(calls, x, dy, /*deferred=*/true);
  EXPECT_EQ(deferred.dx, results.dx);
  EXPECT_EQ(deferred.gradients, results.gradients);
}

void ExpectSameBits(const std::vector<int>& lengths, const LayerCalls& one, const LayerCalls& other,
                    int64_t width) {
  std::vector<LayerHarness::Results> results;
  for (const LayerCalls* calls : {&one, &other}) {
    LayerHarness harness(lengths);
    harness.Bind(calls->parameters);
    const int64_t tokens = harness.batch().num_tokens();
    results.push_back(harness.Run(*calls, Rows(tokens, width, 1), Rows(tokens, width, 2)));
  }
  EXPECT_EQ(results[1].y, results[0].y);
  EXPECT_EQ(results[1].dx, results[0].dx);
  EXPECT_EQ(results[1].gradients, results[0].gradients);
}

void ExpectTwoRanksEqualOne(const std::vector<int>& lengths, const MakeLayer& make, int64_t width) {
  LayerHarness one(lengths);
  const LayerCalls whole = make(one.tensor_group(), false);
  one.Bind(whole.parameters);
  const int64_t tokens = one.batch().num_tokens();
  const HostTensor x = Rows(tokens, width, 1), dy = Rows(tokens, width, 2);
  const LayerHarness::Results want = one.Run(whole, x, dy);
  for (bool sequence_parallel : {false, true}) {
    const absl::Status status = RunRanks(2, [&](int rank, const ProcessGroup& group) {
      SCOPED_TRACE(testing::Message() << "rank " << rank << " of 2"
                                      << (sequence_parallel ? ", sequence parallel" : ""));
      LayerHarness harness(lengths, group, sequence_parallel);
      const LayerCalls calls = make(group, sequence_parallel);
      harness.Bind(calls.parameters);
      const int64_t rows = harness.context().rows(), first = sequence_parallel ? rank * rows : 0;
      const LayerHarness::Results got =
          harness.Run(calls, SomeRows(x, first, rows), SomeRows(dy, first, rows));
      ExpectClose(got.y, RowsOf(want.y, first, rows, width), kRanksTolerance);
      ExpectClose(got.dx, RowsOf(want.dx, first, rows, width), kRanksTolerance);
      for (size_t i = 0; i < calls.parameters.size(); ++i) {
        const Parameter& parameter = *calls.parameters[i];
        SCOPED_TRACE("gradient of " + parameter.name);
        std::vector<double> gradient = got.gradients[i];
        if (parameter.sharding.partial.contains(Axis::kTensor))
          gradient = SumOverRanks(gradient, harness.context());
        ExpectClose(gradient,
                    BlockOf(want.gradients[IndexOf(parameter.name, whole)], parameter.sharding),
                    kRanksTolerance);
      }
      absl::StatusOr<ProcessGroup> async = WithAsyncCalls(group, harness.context().stream);
      if (!async.ok()) return async.status();
      harness.context().tensor_group = *async;
      const LayerHarness::Results beside =
          harness.Run(calls, SomeRows(x, first, rows), SomeRows(dy, first, rows));
      EXPECT_EQ(beside.y, got.y);
      EXPECT_EQ(beside.dx, got.dx);
      EXPECT_EQ(beside.gradients, got.gradients);
      return absl::OkStatus();
    });
    EXPECT_EQ(status, absl::OkStatus());
  }
}

void ExpectContextRanksEqualOne(const std::vector<int>& lengths, const ContextShard& form,
                                const std::function<LayerCalls()>& make, int64_t width) {
  LayerHarness one(lengths);
  const LayerCalls whole = make();
  one.Bind(whole.parameters);
  const int64_t tokens = one.batch().num_tokens();
  const HostTensor x = Rows(tokens, width, 1), dy = Rows(tokens, width, 2);
  const LayerHarness::Results want = one.Run(whole, x, dy);
  const absl::Status status = RunRanks(form.size, [&](int rank, const ProcessGroup& group) {
    SCOPED_TRACE(testing::Message() << "rank " << rank << " of " << form.size);
    ContextShard shard = form;
    shard.rank = rank;
    const Buffer memory({}, ContextSliceBytes({tokens}, shard), "slice", nullptr);
    LayerHarness harness(lengths);
    harness.batch() = PlaceContextSlice(one.batch(), shard, memory, 0);
    FillContextSlice(one.batch(), shard, harness.batch());
    harness.context().context_group = group;
    const LayerCalls calls = make();
    harness.Bind(calls.parameters);
    const auto mine = [&](const std::vector<double>& all) {
      std::vector<double> rows;
      ForEachContextChunk(
          form.size, rank, tokens, form.sample_length, [&](const ContextChunk& chunk) {
            const std::vector<double> some = RowsOf(all, chunk.whole_begin, chunk.length, width);
            rows.insert(rows.end(), some.begin(), some.end());
          });
      return rows;
    };
    const auto my_rows = [&](const HostTensor& all) {
      return HostTensor::Of({tokens / form.size, width}, kF32, mine(all.Values()));
    };
    for (bool deferred : {false, true}) {
      const LayerHarness::Results got = harness.Run(calls, my_rows(x), my_rows(dy), deferred);
      ExpectClose(got.y, mine(want.y), kRanksTolerance);
      ExpectClose(got.dx, mine(want.dx), kRanksTolerance);
      for (size_t i = 0; i < calls.parameters.size(); ++i) {
        SCOPED_TRACE("gradient of " + calls.parameters[i]->name);
        const HostTensor sum =
            HostTensor::Of({static_cast<int64_t>(got.gradients[i].size())}, kF32, got.gradients[i]);
        group.AllReduce(sum, ReduceOp::kSum, harness.context().stream);
        ExpectClose(sum.Values(), want.gradients[i], kRanksTolerance);
      }
    }
    return group.status();
  });
  EXPECT_EQ(status, absl::OkStatus());
}

namespace {

TensorGrid PlaceOf(int rank, const GridForm& form) {
  return {form.side,
          rank / form.depth % form.side,
          rank / form.depth / form.side,
          form.depth,
          rank % form.depth,
          form.is_cube};
}

// Cuts the world into the ranks for which `key` is the same.
absl::StatusOr<ProcessGroup> SplitBy(const ProcessGroup& world, const GridForm& form,
                                     const char* name,
                                     const std::function<int(const TensorGrid&)>& key) {
  std::map<int, std::vector<int>> by_key;
  for (int rank = 0; rank < form.ranks(); ++rank) by_key[key(PlaceOf(rank, form))].push_back(rank);
  std::vector<std::vector<int>> partition;
  for (const auto& [value, ranks] : by_key) partition.push_back(ranks);
  if (partition[0].size() == 1) return ProcessGroup();
  MEGATRON_ASSIGN_OR_RETURN(auto part, world.communicator()->Split(partition, name));
  return ProcessGroup(part);
}

// A rank's block of rows [tokens, width].
Sharding BlockIn(GridLayout layout, int64_t tokens, int64_t width, const TensorGrid& grid) {
  const bool inner = layout == GridLayout::kInner && grid.is_cube;
  Sharding sharding = Replicated({tokens, width});
  sharding.local_shape = {tokens / grid.sample_parts(), width / grid.side};
  sharding.offset = {
      (inner ? grid.inner_sample_part() : grid.sample_part()) * sharding.local_shape[0],
      (inner ? grid.row : grid.column) * sharding.local_shape[1]};
  return sharding;
}

}  // namespace

absl::Status UseGrid(const ProcessGroup& world, const GridForm& form, LayerContext* ctx) {
  using Grid = TensorGrid;
  const int side = form.side;
  TensorGridGroups& groups = ctx->grid;
  groups.is_cube = form.is_cube;
  MEGATRON_ASSIGN_OR_RETURN(groups.row, SplitBy(world, form, "tp-row", [=](const Grid& at) {
                              return at.level * side + at.row;
                            }));
  MEGATRON_ASSIGN_OR_RETURN(groups.column, SplitBy(world, form, "tp-column", [=](const Grid& at) {
                              return at.level * side + at.column;
                            }));
  MEGATRON_ASSIGN_OR_RETURN(
      groups.square, SplitBy(world, form, "tp-square", [](const Grid& at) { return at.level; }));
  MEGATRON_ASSIGN_OR_RETURN(groups.depth, SplitBy(world, form, "tp-depth", [=](const Grid& at) {
                              return at.column * side + at.row;
                            }));
  MEGATRON_ASSIGN_OR_RETURN(groups.columns, SplitBy(world, form, "tp-replicas",
                                                    [](const Grid& at) { return at.column; }));
  ctx->tensor_group = groups.heads();
  return absl::OkStatus();
}

void ExpectGridEqualsOne(const GridForm& form, const std::vector<std::vector<int>>& lengths,
                         const MakeGridLayer& make, const GridWidths& widths) {
  CHECK_EQ(static_cast<int>(lengths.size()), form.side * form.depth);
  std::vector<int> all;
  for (const std::vector<int>& of_part : lengths)
    all.insert(all.end(), of_part.begin(), of_part.end());
  LayerHarness one(all);
  const LayerCalls whole = make(one.tensor_group(), TensorGrid());
  one.Bind(whole.parameters);
  const int64_t tokens = one.batch().num_tokens();
  const HostTensor x = Rows(tokens, widths.input, 1), dy = Rows(tokens, widths.output, 2);
  const LayerHarness::Results want = one.Run(whole, x, dy);
  const absl::Status status =
      RunRanks(form.ranks(), [&](int rank, const ProcessGroup& world) -> absl::Status {
        SCOPED_TRACE(testing::Message() << "rank " << rank << " of " << form.ranks());
        const TensorGrid grid = PlaceOf(rank, form);
        LayerHarness harness(lengths[grid.sample_part()]);
        LayerHarness inner(lengths[grid.inner_sample_part()]);
        LayerContext& ctx = harness.context();
        MEGATRON_RETURN_IF_ERROR(UseGrid(world, form, &ctx));
        if (form.is_cube) ctx.inner = &inner.batch();
        ctx.first_column = grid.column * widths.input / form.side;
        const LayerCalls calls = make(ctx.tensor_group, grid);
        harness.Bind(calls.parameters);
        const Sharding input = BlockIn(widths.of_input, tokens, widths.input, grid),
                       output = BlockIn(widths.of_output, tokens, widths.output, grid);
        const auto tensor = [&](const HostTensor& values, const Sharding& block) {
          return HostTensor::Of(block.local_shape, kF32, BlockOf(values.Values(), block));
        };
        for (bool deferred : {false, true}) {
          if (deferred && calls.backward_weight == nullptr) continue;
          const LayerHarness::Results got =
              harness.Run(calls, tensor(x, input), tensor(dy, output), deferred);
          ExpectClose(got.y, BlockOf(want.y, output), kRanksTolerance);
          ExpectClose(got.dx, BlockOf(want.dx, input), kRanksTolerance);
          for (size_t i = 0; i < calls.parameters.size(); ++i) {
            const Parameter& parameter = *calls.parameters[i];
            SCOPED_TRACE("gradient of " + parameter.name);
            std::vector<double> gradient = got.gradients[i];
            if (parameter.sharding.partial.contains(Axis::kTensor)) {
              const int replicas = parameter.sharding.tensor_replicas;
              LayerContext summing = ctx;
              summing.tensor_group = replicas == 1            ? world
                                     : replicas == form.depth ? ctx.grid.depth
                                                              : ctx.grid.columns;
              gradient = SumOverRanks(gradient, summing);
            }
            ExpectClose(gradient,
                        BlockOf(want.gradients[IndexOf(parameter.name, whole)], parameter.sharding),
                        kRanksTolerance);
          }
        }
        return world.status();
      });
  EXPECT_EQ(status, absl::OkStatus());
}

}  // namespace megatron
