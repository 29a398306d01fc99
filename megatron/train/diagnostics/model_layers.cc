#include "megatron/train/diagnostics/model_layers.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace megatron {

ModelLayers::ModelLayers(const ModelOptions& options) : names_({"embedding"}) {
  const auto add = [&](absl::string_view stack, int64_t count) {
    for (int64_t i = 0; i < count; ++i) names_.push_back(absl::StrCat(stack, ".layers.", i));
  };
  add("encoder", options.num_encoder_layers);
  add(options.transformer.name, options.transformer.num_layers);
  names_.push_back("other");
}

int ModelLayers::RowOf(absl::string_view name) const {
  if (absl::StartsWith(name, "embedding.")) return 0;
  // The layer's name is what stands before the third dot.
  size_t end = 0;
  for (int dots = 0; dots < 3 && end != name.npos; ++dots) end = name.find('.', end + (dots > 0));
  const absl::string_view layer = name.substr(0, end);
  for (int row = 1; row < count(); ++row) {
    if (names_[row] == layer) return row;
  }
  return count() - 1;
}

}  // namespace megatron
