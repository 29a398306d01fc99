#include "megatron/train/trainer/trained_layers.h"

#include <memory>

#include "absl/strings/match.h"
#include "megatron/base/status_macros.h"
#include "megatron/layers/low_rank_adapter.h"
#include "megatron/models/make_stage.h"
#include "megatron/tensor/name_patterns.h"
#include "megatron/train/diagnostics/model_layers.h"

namespace megatron {
namespace {

// A number of what all parameters have, and that of those that are trained.
struct Counts {
  double all = 0, trained = 0;

  void Add(double count, bool is_trained) {
    all += count;
    if (is_trained) trained += count;
  }
  double Share() const { return all == 0 ? 1 : trained / all; }
};

// Returns how often a token is multiplied with each element of the parameter.
double UsesOf(const ModelOptions& options, const Parameter& parameter) {
  const char* const words =
      options.tied_embeddings ? "embedding.word_embeddings.weight" : "output_layer.weight";
  if (parameter.name == words) return 1 + static_cast<double>(options.mtp_num_layers);
  if (!parameter.matrix.has_value()) return 0;
  const MoeOptions& moe = options.transformer.moe;
  if (!parameter.sharding.expert_grid) return 1;
  return static_cast<double>(moe.router.topk) / static_cast<double>(moe.num_experts);
}

}  // namespace

// Gradients flow through all layers from the first trained parameter on: a stage lists its
// parameters in the order of forward, with the embedding and the tables of positions first.
absl::StatusOr<TrainedLayers> FindTrainedLayers(const ModelOptions& options,
                                                const std::vector<std::string>& freeze) {
  TrainedLayers found;
  if (freeze.empty()) return found;
  MEGATRON_ASSIGN_OR_RETURN(const NamePatterns frozen, NamePatterns::Create(freeze));
  const ModelLayers rows(options);
  found.layers.resize(rows.num_transformer_layers());
  std::vector<Counts> products(found.layers.size()), parameters(found.layers.size());
  Counts head;
  bool has_backward = false;
  const auto whole = MakeStage(options, {{DeviceType::kMeta}});
  for (const Parameter* parameter : whole->parameters()) {
    const bool is_trained = !frozen.Match(parameter->name);
    has_backward = has_backward || is_trained;
    const int row = rows.RowOf(parameter->name);
    const auto elements = static_cast<double>(parameter->sharding.global_shape.numel());
    const double multiply_adds = elements * UsesOf(options, *parameter);
    const bool is_of_layer = row > 0 && row + 1 < rows.count();
    if (!is_of_layer) {
      head.Add(multiply_adds, is_trained);
      continue;
    }
    const int number = row - ModelLayers::RowOfLayer(0);
    TrainedLayer& layer = found.layers[number];
    layer.has_backward = has_backward;
    parameters[number].Add(elements, is_trained);
    if (absl::StrContains(parameter->name, kAdapterName)) {
      layer.adapters += elements;
      if (is_trained) layer.trained_adapters += elements;
    } else {
      products[number].Add(multiply_adds, is_trained);
    }
  }
  for (size_t i = 0; i < products.size(); ++i) {
    found.layers[i].weights = products[i].Share();
    found.layers[i].parameters = parameters[i].Share();
  }
  found.head_weights = head.Share();
  return found;
}

}  // namespace megatron
