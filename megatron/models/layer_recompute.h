// The choice of the layers of a stack that are recomputed in backward as a whole.
#ifndef MEGATRON_MODELS_LAYER_RECOMPUTE_H_
#define MEGATRON_MODELS_LAYER_RECOMPUTE_H_

#include <cstdint>

namespace megatron {

// Recomputation of whole layers. TransformerOptions::recompute is that of parts of a layer.
struct LayerRecompute {
  enum Method {
    kNone,
    kUniform,  // every group of num_layers layers keeps its input alone
    kBlock,    // each of the first num_layers layers keeps its input alone
  };
  Method method = kNone;
  int64_t num_layers = 1;
};

}  // namespace megatron

#endif  // MEGATRON_MODELS_LAYER_RECOMPUTE_H_
