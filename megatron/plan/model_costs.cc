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

// The scores of all heads together, and what they give.
MatrixProducts ScoreProducts(const LayerShape& layer, double tokens, double seen) {
  const double width = static_cast<double>(layer.query_width);
  return {{"scores", tokens, seen, width, 1, /*has_weights=*/false},
          {"values", tokens, width, seen, 1, /*has_weights=*/false}};
}

MatrixProducts MlpOfWidth(const LayerShape& layer, double tokens, int64_t width) {
  return {Weights("fc1", tokens, layer.is_gated ? 2 * width : width, layer.hidden),
          Weights("fc2", tokens, layer.hidden, width)};
}

}  // namespace

MatrixProducts SelfAttentionProducts(const LayerShape& layer, double tokens, double seen) {
  return Joined({Weights("query", tokens, layer.query_width, layer.hidden),
                 Weights("key and value", tokens, 2 * layer.key_value_width, layer.hidden),
                 Weights("projection", tokens, layer.hidden, layer.query_width)},
                ScoreProducts(layer, tokens, seen));
}

MatrixProducts CrossAttentionProducts(const LayerShape& layer, double tokens, double read) {
  return Joined({Weights("query", tokens, layer.query_width, layer.hidden),
                 Weights("key and value", read, 2 * layer.key_value_width, layer.hidden),
                 Weights("projection", tokens, layer.hidden, layer.query_width)},
                ScoreProducts(layer, tokens, read));
}

MatrixProducts MlpProducts(const LayerShape& layer, double tokens) {
  return MlpOfWidth(layer, tokens, layer.ffn);
}

MatrixProducts MixtureProducts(const LayerShape& layer, double tokens, double experts) {
  MatrixProducts products = MlpOfWidth(layer, tokens, layer.expert_ffn);
  for (MatrixProduct& product : products) product.count = experts;
  products.push_back(Weights("router", tokens, layer.num_experts, layer.hidden));
  if (layer.shared_expert_ffn == 0) return products;
  return Joined(std::move(products), MlpOfWidth(layer, tokens, layer.shared_expert_ffn));
}

MatrixProducts HeadProducts(const LayerShape& layer, double tokens, int64_t padded_vocab_size) {
  return {Weights("head", tokens, padded_vocab_size, layer.hidden)};
}

MatrixProducts Joined(MatrixProducts a, const MatrixProducts& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

double MultiplyAdds(const MatrixProduct& product) {
  return product.count * product.m * product.n * product.k;
}

double MultiplyAdds(const MatrixProducts& products) {
  return WeightMultiplyAdds(products) + ActivationMultiplyAdds(products);
}

double WeightMultiplyAdds(const MatrixProducts& products) {
  double sum = 0;
  for (const MatrixProduct& product : products)
    if (product.has_weights) sum += MultiplyAdds(product);
  return sum;
}

double ActivationMultiplyAdds(const MatrixProducts& products) {
  double sum = 0;
  for (const MatrixProduct& product : products)
    if (!product.has_weights) sum += MultiplyAdds(product);
  return sum;
}

double Flops(const MatrixProduct& product) { return 2 * MultiplyAdds(product); }

double Bytes(const MatrixProduct& product, double element_bytes) {
  return product.count * element_bytes *
         (product.m * product.k + product.k * product.n + product.m * product.n);
}

}  // namespace megatron
