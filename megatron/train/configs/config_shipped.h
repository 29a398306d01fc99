// The configurations that come with the program. They are compiled into it, so that they are
// available wherever it is copied.

#ifndef MEGATRON_TRAIN_CONFIGS_CONFIG_SHIPPED_H_
#define MEGATRON_TRAIN_CONFIGS_CONFIG_SHIPPED_H_

#include <vector>

#include "absl/strings/string_view.h"

namespace megatron {

struct ShippedConfig {
  absl::string_view name;  // "gpt_demo.textproto"
  absl::string_view text;
};

// Returns the configurations, sorted by name.
const std::vector<ShippedConfig>& ShippedConfigs();

}  // namespace megatron

#endif  // MEGATRON_TRAIN_CONFIGS_CONFIG_SHIPPED_H_
