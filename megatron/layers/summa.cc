#include "megatron/layers/summa.h"

#include "glog/logging.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/linear.h"

namespace megatron {
namespace {

// Returns the block of rank `root` of the group: on that rank `mine`, on others `room`.
Tensor Broadcast(const LayerContext& ctx, const ProcessGroup& group, int root, const Tensor& mine,
                 const Tensor& room) {
  const Tensor& block = group.rank() == root ? mine : room;
  group.Broadcast(block, root, ctx.stream);
  return block;
}

Tensor RoomFor(const LayerContext& ctx, const Tensor& block, const char* name) {
  return ctx.scratch->Allocate(block.dtype(), block.shape(), name);
}

// Returns room for a block of every rank of a row or a column.
Tensor RoomForAll(const LayerContext& ctx, DType dtype, const Shape& block) {
  return ctx.scratch->Allocate(dtype, {ctx.grid.row.size() * block[0], block[1]},
                               "summands of blocks");
}

Tensor Part(const Tensor& all, int part, int64_t rows) {
  return all.Slice(0, part * rows, (part + 1) * rows);
}

}  // namespace

void SummaForward(const LayerContext& ctx, const Tensor& x_TI, const Tensor& w_OI,
                  const Tensor& bias_O, const Tensor& y_TO) {
  CHECK(ctx.is_grid() && !ctx.grid.is_cube);
  Arena::Scope scope(ctx.scratch);
  const Tensor x_room = RoomFor(ctx, x_TI, "broadcast block"),
               w_room = RoomFor(ctx, w_OI, "broadcast block"),
               product_TO = RoomFor(ctx, y_TO, "product of blocks");
  for (int round = 0; round < ctx.grid.row.size(); ++round) {
    const Tensor x = Broadcast(ctx, ctx.grid.row, round, x_TI, x_room);
    const Tensor w = Broadcast(ctx, ctx.grid.column, round, w_OI, w_room);
    if (round == 0) {
      ops::LinearForward(ctx.stream, x, w, bias_O, y_TO);
    } else {
      ops::LinearForward(ctx.stream, x, w, Tensor(), product_TO);
      ops::Add(ctx.stream, product_TO, y_TO);
    }
  }
}

void SummaBackwardInput(const LayerContext& ctx, const Tensor& dy_TO, const Tensor& w_OI,
                        const Tensor& dx_TI) {
  CHECK(ctx.is_grid() && !ctx.grid.is_cube);
  Arena::Scope scope(ctx.scratch);
  const Tensor w_room = RoomFor(ctx, w_OI, "broadcast block"),
               summands = RoomForAll(ctx, dx_TI.dtype(), dx_TI.shape());
  for (int round = 0; round < ctx.grid.row.size(); ++round) {
    const Tensor w = Broadcast(ctx, ctx.grid.column, round, w_OI, w_room);
    ops::LinearBackwardInput(ctx.stream, dy_TO, w, Part(summands, round, dx_TI.dim(0)));
  }
  ctx.grid.row.ReduceScatter(summands, dx_TI, ctx.stream);
}

void SummaBackwardWeight(const LayerContext& ctx, const Tensor& dy_TO, const Tensor& x_TI,
                         const Tensor& dw_OI, const Tensor& dbias_O) {
  CHECK(ctx.is_grid() && !ctx.grid.is_cube);
  Arena::Scope scope(ctx.scratch);
  const int64_t outputs = dw_OI.dim(0);
  const Tensor x_room = RoomFor(ctx, x_TI, "broadcast block"),
               summands = RoomForAll(ctx, DType::kFloat32, dw_OI.shape());
  ops::Zero(ctx.stream, summands);
  for (int round = 0; round < ctx.grid.row.size(); ++round) {
    const Tensor x = Broadcast(ctx, ctx.grid.row, round, x_TI, x_room);
    ops::LinearBackwardWeight(ctx.stream, dy_TO, x, Part(summands, round, outputs),
                              round == 0 ? dbias_O : Tensor());
  }
  const Tensor mine_OI = Part(summands, ctx.grid.column.rank(), outputs);
  ctx.grid.column.ReduceScatter(summands, mine_OI, ctx.stream);
  ops::Add(ctx.stream, mine_OI, dw_OI);
}

}  // namespace megatron
