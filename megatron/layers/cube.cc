#include "megatron/layers/cube.h"

#include "glog/logging.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/linear.h"

namespace megatron {
namespace {

// The ranks that have the other tokens of the inputs, and those that have the other inputs.
const ProcessGroup& TokensOfInputs(const LayerContext& ctx, GridTurn turn) {
  return turn == GridTurn::kInward ? ctx.grid.column : ctx.grid.row;
}
const ProcessGroup& TokensOfOutputs(const LayerContext& ctx, GridTurn turn) {
  return turn == GridTurn::kInward ? ctx.grid.row : ctx.grid.column;
}

// Returns memory of ctx.scratch for what every rank of the group has of rows like x.
Tensor RoomForAll(const LayerContext& ctx, const ProcessGroup& group, const Tensor& x,
                  const char* name) {
  return ctx.scratch->Allocate(x.dtype(), {group.size() * x.dim(0), x.dim(1)}, name);
}

Tensor GatherRows(const LayerContext& ctx, const ProcessGroup& group, const Tensor& x) {
  const Tensor all = RoomForAll(ctx, group, x, "gathered rows");
  group.AllGather(x, all, ctx.stream);
  return all;
}

// Whether the levels have parts of the block's inputs, and not of its outputs.
bool IsCutByInputs(const Tensor& x_TI, const Tensor& w) { return w.dim(1) != x_TI.dim(1); }

Tensor Part(const Tensor& all, int dim, int part, int64_t size) {
  return all.Slice(dim, part * size, (part + 1) * size);
}

// Returns the block of the weight whose parts are on the levels.
Tensor GatherWeight(const LayerContext& ctx, const Tensor& x_TI, const Tensor& w) {
  const Tensor parts = GatherRows(ctx, ctx.grid.depth, w);
  if (!IsCutByInputs(x_TI, w)) return parts;
  const Tensor block_OI = ctx.scratch->Allocate(w.dtype(), {w.dim(0), x_TI.dim(1)}, "weight block");
  for (int level = 0; level < ctx.grid.depth.size(); ++level) {
    ops::Copy(ctx.stream, Part(parts, 0, level, w.dim(0)), Part(block_OI, 1, level, w.dim(1)));
  }
  return block_OI;
}

}  // namespace

void CubeForward(const LayerContext& ctx, GridTurn turn, const Tensor& x_TI, const Tensor& w,
                 const Tensor& bias_O, const Tensor& y_TO) {
  CHECK(ctx.grid.is_cube);
  Arena::Scope scope(ctx.scratch);
  const ProcessGroup& outputs = TokensOfOutputs(ctx, turn);
  const Tensor x = GatherRows(ctx, TokensOfInputs(ctx, turn), x_TI);
  const Tensor w_OI = GatherWeight(ctx, x_TI, w);
  const Tensor summand = RoomForAll(ctx, outputs, y_TO, "summand of rows");
  // The bias is part of one summand.
  ops::LinearForward(ctx.stream, x, w_OI, outputs.rank() == 0 ? bias_O : Tensor(), summand);
  outputs.ReduceScatter(summand, y_TO, ctx.stream);
}

Tensor CubeBackwardInput(const LayerContext& ctx, GridTurn turn, const Tensor& dy_TO,
                         const Tensor& w, const Tensor& dx_TI) {
  CHECK(ctx.grid.is_cube);
  const ProcessGroup& inputs = TokensOfInputs(ctx, turn);
  const Tensor dy = GatherRows(ctx, TokensOfOutputs(ctx, turn), dy_TO);
  Arena::Scope scope(ctx.scratch);
  const Tensor w_OI = GatherWeight(ctx, dx_TI, w);
  const Tensor summand = RoomForAll(ctx, inputs, dx_TI, "summand of rows");
  ops::LinearBackwardInput(ctx.stream, dy, w_OI, summand);
  inputs.ReduceScatter(summand, dx_TI, ctx.stream);
  return dy;
}

void CubeBackwardWeight(const LayerContext& ctx, GridTurn turn, const Tensor& dy_TO,
                        const Tensor& x_TI, const Tensor& dw, const Tensor& dbias_O) {
  CHECK(ctx.grid.is_cube);
  Arena::Scope scope(ctx.scratch);
  const ProcessGroup &outputs = TokensOfOutputs(ctx, turn), &levels = ctx.grid.depth;
  const Tensor dy = dy_TO.dim(0) == x_TI.dim(0) ? GatherRows(ctx, outputs, dy_TO) : dy_TO;
  const Tensor x = GatherRows(ctx, TokensOfInputs(ctx, turn), x_TI);
  const Tensor summands = ctx.scratch->Allocate(
      DType::kFloat32, {levels.size() * dw.dim(0), dw.dim(1)}, "summands of weight gradients");
  ops::Zero(ctx.stream, summands);
  // The ranks that have the outputs' other tokens see the same dy, of which one adds to the bias.
  const Tensor dbias = outputs.rank() == 0 ? dbias_O : Tensor();
  if (IsCutByInputs(x_TI, dw)) {
    for (int level = 0; level < levels.size(); ++level) {
      ops::LinearBackwardWeight(ctx.stream, dy, Part(x, 1, level, dw.dim(1)),
                                Part(summands, 0, level, dw.dim(0)), level == 0 ? dbias : Tensor());
    }
  } else {
    ops::LinearBackwardWeight(ctx.stream, dy, x, summands, dbias);
  }
  const Tensor mine = Part(summands, 0, levels.rank(), dw.dim(0));
  levels.ReduceScatter(summands, mine, ctx.stream);
  ops::Add(ctx.stream, mine, dw);
}

}  // namespace megatron
