// The matrix products of a transformer, by name and shape. FLOPs, numbers of weights and the times
// of schedules are counted from them.
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
  int64_t value_width = 0;      // attention heads times the channels of values; 0: query_width
  int64_t gate_width = 0;       // attention heads times the channels of gates of attention's output
  // Latent attention (layers/latent_attention.h).
  int64_t kv_latent = 0;  // width of what keys and values are made from; 0: there is none
  int64_t q_latent = 0;   // the width of the queries' vector; 0: they are made from the input
  int64_t shared_key = 0;
  int64_t own_key_width = 0;  // attention heads times the channels of keys that are not shared
  // A Mamba-2 layer (layers/mamba_mixer.h).
  int64_t mamba_inner = 0;  // heads times their channels
  int64_t mamba_heads = 0;
  int64_t mamba_groups = 0;
  int64_t mamba_state = 0;
  // A gated delta net (layers/gated_delta_net.h).
  int64_t delta_keys = 0;    // key heads times their channels
  int64_t delta_values = 0;  // value heads times their channels
  int64_t delta_heads = 0;   // value heads
  int64_t delta_key_heads = 0;
  int64_t delta_taps = 0;  // tokens that the convolution sees
  int64_t ffn = 0;
  bool is_gated = false;  // the MLP's first product has two halves
  // The experts of a mixture, in place of the MLP.
  int64_t num_experts = 0;        // 0: there is none
  int64_t experts_per_token = 0;  // number of experts that each token goes to
  int64_t expert_ffn = 0;
  int64_t shared_expert_ffn = 0;  // 0: none is shared
  bool has_shared_expert_gate = false;
};

// Returns the query groups times the channels of a key and of a value.
int64_t KeyAndValueWidth(const LayerShape& layer);

// `count` products of an m x k with a k x n matrix.
struct MatrixProduct {
  const char* name;
  double m = 0;  // rows: tokens
  double n = 0;
  double k = 0;
  double count = 1;
  // Number of different weight matrices; 0: both operands are activations.
  double weight_matrices = 1;
  bool is_mlp_input = false;  // the first product of an MLP, which recomputing the MLP does again
  bool is_attention_weight = false;  // a projection of attention
  bool is_from_latent = false;       // one that latent attention makes heads with
  bool is_of_mixture = false;        // one of a mixture of experts, the shared expert's included
};
using MatrixProducts = std::vector<MatrixProduct>;

// The two ways to count attention at keys that the causal mask hides.
enum class FlopsConvention {
  // Attention as if each position saw all others: Megatron up to 0.12, its README's tables and
  // Narayanan et al. (2021),
  // 72 B L s h^2 (1 + s/6h + V/12hL) per step of a plain GPT. For comparison with published
  // figures.
  kClassic,
  // Attention counted where the causal mask lets it be: half of that. Megatron 0.20, and this
  // program's log.
  kCausalHalved,
};

// Returns how many of `tokens` tokens each of them sees on average under a causal mask.
double CausallySeen(double tokens, FlopsConvention convention);
// The same where each sees at most the `window` positions up to its own. Where the mask does not
// count, as many behind it count, too.
double SeenInWindow(double tokens, double window, FlopsConvention convention);

// Attention over `tokens` tokens, each of which sees `seen` on average.
MatrixProducts SelfAttentionProducts(const LayerShape& layer, double tokens, double seen);
// Attention of `tokens` tokens to all of the `read` tokens of an encoder.
MatrixProducts CrossAttentionProducts(const LayerShape& layer, double tokens, double read);
MatrixProducts MlpProducts(const LayerShape& layer, double tokens);
// The router, the experts of each token, and the shared expert.
MatrixProducts MixtureProducts(const LayerShape& layer, double tokens);
// A Mamba-2 layer. Its recurrence counts as in Megatron: 7 operations for each token, channel and
// element of the state.
MatrixProducts MambaProducts(const LayerShape& layer, double tokens);
// A gated delta net. Its convolution and recurrence count as in Megatron.
MatrixProducts DeltaProducts(const LayerShape& layer, double tokens);
// Return the number of weights of the two that belong to no product.
int64_t MambaVectorWeights(const LayerShape& layer);
int64_t DeltaVectorWeights(const LayerShape& layer);
// The head over a vocabulary of `padded_vocab_size`.
MatrixProducts HeadProducts(const LayerShape& layer, double tokens, int64_t padded_vocab_size);

// What a layer of multi-token prediction makes its input with.
MatrixProducts MtpProjection(const LayerShape& layer, double tokens);

MatrixProducts Joined(MatrixProducts a, const MatrixProducts& b);

// Pairs of a multiplication and an addition.
double MultiplyAdds(const MatrixProduct& product);
double MultiplyAdds(const MatrixProducts& products);
// Those of the products with weights, and of the others.
double WeightMultiplyAdds(const MatrixProducts& products);
double ActivationMultiplyAdds(const MatrixProducts& products);
// Those of the first products of MLPs and experts.
double MlpInputMultiplyAdds(const MatrixProducts& products);
// Those of the projections that latent attention makes heads with.
double FromLatentMultiplyAdds(const MatrixProducts& products);
// Those of a mixture of experts.
double MixtureMultiplyAdds(const MatrixProducts& products);
// Those of the projections of attention.
double AttentionWeightMultiplyAdds(const MatrixProducts& products);

// Returns the number of trained weights in the matrices: those of all experts, whatever number of
// them a token goes to.
int64_t CountWeights(const MatrixProducts& products);

}  // namespace megatron

#endif  // MEGATRON_PLAN_MODEL_COSTS_H_
