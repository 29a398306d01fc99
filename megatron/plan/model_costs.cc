#include "megatron/plan/model_costs.h"

#include <utility>

namespace megatron {
namespace {

MatrixProduct Weights(const char* name, double tokens, int64_t out, int64_t in) {
  MatrixProduct product;
  product.name = name;
  product.m = tokens;
  product.n = static_cast<double>(out);
  product.k = static_cast<double>(in);
  return product;
}

MatrixProduct Activations(const char* name, double m, double n, double k) {
  MatrixProduct product;
  product.name = name;
  product.m = m;
  product.n = n;
  product.k = k;
  product.weight_matrices = 0;
  return product;
}

int64_t ValueWidth(const LayerShape& layer) {
  return layer.value_width > 0 ? layer.value_width : layer.query_width;
}

// The projections of latent attention.
MatrixProducts LatentProjections(const LayerShape& layer, double tokens) {
  MatrixProducts products = {
      Weights("query", tokens, layer.query_width,
              layer.q_latent > 0 ? layer.q_latent : layer.hidden),
      Weights("key and value", tokens, layer.own_key_width + ValueWidth(layer), layer.kv_latent)};
  for (MatrixProduct& product : products) product.is_from_latent = true;
  products.push_back(Weights("projection", tokens, layer.hidden, ValueWidth(layer)));
  products.push_back(
      Weights("key and value latent", tokens, layer.kv_latent + layer.shared_key, layer.hidden));
  if (layer.q_latent > 0)
    products.push_back(Weights("query latent", tokens, layer.q_latent, layer.hidden));
  return products;
}

// The projections of queries, which there are `tokens` of, of keys and values, and of the output.
MatrixProducts Projections(const LayerShape& layer, double tokens, double read) {
  MatrixProducts products;
  if (layer.kv_latent > 0) {
    products = LatentProjections(layer, tokens);
  } else {
    products = {Weights("query", tokens, layer.query_width + layer.gate_width, layer.hidden),
                Weights("key and value", read, KeyAndValueWidth(layer), layer.hidden),
                Weights("projection", tokens, layer.hidden, ValueWidth(layer))};
  }
  for (MatrixProduct& product : products) product.is_attention_weight = true;
  return products;
}

// The scores of all heads together, and what they give.
MatrixProducts ScoreProducts(const LayerShape& layer, double tokens, double seen) {
  return {Activations("scores", tokens, seen, static_cast<double>(layer.query_width)),
          Activations("values", tokens, static_cast<double>(ValueWidth(layer)), seen)};
}

MatrixProducts MlpOfWidth(const LayerShape& layer, double tokens, int64_t width) {
  MatrixProducts products = {
      Weights("fc1", tokens, layer.is_gated ? 2 * width : width, layer.hidden),
      Weights("fc2", tokens, layer.hidden, width)};
  products[0].is_mlp_input = true;
  return products;
}

// Sums the counts of the products that are chosen.
template <typename Chosen>
double MultiplyAddsIf(const MatrixProducts& products, const Chosen& chosen) {
  double sum = 0;
  for (const MatrixProduct& product : products)
    if (chosen(product)) sum += MultiplyAdds(product);
  return sum;
}

}  // namespace

int64_t KeyAndValueWidth(const LayerShape& layer) {
  if (layer.value_width == 0) return 2 * layer.key_value_width;
  return layer.key_value_width + layer.value_width * layer.key_value_width / layer.query_width;
}

double SeenInWindow(double tokens, double window, FlopsConvention convention) {
  if (window >= tokens) return CausallySeen(tokens, convention);
  const double seen = window - window * window / (2 * tokens);
  return convention == FlopsConvention::kClassic ? 2 * seen : seen;
}

double CausallySeen(double tokens, FlopsConvention convention) {
  return convention == FlopsConvention::kClassic ? tokens : tokens / 2;
}

MatrixProducts SelfAttentionProducts(const LayerShape& layer, double tokens, double seen) {
  return Joined(Projections(layer, tokens, tokens), ScoreProducts(layer, tokens, seen));
}

MatrixProducts CrossAttentionProducts(const LayerShape& layer, double tokens, double read) {
  return Joined(Projections(layer, tokens, read), ScoreProducts(layer, tokens, read));
}

MatrixProducts MlpProducts(const LayerShape& layer, double tokens) {
  return MlpOfWidth(layer, tokens, layer.ffn);
}

MatrixProducts MixtureProducts(const LayerShape& layer, double tokens) {
  MatrixProducts products = MlpOfWidth(layer, tokens, layer.expert_ffn);
  for (MatrixProduct& product : products) {
    product.count = static_cast<double>(layer.experts_per_token);
    product.weight_matrices = static_cast<double>(layer.num_experts);
  }
  products.push_back(Weights("router", tokens, layer.num_experts, layer.hidden));
  if (layer.has_shared_expert_gate)
    products.push_back(Weights("shared expert gate", tokens, 1, layer.hidden));
  if (layer.shared_expert_ffn > 0) {
    products = Joined(std::move(products), MlpOfWidth(layer, tokens, layer.shared_expert_ffn));
  }
  for (MatrixProduct& product : products) product.is_of_mixture = true;
  return products;
}

MatrixProducts MambaProducts(const LayerShape& layer, double tokens) {
  const int64_t packed =
      2 * layer.mamba_inner + 2 * layer.mamba_groups * layer.mamba_state + layer.mamba_heads;
  return {Weights("mamba input", tokens, packed, layer.hidden),
          Activations("recurrence", tokens, static_cast<double>(layer.mamba_inner),
                      3.5 * static_cast<double>(layer.mamba_state)),
          Weights("mamba output", tokens, layer.hidden, layer.mamba_inner)};
}

MatrixProducts DeltaProducts(const LayerShape& layer, double tokens) {
  const int64_t convolved = 2 * layer.delta_keys + layer.delta_values;
  const double head = static_cast<double>(layer.delta_values / layer.delta_heads);
  return {
      Weights("delta net input", tokens, convolved + layer.delta_values + 2 * layer.delta_heads,
              layer.hidden),
      Activations("convolution", tokens, static_cast<double>(convolved),
                  static_cast<double>(layer.delta_taps)),
      Activations("recurrence", tokens, static_cast<double>(layer.delta_heads), 4 * head * head),
      Weights("delta net output", tokens, layer.hidden, layer.delta_values)};
}

int64_t MambaVectorWeights(const LayerShape& layer) {
  constexpr int64_t kTaps = 4;
  const int64_t convolved = layer.mamba_inner + 2 * layer.mamba_groups * layer.mamba_state;
  // The convolution with its biases; of each head the bias of steps, A_log and D; the norm.
  return (kTaps + 1) * convolved + 3 * layer.mamba_heads + layer.mamba_inner;
}

int64_t DeltaVectorWeights(const LayerShape& layer) {
  // The convolution; of each value head the bias of decays and A_log; the norm of all heads.
  return layer.delta_taps * (2 * layer.delta_keys + layer.delta_values) + 2 * layer.delta_heads +
         layer.delta_values / layer.delta_heads;
}

MatrixProducts HeadProducts(const LayerShape& layer, double tokens, int64_t padded_vocab_size) {
  return {Weights("head", tokens, padded_vocab_size, layer.hidden)};
}

MatrixProducts MtpProjection(const LayerShape& layer, double tokens) {
  return {Weights("mtp projection", tokens, layer.hidden, 2 * layer.hidden)};
}

MatrixProducts Joined(MatrixProducts a, const MatrixProducts& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

double MultiplyAdds(const MatrixProduct& product) {
  return product.count * product.m * product.n * product.k;
}

double MultiplyAdds(const MatrixProducts& products) {
  return MultiplyAddsIf(products, [](const MatrixProduct&) { return true; });
}

double WeightMultiplyAdds(const MatrixProducts& products) {
  return MultiplyAddsIf(products, [](const MatrixProduct& p) { return p.weight_matrices > 0; });
}

double ActivationMultiplyAdds(const MatrixProducts& products) {
  return MultiplyAddsIf(products, [](const MatrixProduct& p) { return p.weight_matrices == 0; });
}

double MlpInputMultiplyAdds(const MatrixProducts& products) {
  return MultiplyAddsIf(products, [](const MatrixProduct& p) { return p.is_mlp_input; });
}

double FromLatentMultiplyAdds(const MatrixProducts& products) {
  return MultiplyAddsIf(products, [](const MatrixProduct& p) { return p.is_from_latent; });
}

double MixtureMultiplyAdds(const MatrixProducts& products) {
  return MultiplyAddsIf(products, [](const MatrixProduct& p) { return p.is_of_mixture; });
}

double AttentionWeightMultiplyAdds(const MatrixProducts& products) {
  return MultiplyAddsIf(products, [](const MatrixProduct& p) { return p.is_attention_weight; });
}

int64_t CountWeights(const MatrixProducts& products) {
  double sum = 0;
  for (const MatrixProduct& product : products)
    sum += product.weight_matrices * product.n * product.k;
  return static_cast<int64_t>(sum);
}

}  // namespace megatron
