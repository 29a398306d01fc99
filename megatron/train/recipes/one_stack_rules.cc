#include "megatron/train/recipes/one_stack_rules.h"

#include "absl/strings/str_cat.h"
#include "megatron/train/config/layer_pattern.h"
#include "megatron/train/costs/layer_shape.h"
#include "megatron/train/costs/lora_modules.h"

namespace megatron {
namespace {

// Returns for each layer whether it has experts.
std::vector<bool> LayersWithExperts(const config::ModelConfig& model) {
  if (!model.has_num_experts()) return std::vector<bool>(model.num_layers(), false);
  return *ParseLayerPattern(model.moe_layer_freq(), model.num_layers());
}

// Returns the number of parameters of a layer of a hybrid model that are in no matrix product.
int64_t VectorsOfHybridLayer(const config::ModelConfig& model, char layer, int64_t attention) {
  const int64_t norm = NormWeights(model, model.hidden_size());
  if (layer == 'M') return norm + MambaVectorWeights(ToLayerShape(model));
  if (layer == 'G') return norm + DeltaVectorWeights(ToLayerShape(model));
  return norm +
         (layer == '*' ? attention + AttentionBiases(model) : MlpBiases(model, layer == 'E'));
}

// Returns the number of parameters of each layer.
std::vector<int64_t> ParametersOfLayers(const config::ModelConfig& model) {
  const bool has_gains_of_heads = model.qk_layernorm_all_heads() || model.qk_layernorm_each_head();
  const int64_t heads =
      has_gains_of_heads ? model.num_attention_heads() + model.num_query_groups() : 2;
  const int64_t normed = model.multi_latent_attention() ? model.q_lora_rank() + model.kv_lora_rank()
                                                        : heads * model.kv_channels();
  const int64_t qk_norms = !model.qk_layernorm()            ? 0
                           : model.qk_layernorm_each_head() ? normed
                                                            : NormWeights(model, normed);
  const int64_t norms = model.sandwich_norm() ? 4 : model.parallel_residual_shared_norm() ? 1 : 2;
  const int64_t sinks =
      model.softmax_type() == config::SoftmaxType::learnable ? model.num_attention_heads() : 0;
  const std::vector<bool> has_experts = LayersWithExperts(model);
  const std::vector<MatrixProducts> products = OneStackProducts(model, /*seen=*/0, /*in_window=*/0);
  std::vector<int64_t> layers;
  for (size_t i = 0; i < products.size(); ++i) {
    if (model.has_hybrid_layer_pattern()) {
      layers.push_back(
          VectorsOfHybridLayer(model, model.hybrid_layer_pattern()[i], qk_norms + sinks) +
          CountWeights(products[i]));
      continue;
    }
    layers.push_back(norms * NormWeights(model, model.hidden_size()) + qk_norms + sinks +
                     LoraWeights(model) + LayerBiases(model, has_experts[i]) +
                     CountWeights(products[i]));
  }
  return layers;
}

}  // namespace

void CheckOneStack(ConfigChecker& check) {
  if (check.resolved().model().position_embedding_type() != config::PositionEmbedding::relative)
    return;
  check.Error("model.position_embedding_type",
              absl::StrCat("may be relative with model.model_type: t5 alone, not with ",
                           check.Named("model.model_type")));
}

// Each layer of multi-token prediction is like the last, and has three norms and a projection
// besides.
int64_t CountMtpParameters(const config::ModelConfig& model) {
  if (model.mtp_num_layers() == 0) return 0;
  const int64_t norm = NormWeights(model, model.hidden_size());
  const int64_t projection = 2 * model.hidden_size() * model.hidden_size();
  return model.mtp_num_layers() * (ParametersOfLayers(model).back() + 3 * norm + projection);
}

int64_t CountOneStackParameters(const config::ModelConfig& model, int64_t padded_vocab_size) {
  const int64_t norm = NormWeights(model, model.hidden_size());
  const bool learned =
      model.position_embedding_type() == config::PositionEmbedding::learned_absolute;
  const int64_t rows = padded_vocab_size * (model.untie_embeddings_and_output_weights() ? 2 : 1) +
                       (learned ? model.max_position_embeddings() : 0);
  int64_t layers = 0;
  for (const int64_t layer : ParametersOfLayers(model)) layers += layer;
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
    const MatrixProducts attention =
        SelfAttentionProducts(shape, tokens, has_window[i] ? in_window : seen);
    const MatrixProducts mlp =
        has_experts[i] ? MixtureProducts(shape, tokens) : MlpProducts(shape, tokens);
    if (!model.has_hybrid_layer_pattern()) {
      layers.push_back(Joined(attention, mlp));
      continue;
    }
    const char layer = model.hybrid_layer_pattern()[i];
    layers.push_back(layer == 'M'   ? MambaProducts(shape, tokens)
                     : layer == 'G' ? DeltaProducts(shape, tokens)
                     : layer == '*' ? attention
                                    : mlp);
  }
  return layers;
}

}  // namespace megatron
