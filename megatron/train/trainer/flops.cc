#include "megatron/train/trainer/flops.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "megatron/plan/model_costs.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/costs/layer_shape.h"
#include "megatron/train/validate/layer_pattern.h"

namespace megatron {
namespace {

int64_t CountMoeLayers(const config::ModelConfig& model) {
  if (!model.has_num_experts()) return 0;
  const std::vector<bool> layers = *ParseLayerPattern(model.moe_layer_freq(), model.num_layers());
  return std::count(layers.begin(), layers.end(), true);
}

// Multiplications and additions of pairs with the layers' weights for one token that goes to
// `experts` experts of each mixture: as many as there are weights, if it goes to all.
double LayersWeightProducts(const config::ModelConfig& model, int64_t experts) {
  const LayerShape layer = ToLayerShape(model);
  const double mixtures = static_cast<double>(CountMoeLayers(model));
  const double layers = static_cast<double>(model.num_layers());
  return layers * WeightMultiplyAdds(SelfAttentionProducts(layer, /*tokens=*/1, /*seen=*/0)) +
         mixtures *
             MultiplyAdds(MixtureProducts(layer, /*tokens=*/1, static_cast<double>(experts))) +
         (layers - mixtures) * MultiplyAdds(MlpProducts(layer, /*tokens=*/1));
}

int64_t BiasesPerLayer(const config::ModelConfig& model) {
  const int64_t qkv =
      (model.num_attention_heads() + 2 * model.num_query_groups()) * model.kv_channels();
  if (model.disable_bias_linear()) return model.add_qkv_bias() ? qkv : 0;
  return qkv + (ToLayerShape(model).is_gated ? 2 : 1) * model.ffn_hidden_size() +
         2 * model.hidden_size();
}

bool IsBert(const config::ModelConfig& model) {
  return model.model_type() == config::ModelType::bert;
}

// BERT's parameters besides layers, the word table and positions.
int64_t BertParameters(const config::ModelConfig& model, int64_t norm, int64_t padded_vocab_size) {
  const int64_t hidden = model.hidden_size(), dense = hidden * hidden + hidden;
  const int64_t order = model.bert_binary_head() ? dense + 2 * hidden + 2 : 0;
  return model.num_tokentypes() * hidden + dense + norm + padded_vocab_size + order;
}

bool IsT5(const config::ModelConfig& model) { return model.model_type() == config::ModelType::t5; }

int64_t T5Parameters(const config::ModelConfig& model, int64_t norm, int64_t padded_vocab_size) {
  const int64_t encoder = model.encoder_num_layers(), decoder = model.decoder_num_layers();
  const LayerShape shape = ToLayerShape(model);
  const int64_t attention = static_cast<int64_t>(
      WeightMultiplyAdds(SelfAttentionProducts(shape, /*tokens=*/1, /*seen=*/0)));
  const int64_t mlp = static_cast<int64_t>(MultiplyAdds(MlpProducts(shape, /*tokens=*/1)));
  const int64_t width = model.num_attention_heads() * model.kv_channels();
  const int64_t cross_biases = model.disable_bias_linear() ? 0 : 3 * width + model.hidden_size();
  const int64_t layer = attention + mlp + BiasesPerLayer(model) + 2 * norm;
  const bool relative = model.position_embedding_type() == config::PositionEmbedding::relative;
  // Each stack has a table of its own.
  const int64_t positions =
      relative ? 2 * model.relative_attention_num_buckets() * model.num_attention_heads()
               : model.max_position_embeddings() * model.hidden_size();
  const int64_t tables = model.untie_embeddings_and_output_weights() ? 2 : 1;
  return encoder * layer + decoder * (layer + attention + cross_biases + norm) + 2 * norm +
         positions + tables * padded_vocab_size * model.hidden_size() +
         (model.add_output_bias() ? padded_vocab_size : 0);
}

// Multiplications and additions of pairs in the forward pass of a sample of full length.
double T5SampleProducts(const config::ModelConfig& model, int64_t padded_vocab_size,
                        FlopsConvention convention) {
  const LayerShape layer = ToLayerShape(model);
  const double read = static_cast<double>(model.seq_length());
  const double written = static_cast<double>(model.decoder_seq_length());
  const double seen = convention == FlopsConvention::kClassic ? written : written / 2;
  const MatrixProducts encoder =
      Joined(SelfAttentionProducts(layer, read, read), MlpProducts(layer, read));
  const MatrixProducts decoder = Joined(Joined(SelfAttentionProducts(layer, written, seen),
                                               CrossAttentionProducts(layer, written, read)),
                                        MlpProducts(layer, written));
  return static_cast<double>(model.encoder_num_layers()) * MultiplyAdds(encoder) +
         static_cast<double>(model.decoder_num_layers()) * MultiplyAdds(decoder) +
         MultiplyAdds(HeadProducts(layer, written, padded_vocab_size));
}

struct Peak {
  absl::string_view name;
  double fp32;
  double half;
};

// Vendors' data sheets, without sparsity; fp32 without TF32. The first name that is contained
// counts.
constexpr Peak kPeaks[] = {
    {"GB200", 80e12, 2500e12}, {"B200", 80e12, 2250e12},     {"H200", 67e12, 989e12},
    {"GH200", 67e12, 989e12},  {"H100 PCIe", 51e12, 756e12}, {"H100 NVL", 60e12, 835e12},
    {"H100", 67e12, 989e12},   {"A100", 19.5e12, 312e12},    {"A800", 19.5e12, 312e12},
    {"H800", 67e12, 989e12},   {"V100", 15.7e12, 125e12},    {"L40S", 91.6e12, 362e12},
};

}  // namespace

int64_t CountParameters(const config::ModelConfig& model, int64_t padded_vocab_size) {
  const int64_t per_channel = model.normalization() == config::Normalization::LayerNorm ? 2 : 1;
  const int64_t norm = per_channel * model.hidden_size();
  if (IsT5(model)) return T5Parameters(model, norm, padded_vocab_size);
  const int64_t qk_norms = model.qk_layernorm() ? 2 * per_channel * model.kv_channels() : 0;
  const int64_t layer = BiasesPerLayer(model) + 2 * norm + qk_norms;
  const bool learned =
      model.position_embedding_type() == config::PositionEmbedding::learned_absolute;
  const int64_t rows = padded_vocab_size * (model.untie_embeddings_and_output_weights() ? 2 : 1) +
                       (learned ? model.max_position_embeddings() : 0);
  // The last norm, or in a post-norm model that of the embedding.
  return static_cast<int64_t>(LayersWeightProducts(model, model.num_experts())) +
         model.num_layers() * layer + norm + rows * model.hidden_size() +
         (IsBert(model) ? BertParameters(model, norm, padded_vocab_size) : 0);
}

double FlopsPerToken(const config::ModelConfig& model, int64_t padded_vocab_size,
                     FlopsConvention convention) {
  // 2 forward, 2 for the input's gradient, 2 for the weight's.
  constexpr double kFlopsPerWeight = 6;
  if (IsT5(model)) {
    return kFlopsPerWeight * T5SampleProducts(model, padded_vocab_size, convention) /
           static_cast<double>(model.seq_length());
  }
  const LayerShape layer = ToLayerShape(model);
  double products = LayersWeightProducts(model, model.moe_router_topk()) +
                    MultiplyAdds(HeadProducts(layer, /*tokens=*/1, padded_vocab_size));
  // BERT's head has a layer of its own.
  if (IsBert(model)) products += MultiplyAdds(HeadProducts(layer, /*tokens=*/1, layer.hidden));
  const double seen = static_cast<double>(model.seq_length()) *
                      (convention == FlopsConvention::kClassic || IsBert(model) ? 1 : 0.5);
  products += static_cast<double>(model.num_layers()) *
              ActivationMultiplyAdds(SelfAttentionProducts(layer, /*tokens=*/1, seen));
  return kFlopsPerWeight * products;
}

std::optional<double> PeakFlopsPerSecond(absl::string_view device_name, MatmulPrecision precision) {
  for (const Peak& peak : kPeaks) {
    if (absl::StrContains(device_name, peak.name))
      return precision == MatmulPrecision::kHalf ? peak.half : peak.fp32;
  }
  return std::nullopt;
}

}  // namespace megatron
