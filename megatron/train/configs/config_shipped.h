// The configurations that come with the program, compiled into it: they are there wherever it was
// copied to.

#ifndef MEGATRON_TRAIN_CONFIGS_CONFIG_SHIPPED_H_
#define MEGATRON_TRAIN_CONFIGS_CONFIG_SHIPPED_H_

#include <vector>

#include "absl/strings/string_view.h"

namespace megatron {

struct ShippedConfig {
  absl::string_view name;  // "gpt_demo.textproto"
  absl::string_view text;
};

// Sorted by name.
const std::vector<ShippedConfig>& ShippedConfigs();

}  // namespace megatron

#endif  // MEGATRON_TRAIN_CONFIGS_CONFIG_SHIPPED_H_
