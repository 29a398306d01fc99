// The fields of hybrid models, whose layers have one branch each (model.hybrid_layer_pattern).
#ifndef MEGATRON_TRAIN_RECIPES_HYBRID_LAYERS_H_
#define MEGATRON_TRAIN_RECIPES_HYBRID_LAYERS_H_

#include "megatron/train/config/config.pb.h"

namespace megatron {

// Sets the unset fields of a hybrid model that follow from others, and the layers that have
// experts.
void ResolveHybridLayers(config::ModelConfig* model);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_RECIPES_HYBRID_LAYERS_H_
