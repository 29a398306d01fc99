#include "megatron/plan/tensor_grid_traffic.h"

#include <cmath>

namespace megatron {
namespace {

constexpr int kGradientBytes = 4;

// The part of a matrix that a rank of a square receives when all ranks of its row, or of its
// column, broadcast their blocks or add up others' summands.
double Share(int side) { return (side - 1.0) / (static_cast<double>(side) * side); }

double BytesOfAToken1d(const LayerMatrices& layer, int ranks, int element_bytes) {
  return 8.0 * (ranks - 1) / ranks * static_cast<double>(layer.hidden) * element_bytes;
}

// Inputs move in forward, for the weights' gradients, and as gradients of their own.
double BytesOfAToken2d(const LayerMatrices& layer, int side, int element_bytes) {
  return 3 * Share(side) * static_cast<double>(layer.inputs) * element_bytes;
}

// Weights move in forward and for the inputs' gradients.
double BytesOfWeights2d(const LayerMatrices& layer, int side, int element_bytes) {
  return Share(side) * static_cast<double>(layer.elements) * (2 * element_bytes + kGradientBytes);
}

}  // namespace

LayerMatrices MatricesOf(int64_t hidden, int64_t ffn, bool gated, int64_t heads, int64_t groups,
                         int64_t head_size) {
  const int64_t packed = (heads + 2 * groups) * head_size, context = heads * head_size;
  LayerMatrices layer;
  layer.hidden = hidden;
  layer.inputs = hidden + context + hidden + ffn;
  layer.elements = hidden * (packed + context + (gated ? 3 : 2) * ffn);
  return layer;
}

double BytesReceivedIn1d(const LayerMatrices& layer, int ranks, int64_t tokens, int element_bytes) {
  return BytesOfAToken1d(layer, ranks, element_bytes) * static_cast<double>(tokens);
}

double BytesReceivedIn2d(const LayerMatrices& layer, int side, int64_t tokens, int element_bytes) {
  return BytesOfAToken2d(layer, side, element_bytes) * static_cast<double>(tokens) +
         BytesOfWeights2d(layer, side, element_bytes);
}

std::optional<int64_t> TokensFromWhich2dIsLess(const LayerMatrices& layer, int side,
                                               int element_bytes) {
  const double saved = BytesOfAToken1d(layer, side * side, element_bytes) -
                       BytesOfAToken2d(layer, side, element_bytes);
  if (saved <= 0) return std::nullopt;
  return static_cast<int64_t>(std::floor(BytesOfWeights2d(layer, side, element_bytes) / saved)) + 1;
}

}  // namespace megatron
