// What tensor-parallel ranks receive from each other, cut along one dim and over a grid
// (docs/tensor_grid.md), in the layers between the embedding and the output layer.
//
// Sizes are those of one transformer layer, and M tokens of a micro-batch. Along one dim each of p
// ranks receives 8 (p - 1) / p blocks of M * hidden elements, whatever the weights: two all-reduces
// forward and two backward. Over a grid ranks receive blocks of inputs and of weights, and in a
// cube of outputs too, which are smaller the more ranks there are: so 1D grows with the tokens
// alone, and a grid has less to send where there are many tokens for the weights. The two floats a
// token of norms are left out.
#ifndef MEGATRON_PLAN_TENSOR_GRID_TRAFFIC_H_
#define MEGATRON_PLAN_TENSOR_GRID_TRAFFIC_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace megatron {

struct LayerMatrices {
  int64_t hidden = 0;
  int64_t inputs = 0;    // the sum of the matrices' input features
  int64_t outputs = 0;   // the sum of their output features
  int64_t elements = 0;  // the sum of their elements
};

// Returns the matrices of attention and an MLP.
LayerMatrices MatricesOf(int64_t hidden, int64_t ffn, bool gated, int64_t heads, int64_t groups,
                         int64_t head_size);

// The grid of tensor-parallel ranks (comm/rank_grid.h).
struct PlanGrid {
  int64_t side = 1;  // 1: there is none
  int64_t depth = 1;
  bool is_cube = false;

  bool is_grid() const { return side > 1; }
  int64_t ranks() const { return side * side * depth; }
  // Returns of how many samples a micro-batch has a multiple.
  int64_t samples() const { return side * depth; }
  // Returns the number of ranks that share out a weight.
  int64_t weight_ranks() const { return is_cube ? ranks() : side * side; }
  const char* mode() const { return is_cube ? "3D" : depth > 1 ? "2.5D" : "2D"; }
};

// Returns the grids that so many ranks form: squares by depth, then a cube.
std::vector<PlanGrid> TensorGridsOf(int64_t ranks);

// Calls of the passes of a layer for one micro-batch. What each rank of the group broadcasts in
// turn is counted as one call that gathers.
struct GridCall {
  const char* what;  // "inputs of products"
  // The ranks of a group are `stride` apart.
  int64_t ranks = 1, stride = 1;
  bool sums = false;  // what is gathered or summed up: the parts of all ranks
  bool is_forward = false;
  double calls = 0;
  double bytes = 0;  // those of one call's whole tensor

  // Returns the bytes that a rank receives.
  double received() const {
    return calls * bytes * static_cast<double>(ranks - 1) / static_cast<double>(ranks);
  }
};

// Returns the calls of a grid for `tokens` tokens of a micro-batch, with `element_bytes` for each
// activation and weight; gradients of weights have 4.
std::vector<GridCall> GridCallsOf(const LayerMatrices& layer, const PlanGrid& grid, double tokens,
                                  double element_bytes);

// Return the bytes that a rank receives in the forward and backward pass of a layer. With sequence
// parallelism the inputs of products are gathered once more.
double BytesReceivedIn1d(const LayerMatrices& layer, int64_t ranks, int64_t tokens,
                         int element_bytes, bool is_sequence_parallel = false);
double BytesReceivedOnGrid(const LayerMatrices& layer, const PlanGrid& grid, int64_t tokens,
                           int element_bytes);
// Returns those that it receives once a step, whatever the micro-batches: the levels of squares sum
// up the gradients of their weights.
double BytesOfLevels(const LayerMatrices& layer, const PlanGrid& grid);

// Returns the number of tokens of a micro-batch from which on a rank of the grid receives less than
// one of as many ranks in 1D; nothing where it never does.
std::optional<int64_t> TokensFromWhichGridIsLess(const LayerMatrices& layer, const PlanGrid& grid,
                                                 int element_bytes,
                                                 bool is_sequence_parallel = false);

}  // namespace megatron

#endif  // MEGATRON_PLAN_TENSOR_GRID_TRAFFIC_H_
