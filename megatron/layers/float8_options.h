// Which products of a model's linear layers are of 8-bit floats (linear_products.h).
#ifndef MEGATRON_LAYERS_FLOAT8_OPTIONS_H_
#define MEGATRON_LAYERS_FLOAT8_OPTIONS_H_

#include <cstdint>

#include "megatron/tensor/float8.h"

namespace megatron {

struct Float8Options {
  bool enabled = false;
  Float8Format gradient = Float8Format::kE5M2;  // of dy; x and weights are E4M3
  bool weight_gradient = true;                  // false: its product is of the layer's dtype
  // Layers at the ends of a stack whose products are all of their dtype.
  int64_t first_layers_without = 0, last_layers_without = 0;
};

// Those of one layer of a stack of num_layers, counted from 0.
inline Float8Options Float8OfLayer(const Float8Options& options, int64_t layer,
                                   int64_t num_layers) {
  Float8Options of_layer = options;
  of_layer.enabled = options.enabled && layer >= options.first_layers_without &&
                     layer < num_layers - options.last_layers_without;
  return of_layer;
}

}  // namespace megatron

#endif  // MEGATRON_LAYERS_FLOAT8_OPTIONS_H_
