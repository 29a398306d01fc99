// The layers of a model as metrics name them.
#ifndef MEGATRON_TRAIN_DIAGNOSTICS_MODEL_LAYERS_H_
#define MEGATRON_TRAIN_DIAGNOSTICS_MODEL_LAYERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "megatron/models/model_options.h"

namespace megatron {

// The rows of a table of layers: "embedding", each transformer layer ("decoder.layers.0", an
// encoder's first), and "other", which has all other parameters (final norms, output matrices,
// heads). All ranks have the same rows.
class ModelLayers {
 public:
  explicit ModelLayers(const ModelOptions& options);

  const std::vector<std::string>& names() const { return names_; }
  int count() const { return static_cast<int>(names_.size()); }
  // The number of transformer layers, and the row of one, counted over the whole model.
  int num_transformer_layers() const { return count() - 2; }
  static int RowOfLayer(int64_t number) { return static_cast<int>(number) + 1; }
  // Returns the row of a parameter or another part of the model, by its name.
  int RowOf(absl::string_view name) const;

 private:
  std::vector<std::string> names_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_DIAGNOSTICS_MODEL_LAYERS_H_
