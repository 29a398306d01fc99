// The matrix products of a linear layer over a cube of q * q * q ranks (tensor_grid.h; Z. Bian et
// al., arXiv 2105.14450).
//
// Forward, a rank gathers the tokens of the ranks in its place of the group that has them (the
// column, where the inputs have the residual layout; the row, where they have the inner one) and
// its block of the weight over the levels. The product is a summand, of which the other group's
// ranks sum what is theirs and each takes a part of the tokens. So the outputs have the other
// layout. Backward, gradients go the same way back, and the weight's are summed over the levels.
//
// Each rank receives of tokens and of outputs (q - 1) times what it has of them, and of the weight
// (q - 1) parts, in a forward pass; in a backward pass tokens twice, where gradients of weights are
// not put off outputs once, the weight once, and its gradient once in fp32.
//
// Legend: T tokens of this rank, I inputs, O outputs of a block; the weight is [O, I / q], or
// [O / q, I], of which the ranks on all levels have the block.
#ifndef MEGATRON_LAYERS_CUBE_H_
#define MEGATRON_LAYERS_CUBE_H_

#include "megatron/layers/layer_context.h"
#include "megatron/layers/tensor_grid.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// y = x w^T + bias.
void CubeForward(const LayerContext& ctx, GridTurn turn, const Tensor& x_TI, const Tensor& w,
                 const Tensor& bias_O, const Tensor& y_TO);
// dx = dy w. Returns dy of the tokens of all ranks that CubeBackwardWeight gathers it from, in
// ctx.scratch.
Tensor CubeBackwardInput(const LayerContext& ctx, GridTurn turn, const Tensor& dy_TO,
                         const Tensor& w, const Tensor& dx_TI);
// dw (fp32) += dy^T x, complete over the cube. dbias (fp32) += the column sums of dy, this rank's
// summand, unless it is empty. dy is this rank's, or what CubeBackwardInput returned.
void CubeBackwardWeight(const LayerContext& ctx, GridTurn turn, const Tensor& dy,
                        const Tensor& x_TI, const Tensor& dw, const Tensor& dbias_O);

}  // namespace megatron

#endif  // MEGATRON_LAYERS_CUBE_H_
