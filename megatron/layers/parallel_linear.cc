#include "megatron/layers/parallel_linear.h"

#include "megatron/layers/grid_products.h"
#include "megatron/layers/tensor_overlap.h"
#include "megatron/layers/tensor_parallel.h"
#include "megatron/ops/activation.h"
#include "megatron/ops/bias_gradient.h"

namespace megatron {
namespace {

Shape Append(const Shape& shape, int64_t dim) {
  std::vector<int64_t> dims = shape.dims();
  dims.push_back(dim);
  return Shape(dims);
}

// The sharding of one number per output feature: of a column layer's bias.
Sharding OutputSharding(const LinearOptions& options, const ProcessGroup& tensor_group) {
  if (options.grid.is_cube) return Replicated(options.output_shape, {Axis::kTensor});
  if (options.grid.is_grid())
    return SplitOverColumns(options.output_shape, options.split_dim, options.grid);
  if (!options.block.has_value()) {
    return SplitOverTensor(options.output_shape, options.split_dim, tensor_group.size(),
                           tensor_group.rank());
  }
  Sharding sharding = Replicated(options.output_shape);
  sharding.offset = options.block->offset;
  sharding.local_shape = options.block->shape;
  sharding.sharded = {Axis::kTensor};
  sharding.tensor_replicas = options.block->replicas;
  if (sharding.tensor_replicas > 1) sharding.partial = {Axis::kTensor};
  return sharding;
}

// The sharding of one row of inputs per output feature: of its weight.
Sharding InputSharding(const LinearOptions& options, const ProcessGroup& tensor_group) {
  const int64_t input_size = options.input_size;
  if (options.grid.is_grid()) {
    return SplitWeight(Append(options.output_shape, input_size), options.split_dim,
                       GridTurn::kInward, options.grid);
  }
  Sharding sharding = OutputSharding(options, tensor_group);
  sharding.global_shape = Append(sharding.global_shape, input_size);
  sharding.offset = Append(sharding.offset, 0);
  sharding.local_shape = Append(sharding.local_shape, input_size);
  return sharding;
}

Parameter MakeWeight(const LinearOptions& options, const Sharding& sharding) {
  Parameter weight;
  weight.name = options.name + ".weight";
  weight.sharding = sharding;
  weight.initializer = Initializer::Normal(options.init_std);
  weight.matrix = options.matrix;
  weight.attention_layer = options.attention_layer;
  return weight;
}

Parameter MakeBias(const LinearOptions& options, const Sharding& sharding) {
  Parameter bias;
  bias.name = options.name + ".bias";
  bias.sharding = sharding;
  bias.weight_decay = false;
  bias.attention_layer = options.attention_layer;
  return bias;
}

bool Overlaps(const LinearOptions& options, const ProcessGroup& tensor_group) {
  return options.overlap && tensor_group.size() > 1;
}

Sharding RowWeightSharding(const LinearOptions& options, const ProcessGroup& tensor_group) {
  const Shape shape = Append(options.output_shape, options.input_size);
  if (options.grid.is_grid())
    return SplitWeight(shape, /*by_output=*/0, GridTurn::kOutward, options.grid);
  return SplitOverTensor(shape, 1, tensor_group.size(), tensor_group.rank());
}

Sharding RowBiasSharding(const LinearOptions& options) {
  if (options.grid.is_grid()) return SplitOverColumns(options.output_shape, 0, options.grid);
  return Replicated(options.output_shape,
                    options.sequence_parallel ? AxisSet{Axis::kTensor} : AxisSet{});
}

void CheckGrid(const LinearOptions& options) {
  if (!options.grid.is_grid()) return;
  CHECK(!options.block.has_value() && !options.sequence_parallel && !options.float8.enabled &&
        !options.overlap && options.adapter.dim == 0)
      << options.name;
}

bool KeepsCodes(const LinearOptions& options) {
  return options.keep_codes && options.adapter.dim == 0;
}

}  // namespace

ColumnParallelLinear::ColumnParallelLinear(const LinearOptions& options,
                                           const ProcessGroup& tensor_group)
    : grid_(options.grid),
      input_size_(options.grid.is_cube
                      ? options.grid.PartOf(options.input_size) / options.grid.depth
                      : options.grid.PartOf(options.input_size)),
      has_bias_(options.bias),
      overlaps_(Overlaps(options, tensor_group)),
      sums_input_gradient_(options.sums_input_gradient),
      products_(options.float8, LinearProducts::Cut::kOutput, options.name + ".weight",
                KeepsCodes(options)),
      weight_(MakeWeight(options, InputSharding(options, tensor_group))),
      bias_(MakeBias(options, OutputSharding(options, tensor_group))),
      adapter_(options.adapter, options.name, weight_.sharding, /*by_input=*/false) {
  CheckGrid(options);
  CHECK(adapter_.empty() || !options.block.has_value()) << options.name;
  CHECK(!options.grid.is_cube || !options.bias || options.split_dim == 0) << options.name;
}

void ColumnParallelLinear::ForAllRows(const LayerContext& ctx, const Tensor& x_TI,
                                      const Tensor& pre_TO, const Tensor& y_TO, LinearSaved* saved,
                                      RowsProduct product) const {
  if (!overlaps_ || !ctx.sequence_parallel)
    return product(Gather(ctx, x_TI), pre_TO, y_TO, /*pieces=*/nullptr);
  std::optional<LinearProducts::Pieces> pieces;
  GatherInPieces(ctx, x_TI, [&](const Tensor& rows_TI, int64_t begin) {
    // Scales are found here and not before, so that the other ranks' rows are on their way by now.
    if (!pieces.has_value())
      pieces = products_.StartForward(ctx, x_TI, weight_OI(), &saved->products);
    const int64_t end = begin + rows_TI.dim(0);
    const LinearProducts::Pieces rows = pieces->Rows(begin, end);
    product(rows_TI, pre_TO.empty() ? Tensor() : pre_TO.Slice(0, begin, end),
            y_TO.Slice(0, begin, end), &rows);
  });
}

void ColumnParallelLinear::Forward(const LayerContext& ctx, const Tensor& x_TI, const Tensor& y_TO,
                                   LinearSaved* saved) const {
  Arena::Scope scope(ctx.scratch);
  saved->x_TI = keeps_codes(ctx) ? Tensor() : x_TI;
  if (ctx.is_grid()) return GridForward(ctx, GridTurn::kInward, x_TI, weight_OI(), bias_O(), y_TO);
  ForAllRows(
      ctx, x_TI, Tensor(), y_TO, saved,
      [&](const Tensor& x, const Tensor&, const Tensor& y, const LinearProducts::Pieces* pieces) {
        products_.Forward(ctx, x, weight_OI(), bias_O(), y, &saved->products, pieces);
        adapter_.AddForward(ctx, x, y);
      });
}

void ColumnParallelLinear::ForwardActivation(const LayerContext& ctx, ops::Activation activation,
                                             const Tensor& x_TI, const Tensor& pre_TO,
                                             const Tensor& y_TO, LinearSaved* saved) const {
  Arena::Scope scope(ctx.scratch);
  saved->x_TI = keeps_codes(ctx) ? Tensor() : x_TI;
  if (ctx.is_grid()) {
    GridForward(ctx, GridTurn::kInward, x_TI, weight_OI(), bias_O(), pre_TO);
    return ops::ActivationForward(ctx.stream, activation, pre_TO, y_TO);
  }
  ForAllRows(ctx, x_TI, pre_TO, y_TO, saved,
             [&](const Tensor& x, const Tensor& pre, const Tensor& y,
                 const LinearProducts::Pieces* pieces) {
               if (adapter_.empty()) {
                 return products_.ForwardActivation(ctx, activation, x, weight_OI(), bias_O(), pre,
                                                    y, &saved->products, pieces);
               }
               products_.Forward(ctx, x, weight_OI(), bias_O(), pre, &saved->products, pieces);
               adapter_.AddForward(ctx, x, pre);
               ops::ActivationForward(ctx.stream, activation, pre, y);
             });
}

AsyncCall ColumnParallelLinear::BackwardInput(const LayerContext& ctx, const Tensor& dy_TO,
                                              const Tensor& dx_TI, LinearSaved* saved) const {
  saved->dy_TO = dy_TO;
  if (ctx.is_grid()) {
    saved->dy_TO = GridBackwardInput(ctx, GridTurn::kInward, dy_TO, weight_OI(), dx_TI);
    return AsyncCall();
  }
  products_.Reserve(ctx, dy_TO, &saved->products);
  if (!ctx.defers()) saved->gathering = StartGather(ctx, saved->x_TI, &saved->all_TI);
  const Tensor summand_TI = SummandOf(ctx, dx_TI);
  products_.BackwardInput(ctx, dy_TO, weight_OI(), summand_TI, &saved->products);
  adapter_.AddBackwardInput(ctx, dy_TO, summand_TI);
  return sums_input_gradient_ ? StartReduce(ctx, summand_TI, dx_TI) : AsyncCall();
}

void ColumnParallelLinear::BackwardWeight(const LayerContext& ctx, const LinearSaved& saved) {
  Arena::Scope scope(ctx.scratch);
  const Tensor dbias_O = saved.bias_is_done ? Tensor() : bias_gradient();
  if (ctx.is_grid()) {
    return GridBackwardWeight(ctx, GridTurn::kInward, saved.dy_TO, saved.x_TI,
                              weight_.grad.View({output_size(), input_size_}), dbias_O);
  }
  if (!ctx.defers()) saved.gathering.Wait();
  const bool reads_x = !weight_.frozen || !adapter_.empty();
  const Tensor x_TI = !reads_x ? Tensor() : ctx.defers() ? Gather(ctx, saved.x_TI) : saved.all_TI;
  if (!weight_.frozen) {
    products_.BackwardWeight(ctx, saved.dy_TO, x_TI,
                             weight_.grad.View({output_size(), input_size_}), dbias_O,
                             saved.products);
  } else if (!dbias_O.empty()) {
    ops::BiasBackward(ctx.stream, saved.dy_TO, dbias_O);
  }
  adapter_.BackwardWeight(ctx, saved.dy_TO, x_TI);
}

void ColumnParallelLinear::AppendParameters(std::vector<Parameter*>* out) {
  out->push_back(&weight_);
  if (has_bias_) out->push_back(&bias_);
  adapter_.AppendParameters(out);
}

RowParallelLinear::RowParallelLinear(const LinearOptions& options, const ProcessGroup& tensor_group)
    : has_bias_(options.bias),
      overlaps_(Overlaps(options, tensor_group)),
      products_(options.float8, LinearProducts::Cut::kInput, options.name + ".weight",
                KeepsCodes(options)),
      weight_(MakeWeight(options, RowWeightSharding(options, tensor_group))),
      bias_(MakeBias(options, RowBiasSharding(options))),
      adapter_(options.adapter, options.name, weight_.sharding, /*by_input=*/true) {
  CheckGrid(options);
  CHECK_EQ(options.output_shape.rank(), 1) << options.name;
}

void RowParallelLinear::Forward(const LayerContext& ctx, const Tensor& x_TI, const Tensor& y_TO,
                                LinearSaved* saved) const {
  Arena::Scope scope(ctx.scratch);
  saved->x_TI = keeps_codes(ctx) ? Tensor() : x_TI;
  if (ctx.is_grid())
    return GridForward(ctx, GridTurn::kOutward, x_TI, weight_.data, Tensor(), y_TO);
  if (overlaps_) {
    const LinearProducts::Pieces pieces =
        products_.StartForward(ctx, x_TI, weight_.data, &saved->products);
    return ReduceInPieces(ctx, y_TO, products_.row_multiple(),
                          [&](int64_t begin, int64_t end, const Tensor& summand) {
                            const Tensor rows_TI = x_TI.Slice(0, begin, end);
                            const LinearProducts::Pieces rows = pieces.Rows(begin, end);
                            products_.Forward(ctx, rows_TI, weight_.data, Tensor(), summand,
                                              &saved->products, &rows);
                            adapter_.AddForward(ctx, rows_TI, summand);
                          });
  }
  const Tensor summand_TO = SummandOf(ctx, y_TO);
  products_.Forward(ctx, x_TI, weight_.data, Tensor(), summand_TO, &saved->products);
  adapter_.AddForward(ctx, x_TI, summand_TO);
  Reduce(ctx, summand_TO, y_TO);
}

Tensor RowParallelLinear::KeepGradient(const LayerContext& ctx, const Tensor& dy_TO,
                                       LinearSaved* saved) const {
  const Tensor all_TO = Gather(ctx, dy_TO);
  saved->dy_TO = ctx.defers() ? dy_TO : all_TO;
  products_.Reserve(ctx, all_TO, &saved->products);
  return all_TO;
}

void RowParallelLinear::BackwardInput(const LayerContext& ctx, const Tensor& dy_TO,
                                      const Tensor& dx_TI, LinearSaved* saved) const {
  if (ctx.is_grid()) {
    saved->dy_TO = GridBackwardInput(ctx, GridTurn::kOutward, dy_TO, weight_.data, dx_TI);
    return;
  }
  const Tensor all_TO = KeepGradient(ctx, dy_TO, saved);
  products_.BackwardInput(ctx, all_TO, weight_.data, dx_TI, &saved->products);
  adapter_.AddBackwardInput(ctx, all_TO, dx_TI);
}

void RowParallelLinear::BackwardInputActivation(const LayerContext& ctx, ops::Activation activation,
                                                const Tensor& dy_TO, const Tensor& pre_TI,
                                                const Tensor& dx_TI, const Tensor& dbias_I,
                                                LinearSaved* saved) const {
  if (ctx.is_grid() || !adapter_.empty()) {
    BackwardInput(ctx, dy_TO, dx_TI, saved);
    if (dbias_I.empty())
      return ops::ActivationBackward(ctx.stream, activation, dx_TI, pre_TI, dx_TI);
    return ops::ActivationBackwardAndBias(ctx.stream, activation, dx_TI, pre_TI, dx_TI, dbias_I);
  }
  products_.BackwardInputActivation(ctx, activation, KeepGradient(ctx, dy_TO, saved), weight_.data,
                                    pre_TI, dx_TI, dbias_I, &saved->products);
}

void RowParallelLinear::BackwardWeight(const LayerContext& ctx, const LinearSaved& saved) {
  if (weight_.frozen && adapter_.empty()) return;
  Arena::Scope scope(ctx.scratch);
  if (ctx.is_grid()) {
    return GridBackwardWeight(ctx, GridTurn::kOutward, saved.dy_TO, saved.x_TI, weight_.grad,
                              Tensor());
  }
  const bool gather = ctx.defers() && (products_.reads_dy() || !adapter_.empty());
  const Tensor dy_TO = gather ? Gather(ctx, saved.dy_TO) : saved.dy_TO;
  if (!weight_.frozen)
    products_.BackwardWeight(ctx, dy_TO, saved.x_TI, weight_.grad, Tensor(), saved.products);
  adapter_.BackwardWeight(ctx, dy_TO, saved.x_TI);
}

void RowParallelLinear::AppendParameters(std::vector<Parameter*>* out) {
  out->push_back(&weight_);
  if (has_bias_) out->push_back(&bias_);
  adapter_.AppendParameters(out);
}

}  // namespace megatron
