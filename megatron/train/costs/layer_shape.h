// The layers of a configured model, as megatron/plan counts them. All functions expect a complete
// model (config_defaults.h).
#ifndef MEGATRON_TRAIN_COSTS_LAYER_SHAPE_H_
#define MEGATRON_TRAIN_COSTS_LAYER_SHAPE_H_

#include <cstdint>

#include "megatron/plan/model_costs.h"
#include "megatron/train/config/config.pb.h"

namespace megatron {

// Returns the width of a value head.
int64_t ValueHeadDim(const config::ModelConfig& model);

// Layers with a mixture of experts and layers with an MLP have the same shape.
LayerShape ToLayerShape(const config::ModelConfig& model);

// Returns how many times wider the model is than that of mup_base_hidden_size; 1 without muP.
double MupWidthMult(const config::ModelConfig& model);

// Returns the number of weights of a norm over `channels` channels: a gain each, and for a
// LayerNorm a bias each.
int64_t NormWeights(const config::ModelConfig& model, int64_t channels);

// Return the number of biases in a layer's self-attention, in its MLP, or in its router and
// experts, and in both.
int64_t AttentionBiases(const config::ModelConfig& model);
int64_t MlpBiases(const config::ModelConfig& model, bool has_experts = false);
int64_t LayerBiases(const config::ModelConfig& model, bool has_experts = false);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_COSTS_LAYER_SHAPE_H_
