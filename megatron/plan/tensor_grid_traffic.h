// What tensor-parallel ranks receive from each other, cut along one dim and along both
// (docs/tensor_grid.md), in the layers between the embedding and the output layer.
//
// Sizes are those of one transformer layer, and M tokens of a micro-batch. Along one dim each of p
// ranks receives 8 (p - 1) / p blocks of M * hidden elements, whatever the weights: two all-reduces
// forward and two backward. On a square of q * q ranks it receives blocks of inputs and of weights,
// (q - 1) / q^2 of each matrix three times: so 1D grows with the tokens alone, and 2D has less to
// send where there are many tokens for the weights. The two floats a token of norms are left out.
#ifndef MEGATRON_PLAN_TENSOR_GRID_TRAFFIC_H_
#define MEGATRON_PLAN_TENSOR_GRID_TRAFFIC_H_

#include <cstdint>
#include <optional>

namespace megatron {

struct LayerMatrices {
  int64_t hidden = 0;
  int64_t inputs = 0;    // the sum of the matrices' input features
  int64_t elements = 0;  // the sum of their elements
};

// Returns the matrices of attention and an MLP.
LayerMatrices MatricesOf(int64_t hidden, int64_t ffn, bool gated, int64_t heads, int64_t groups,
                         int64_t head_size);

// Return the bytes that a rank receives in the forward and backward pass of a layer, with
// `element_bytes` for each activation and weight; gradients of weights have 4.
double BytesReceivedIn1d(const LayerMatrices& layer, int ranks, int64_t tokens, int element_bytes);
double BytesReceivedIn2d(const LayerMatrices& layer, int side, int64_t tokens, int element_bytes);

// Returns the number of tokens of a micro-batch from which on a rank of a square of `side` receives
// less than one of as many ranks in 1D; nothing where it never does.
std::optional<int64_t> TokensFromWhich2dIsLess(const LayerMatrices& layer, int side,
                                               int element_bytes);

}  // namespace megatron

#endif  // MEGATRON_PLAN_TENSOR_GRID_TRAFFIC_H_
