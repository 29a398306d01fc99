#include "megatron/train/recipes/hybrid_layers.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "megatron/train/config/layer_pattern.h"

namespace megatron {

void ResolveHybridLayers(config::ModelConfig* model) {
  if (!model->has_hybrid_layer_pattern()) return;
  // Without a layer M a number would have no effect, and the text of the configuration be refused.
  const bool has_mamba = absl::StrContains(model->hybrid_layer_pattern(), 'M');
  if (has_mamba && !model->has_mamba_num_heads() && model->hidden_size() > 0 &&
      model->mamba_head_dim() > 0) {
    model->set_mamba_num_heads(2 * model->hidden_size() / model->mamba_head_dim());
  }
  const absl::StatusOr<std::string> layers = HybridLayers(*model);
  if (!layers.ok()) return;
  if (!model->has_num_layers()) model->set_num_layers(static_cast<int64_t>(layers->size()));
  if (!model->has_num_experts()) return;
  // What is written must say the same.
  if (model->has_moe_layer_freq() && model->moe_layer_freq() != "1") return;
  std::vector<int> has_experts;
  for (const char layer : *layers) has_experts.push_back(layer == 'E' ? 1 : 0);
  model->set_moe_layer_freq(absl::StrCat("[", absl::StrJoin(has_experts, ","), "]"));
}

}  // namespace megatron
