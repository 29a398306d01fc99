// The matrix products of a linear layer over a grid of ranks (tensor_grid.h): over the squares of
// 2D and 2.5D (summa.h), or the cube of 3D (cube.h). Tensors are this rank's blocks.
//
// Legend: T tokens, I inputs, O outputs, all of this rank.
#ifndef MEGATRON_LAYERS_GRID_PRODUCTS_H_
#define MEGATRON_LAYERS_GRID_PRODUCTS_H_

#include "megatron/layers/layer_context.h"
#include "megatron/layers/tensor_grid.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// y = x w^T + bias.
void GridForward(const LayerContext& ctx, GridTurn turn, const Tensor& x_TI, const Tensor& w,
                 const Tensor& bias_O, const Tensor& y_TO);
// dx = dy w. Returns what GridBackwardWeight is to be given as dy: dy itself where ctx.defers(),
// else dy or a copy of it with other ranks' tokens in ctx.scratch, where the caller's scope must
// hold it until then.
Tensor GridBackwardInput(const LayerContext& ctx, GridTurn turn, const Tensor& dy_TO,
                         const Tensor& w, const Tensor& dx_TI);
// dw (fp32) += dy^T x, complete over the grid but for other levels of squares. dbias (fp32) += the
// column sums of dy, this rank's summand, unless it is empty.
void GridBackwardWeight(const LayerContext& ctx, GridTurn turn, const Tensor& dy,
                        const Tensor& x_TI, const Tensor& dw, const Tensor& dbias_O);

}  // namespace megatron

#endif  // MEGATRON_LAYERS_GRID_PRODUCTS_H_
