// The options that say which products of linear layers are computed in 8-bit floats
// (linear_products.h).
#ifndef MEGATRON_LAYERS_FLOAT8_OPTIONS_H_
#define MEGATRON_LAYERS_FLOAT8_OPTIONS_H_

#include <cstdint>

#include "megatron/tensor/float8_format.h"

namespace megatron {

struct Float8Options {
  bool enabled = false;
  Float8Format gradient = Float8Format::kE5M2;  // the format of dy; x and weights are E4M3
  bool weight_gradient = true;  // false: its product is computed in the layer's dtype
  // The numbers of layers at the ends of a stack whose products are all computed in their dtype.
  int64_t first_layers_without = 0, last_layers_without = 0;
};

// The options of layer `layer`, counted from 0, of a stack of num_layers.
inline Float8Options Float8OfLayer(const Float8Options& options, int64_t layer,
                                   int64_t num_layers) {
  Float8Options of_layer = options;
  of_layer.enabled = options.enabled && layer >= options.first_layers_without &&
                     layer < num_layers - options.last_layers_without;
  return of_layer;
}

}  // namespace megatron

#endif  // MEGATRON_LAYERS_FLOAT8_OPTIONS_H_
