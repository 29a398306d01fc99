#include "megatron/train/recipes/one_stack_rules.h"

#include "absl/strings/str_cat.h"
#include "megatron/train/config/layer_pattern.h"
#include "megatron/train/costs/layer_shape.h"

namespace megatron {

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
  int64_t layers = model.num_layers() * (LayerBiases(model) + 2 * norm + qk_norms);
  for (const MatrixProducts& layer : OneStackProducts(model, /*seen=*/0))
    layers += CountWeights(layer);
  // The last norm, or in a post-norm model that of the embedding.
  return layers + norm + rows * model.hidden_size();
}

std::vector<MatrixProducts> OneStackProducts(const config::ModelConfig& model, double seen) {
  const LayerShape shape = ToLayerShape(model);
  const double tokens = static_cast<double>(model.seq_length());
  std::vector<bool> has_experts(model.num_layers(), false);
  if (model.has_num_experts())
    has_experts = *ParseLayerPattern(model.moe_layer_freq(), model.num_layers());
  std::vector<MatrixProducts> layers;
  for (const bool experts : has_experts) {
    layers.push_back(Joined(SelfAttentionProducts(shape, tokens, seen),
                            experts ? MixtureProducts(shape, tokens) : MlpProducts(shape, tokens)));
  }
  return layers;
}

}  // namespace megatron
