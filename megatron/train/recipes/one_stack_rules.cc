#include "megatron/train/recipes/one_stack_rules.h"

#include "absl/strings/str_cat.h"
#include "megatron/train/config/layer_pattern.h"
#include "megatron/train/costs/layer_shape.h"

namespace megatron {
namespace {

// Returns for each layer whether it has experts.
std::vector<bool> LayersWithExperts(const config::ModelConfig& model) {
  if (!model.has_num_experts()) return std::vector<bool>(model.num_layers(), false);
  return *ParseLayerPattern(model.moe_layer_freq(), model.num_layers());
}

}  // namespace

void CheckOneStack(ConfigChecker& check) {
  if (check.resolved().model().position_embedding_type() != config::PositionEmbedding::relative)
    return;
  check.Error("model.position_embedding_type",
              absl::StrCat("may be relative with model.model_type: t5 alone, not with ",
                           check.Named("model.model_type")));
}

int64_t CountOneStackParameters(const config::ModelConfig& model, int64_t padded_vocab_size) {
  const int64_t norm = NormWeights(model, model.hidden_size());
  const int64_t qk_norms = model.qk_layernorm() ? 2 * NormWeights(model, model.kv_channels()) : 0;
  const bool learned =
      model.position_embedding_type() == config::PositionEmbedding::learned_absolute;
  const int64_t rows = padded_vocab_size * (model.untie_embeddings_and_output_weights() ? 2 : 1) +
                       (learned ? model.max_position_embeddings() : 0);
  const int64_t sinks =
      model.softmax_type() == config::SoftmaxType::learnable ? model.num_attention_heads() : 0;
  int64_t layers = model.num_layers() * (2 * norm + qk_norms + sinks);
  for (const bool experts : LayersWithExperts(model)) layers += LayerBiases(model, experts);
  for (const MatrixProducts& layer : OneStackProducts(model, /*seen=*/0, /*in_window=*/0))
    layers += CountWeights(layer);
  // The last norm, or in a post-norm model that of the embedding.
  return layers + norm + rows * model.hidden_size();
}

std::vector<MatrixProducts> OneStackProducts(const config::ModelConfig& model, double seen,
                                             double in_window) {
  const LayerShape shape = ToLayerShape(model);
  const double tokens = static_cast<double>(model.seq_length());
  const std::vector<bool> has_experts = LayersWithExperts(model);
  const std::vector<bool> has_window = *WindowLayers(model);
  std::vector<MatrixProducts> layers;
  for (int64_t i = 0; i < model.num_layers(); ++i) {
    layers.push_back(
        Joined(SelfAttentionProducts(shape, tokens, has_window[i] ? in_window : seen),
               has_experts[i] ? MixtureProducts(shape, tokens) : MlpProducts(shape, tokens)));
  }
  return layers;
}

}  // namespace megatron
