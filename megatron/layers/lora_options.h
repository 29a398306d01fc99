// Which linear layers of a model have low-rank adapters (low_rank_adapter.h).
#ifndef MEGATRON_LAYERS_LORA_OPTIONS_H_
#define MEGATRON_LAYERS_LORA_OPTIONS_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace megatron {

// The adapter of one layer.
struct LowRankOptions {
  int64_t dim = 0;  // 0: there is none
  float scale = 0;  // alpha / dim
  float dropout = 0;
};

struct LoraOptions {
  int64_t dim = 0;  // 0: no layer has an adapter
  double alpha = 0;
  std::vector<std::string> target_modules;  // "linear_qkv", "linear_proj", ...
  float dropout = 0;

  // Returns the options of the layers that are called `module`.
  LowRankOptions Of(absl::string_view module) const {
    const bool targeted =
        std::find(target_modules.begin(), target_modules.end(), module) != target_modules.end();
    if (dim == 0 || !targeted) return {};
    return {dim, static_cast<float>(alpha / static_cast<double>(dim)), dropout};
  }
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_LORA_OPTIONS_H_
