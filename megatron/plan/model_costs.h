// The matrix products of a transformer, by name and shape: what FLOPs, bytes and the times of
// schedules are counted from.
//
//   double flops = 2 * MultiplyAdds(SelfAttentionProducts(layer, tokens, seen)) + ...
//
// All counts are of a forward pass. Products of sizes below 2^53 are exact, in whatever order they
// are added.
#ifndef MEGATRON_PLAN_MODEL_COSTS_H_
#define MEGATRON_PLAN_MODEL_COSTS_H_

#include <cstdint>
#include <vector>

namespace megatron {

// The sizes of a layer that its products depend on.
struct LayerShape {
  int64_t hidden = 0;
  int64_t query_width = 0;      // attention heads times their channels
  int64_t key_value_width = 0;  // query groups times their channels
  int64_t ffn = 0;
  bool is_gated = false;  // the MLP's first product has two halves
  // The experts of a mixture, in place of the MLP.
  int64_t num_experts = 0;  // 0: there is none
  int64_t expert_ffn = 0;
  int64_t shared_expert_ffn = 0;  // 0: none is shared
};

// `count` products of an m x k with a k x n matrix.
struct MatrixProduct {
  const char* name;
  double m = 0;  // rows: tokens
  double n = 0;
  double k = 0;
  double count = 1;
  bool has_weights = true;  // else both operands are activations
};
using MatrixProducts = std::vector<MatrixProduct>;

// Attention over `tokens` tokens, each of which sees `seen` on average: half of the sequence under
// a causal mask.
MatrixProducts SelfAttentionProducts(const LayerShape& layer, double tokens, double seen);
// Attention of `tokens` tokens to all of the `read` tokens of an encoder.
MatrixProducts CrossAttentionProducts(const LayerShape& layer, double tokens, double read);
// An MLP whose first product is named "fc1".
MatrixProducts MlpProducts(const LayerShape& layer, double tokens);
// The router, `experts` experts for each token, and the shared expert.
MatrixProducts MixtureProducts(const LayerShape& layer, double tokens, double experts);
// The head over a vocabulary of `padded_vocab_size`.
MatrixProducts HeadProducts(const LayerShape& layer, double tokens, int64_t padded_vocab_size);

MatrixProducts Joined(MatrixProducts a, const MatrixProducts& b);

// Pairs of a multiplication and an addition.
double MultiplyAdds(const MatrixProduct& product);
double MultiplyAdds(const MatrixProducts& products);
// Those of the products with weights, and of the others.
double WeightMultiplyAdds(const MatrixProducts& products);
double ActivationMultiplyAdds(const MatrixProducts& products);

// A multiplication and an addition count as one FLOP each.
double Flops(const MatrixProduct& product);
// The bytes that the product reads and writes, at so many bytes an element.
double Bytes(const MatrixProduct& product, double element_bytes);

}  // namespace megatron

#endif  // MEGATRON_PLAN_MODEL_COSTS_H_
