// Parses a pattern of layers in the format of Megatron's --moe-layer-freq: a number n, for every
// n-th layer from the first on; or a list with a 0 or 1 for each layer, made of lists that are
// repeated by "*" and joined by "+", with or without parentheses around the whole: "[0]+[1]*23",
// "([1,0]*6)".
#ifndef MEGATRON_TRAIN_CONFIG_LAYER_PATTERN_H_
#define MEGATRON_TRAIN_CONFIG_LAYER_PATTERN_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megatron {

absl::StatusOr<std::vector<bool>> ParseLayerPattern(absl::string_view text, int64_t num_layers);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_CONFIG_LAYER_PATTERN_H_
