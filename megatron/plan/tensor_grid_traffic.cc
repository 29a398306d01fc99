#include "megatron/plan/tensor_grid_traffic.h"

#include <cmath>

namespace megatron {
namespace {

constexpr double kGradientBytes = 4;

double BytesOfAToken1d(const LayerMatrices& layer, int64_t ranks, int element_bytes,
                       bool gathers_again) {
  const double p = static_cast<double>(ranks);
  return (gathers_again ? 10 : 8) * (p - 1) / p * static_cast<double>(layer.hidden) * element_bytes;
}

// Inputs move in forward, for the weights' gradients, and as gradients of their own. Weights move
// in forward and for the inputs' gradients. Each of four matrices has a call.
std::vector<GridCall> CallsOfSquares(const LayerMatrices& layer, const PlanGrid& grid,
                                     double tokens, double element_bytes) {
  const double side = static_cast<double>(grid.side), depth = static_cast<double>(grid.depth);
  const int64_t row = grid.side * grid.depth, column = grid.depth;
  const double inputs = tokens / (side * depth) * static_cast<double>(layer.inputs) / 4,
               weights = static_cast<double>(layer.elements) / side / 4;
  const double e = element_bytes;
  return {{"inputs of products", grid.side, row, false, true, 4, e * inputs},
          {"weights", grid.side, column, false, true, 4, e * weights},
          {"weights", grid.side, column, false, false, 4, e * weights},
          {"gradients of inputs", grid.side, row, true, false, 4, e * inputs},
          {"inputs of products", grid.side, row, false, false, 4, e * inputs},
          {"gradients of weights", grid.side, column, true, false, 4, kGradientBytes * weights}};
}

// The inputs of two matrices have the residual layout, in which the ranks of a column have
// different tokens, and those of the others the inner one, in which the ranks of a row have. With
// outputs it is the other way around.
std::vector<GridCall> CallsOfCube(const LayerMatrices& layer, const PlanGrid& grid, double tokens,
                                  double element_bytes) {
  const double side = static_cast<double>(grid.side);
  const int64_t row = grid.side * grid.side, column = grid.side;
  const double rows = tokens / (side * side), e = element_bytes;
  const double residual = rows * static_cast<double>(layer.hidden),
               inner_inputs = rows * static_cast<double>(layer.inputs - 2 * layer.hidden) / 2,
               inner_outputs = rows * static_cast<double>(layer.outputs - 2 * layer.hidden) / 2,
               weights = static_cast<double>(layer.elements) / (side * side) / 4;
  std::vector<GridCall> calls;
  const auto add = [&](const char* what, double inner, bool sums, bool is_forward) {
    calls.push_back({what, grid.side, column, sums, is_forward, 2, e * residual});
    calls.push_back({what, grid.side, row, sums, is_forward, 2, e * inner});
  };
  add("inputs of products", inner_inputs, /*sums=*/false, /*is_forward=*/true);
  add("outputs of products", inner_outputs, /*sums=*/true, /*is_forward=*/true);
  add("gradients of outputs", inner_outputs, /*sums=*/false, /*is_forward=*/false);
  add("gradients of inputs", inner_inputs, /*sums=*/true, /*is_forward=*/false);
  add("inputs of products", inner_inputs, /*sums=*/false, /*is_forward=*/false);
  for (const bool is_forward : {true, false})
    calls.push_back({"weights", grid.side, 1, false, is_forward, 4, e * weights});
  calls.push_back({"gradients of weights", grid.side, 1, true, false, 4, kGradientBytes * weights});
  return calls;
}

}  // namespace

LayerMatrices MatricesOf(int64_t hidden, int64_t ffn, bool gated, int64_t heads, int64_t groups,
                         int64_t head_size) {
  const int64_t packed = (heads + 2 * groups) * head_size, context = heads * head_size;
  const int64_t halves = gated ? 2 : 1;
  LayerMatrices layer;
  layer.hidden = hidden;
  layer.inputs = hidden + context + hidden + ffn;
  layer.outputs = packed + hidden + halves * ffn + hidden;
  layer.elements = hidden * (packed + context + (halves + 1) * ffn);
  return layer;
}

std::vector<PlanGrid> TensorGridsOf(int64_t ranks) {
  std::vector<PlanGrid> grids;
  for (int64_t depth = 1; depth * 4 <= ranks; ++depth) {
    for (int64_t side = 2; side * side * depth <= ranks; ++side) {
      if (side * side * depth == ranks) grids.push_back({side, depth, /*is_cube=*/false});
    }
  }
  for (int64_t side = 2; side * side * side <= ranks; ++side) {
    if (side * side * side == ranks) grids.push_back({side, side, /*is_cube=*/true});
  }
  return grids;
}

std::vector<GridCall> GridCallsOf(const LayerMatrices& layer, const PlanGrid& grid, double tokens,
                                  double element_bytes) {
  return grid.is_cube ? CallsOfCube(layer, grid, tokens, element_bytes)
                      : CallsOfSquares(layer, grid, tokens, element_bytes);
}

double BytesReceivedIn1d(const LayerMatrices& layer, int64_t ranks, int64_t tokens,
                         int element_bytes, bool is_sequence_parallel) {
  return BytesOfAToken1d(layer, ranks, element_bytes, is_sequence_parallel) *
         static_cast<double>(tokens);
}

double BytesReceivedOnGrid(const LayerMatrices& layer, const PlanGrid& grid, int64_t tokens,
                           int element_bytes) {
  double bytes = 0;
  for (const GridCall& call :
       GridCallsOf(layer, grid, static_cast<double>(tokens), element_bytes)) {
    bytes += call.received();
  }
  return bytes;
}

double BytesOfLevels(const LayerMatrices& layer, const PlanGrid& grid) {
  if (grid.is_cube) return 0;
  const double d = static_cast<double>(grid.depth);
  return 2 * (d - 1) / d * kGradientBytes * static_cast<double>(layer.elements) /
         static_cast<double>(grid.weight_ranks());
}

std::optional<int64_t> TokensFromWhichGridIsLess(const LayerMatrices& layer, const PlanGrid& grid,
                                                 int element_bytes, bool is_sequence_parallel) {
  const double of_weights = BytesReceivedOnGrid(layer, grid, 0, element_bytes);
  const double of_token = BytesReceivedOnGrid(layer, grid, 1, element_bytes) - of_weights;
  const double saved =
      BytesOfAToken1d(layer, grid.ranks(), element_bytes, is_sequence_parallel) - of_token;
  if (saved <= 0) return std::nullopt;
  return static_cast<int64_t>(std::floor(of_weights / saved)) + 1;
}

}  // namespace megatron
