// The options that say which products of linear layers are computed in 8-bit floats, and how their
// scales are found (linear_products.h).
#ifndef MEGATRON_LAYERS_FLOAT8_OPTIONS_H_
#define MEGATRON_LAYERS_FLOAT8_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/tensor/float8_format.h"

namespace megatron {

class Float8History;

enum class Float8Recipe : uint8_t {
  kTensorwise,  // one scale for a tensor, from its own largest magnitude
  kDelayed,     // one scale for a tensor, from its largest magnitudes in earlier steps
  kBlockwise    // a scale for each 128 numbers of x and dy and each 128 x 128 of a weight
};

struct Float8HistoryOptions {
  int64_t length = 1;       // the number of steps that are remembered
  bool most_recent = true;  // whether the last step alone counts, and not the largest of all
  int margin = 0;           // scales are divided by 2^margin
};

struct Float8Options {
  bool enabled = false;
  Float8Recipe recipe = Float8Recipe::kTensorwise;
  Float8Format gradient = Float8Format::kE5M2;  // the format of dy; x and weights are E4M3
  bool weight_gradient = true;  // false: its product is computed in the layer's dtype
  // The numbers of layers at the ends of a stack whose products are all computed in their dtype.
  int64_t first_layers_without = 0, last_layers_without = 0;
  bool power_of_two_scales = true;  // with kBlockwise
  Float8HistoryOptions history_options;
  // Where set, layers append the names of the weights that their products quantize.
  std::vector<std::string>* weights = nullptr;
  // The history of the stage that has the layers; it outlives them. Set with kDelayed.
  Float8History* history = nullptr;
};

// The options of layer `layer`, counted from 0, of a stack of num_layers. Layers behind the stack,
// which predict later tokens, are not at its ends.
inline Float8Options Float8OfLayer(const Float8Options& options, int64_t layer,
                                   int64_t num_layers) {
  Float8Options of_layer = options;
  const bool is_inner =
      layer >= options.first_layers_without && layer < num_layers - options.last_layers_without;
  of_layer.enabled = options.enabled && (is_inner || layer >= num_layers);
  return of_layer;
}

}  // namespace megatron

#endif  // MEGATRON_LAYERS_FLOAT8_OPTIONS_H_
