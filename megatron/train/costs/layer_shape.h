// The layers of a configured model, as megatron/plan counts them.
#ifndef MEGATRON_TRAIN_COSTS_LAYER_SHAPE_H_
#define MEGATRON_TRAIN_COSTS_LAYER_SHAPE_H_

#include "megatron/plan/model_costs.h"
#include "megatron/train/config/config.pb.h"

namespace megatron {

// Expects a complete model (config_defaults.h). Layers with a mixture of experts and layers with an
// MLP have the same shape.
LayerShape ToLayerShape(const config::ModelConfig& model);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_COSTS_LAYER_SHAPE_H_
