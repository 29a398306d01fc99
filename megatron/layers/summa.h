// The matrix products of a linear layer over a square of q * q ranks (tensor_grid.h), by SUMMA
// (R. van de Geijn and J. Watts, 1997), in q rounds. Each of several squares has its own tokens.
//
// Forward, round l: the ranks of column l broadcast x along their rows, those of row l broadcast
// the weight along their columns, and every rank adds the product to y. Backward, the broadcasts of
// one operand meet the gradient, and the products, which are summands of another rank's block, are
// summed over the row or the column. Each rank receives in a forward pass (q - 1) blocks of x and
// as many of the weight, and in a backward pass twice that.
//
// A round's product has the dtype of y, to which it is added: a sum is rounded once a round.
//
// Legend: T tokens of this row, I inputs of this column (of a weight: of this row), O outputs of
// this column.
#ifndef MEGATRON_LAYERS_SUMMA_H_
#define MEGATRON_LAYERS_SUMMA_H_

#include "megatron/layers/layer_context.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// y = x w^T + bias.
void SummaForward(const LayerContext& ctx, const Tensor& x_TI, const Tensor& w_OI,
                  const Tensor& bias_O, const Tensor& y_TO);
// dx = dy w.
void SummaBackwardInput(const LayerContext& ctx, const Tensor& dy_TO, const Tensor& w_OI,
                        const Tensor& dx_TI);
// dw (fp32) += dy^T x, complete over the square. dbias (fp32) += the column sums of dy, this row's
// summand, unless it is empty.
void SummaBackwardWeight(const LayerContext& ctx, const Tensor& dy_TO, const Tensor& x_TI,
                         const Tensor& dw_OI, const Tensor& dbias_O);

}  // namespace megatron

#endif  // MEGATRON_LAYERS_SUMMA_H_
