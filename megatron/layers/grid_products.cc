#include "megatron/layers/grid_products.h"

#include "megatron/layers/cube.h"
#include "megatron/layers/summa.h"

namespace megatron {

void GridForward(const LayerContext& ctx, GridTurn turn, const Tensor& x_TI, const Tensor& w,
                 const Tensor& bias_O, const Tensor& y_TO) {
  if (ctx.grid.is_cube) return CubeForward(ctx, turn, x_TI, w, bias_O, y_TO);
  SummaForward(ctx, x_TI, w, bias_O, y_TO);
}

Tensor GridBackwardInput(const LayerContext& ctx, GridTurn turn, const Tensor& dy_TO,
                         const Tensor& w, const Tensor& dx_TI) {
  if (!ctx.grid.is_cube) {
    SummaBackwardInput(ctx, dy_TO, w, dx_TI);
    return dy_TO;
  }
  if (!ctx.defers()) return CubeBackwardInput(ctx, turn, dy_TO, w, dx_TI);
  Arena::Scope scope(ctx.scratch);
  CubeBackwardInput(ctx, turn, dy_TO, w, dx_TI);
  return dy_TO;
}

void GridBackwardWeight(const LayerContext& ctx, GridTurn turn, const Tensor& dy,
                        const Tensor& x_TI, const Tensor& dw, const Tensor& dbias_O) {
  if (ctx.grid.is_cube) return CubeBackwardWeight(ctx, turn, dy, x_TI, dw, dbias_O);
  SummaBackwardWeight(ctx, dy, x_TI, dw, dbias_O);
}

}  // namespace megatron
