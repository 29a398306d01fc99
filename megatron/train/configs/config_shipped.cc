#include "megatron/train/configs/config_shipped.h"

#include <algorithm>
#include <vector>

#include "absl/strings/string_view.h"

namespace megatron {

const std::vector<ShippedConfig>& ShippedConfigs() {
  static const auto* const configs = [] {
    auto* const list = new std::vector<ShippedConfig>{
#include "megatron/train/configs/config_shipped_entries.inc"
    };
    for (ShippedConfig& config : *list)
      config.text.remove_prefix(1);  // the line feed that opens the literal
    std::sort(list->begin(), list->end(),
              [](const ShippedConfig& a, const ShippedConfig& b) { return a.name < b.name; });
    return list;
  }();
  return *configs;
}

}  // namespace megatron
