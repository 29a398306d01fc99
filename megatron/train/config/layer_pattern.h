// Parses a pattern of layers in the format of Megatron's --moe-layer-freq: a number n, for some of
// each n layers; or a list with a 0 or 1 for each layer, made of lists that are repeated by "*" and
// joined by "+", with or without parentheses around the whole: "[0]+[1]*23", "([1,0]*6)".
#ifndef MEGATRON_TRAIN_CONFIG_LAYER_PATTERN_H_
#define MEGATRON_TRAIN_CONFIG_LAYER_PATTERN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/train/config/config.pb.h"

namespace megatron {

// The layers of each n that a number n stands for.
enum class LayersOfEach { kFirst, kLast, kAllButLast };

absl::StatusOr<std::vector<bool>> ParseLayerPattern(absl::string_view text, int64_t num_layers,
                                                    LayersOfEach number = LayersOfEach::kFirst);

// Returns the letters of a hybrid model's layers (model.hybrid_layer_pattern), one for each.
absl::StatusOr<std::string> HybridLayers(const config::ModelConfig& model);

// Return which layers' attention sees a window, and which rotate queries and keys if any do.
absl::StatusOr<std::vector<bool>> WindowLayers(const config::ModelConfig& model);
absl::StatusOr<std::vector<bool>> RotaryLayers(const config::ModelConfig& model);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_CONFIG_LAYER_PATTERN_H_
