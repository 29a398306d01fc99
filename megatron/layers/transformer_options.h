// Options of one transformer layer, shared by the models that are made of them. Defaults are
// Megatron's.
#ifndef MEGATRON_LAYERS_TRANSFORMER_OPTIONS_H_
#define MEGATRON_LAYERS_TRANSFORMER_OPTIONS_H_

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "megatron/layers/float8_options.h"
#include "megatron/layers/lora_options.h"
#include "megatron/layers/moe/moe_options.h"
#include "megatron/layers/tensor_grid.h"
#include "megatron/ops/activation_type.h"
#include "megatron/ops/attention_kernel.h"
#include "megatron/ops/norm_options.h"
#include "megatron/tensor/dtype.h"

namespace megatron {

// The interpolation of B. Peng et al., "YaRN", arXiv 2309.00071.
struct YarnOptions {
  double factor = 0;  // how many times longer the context becomes; 0 turns it off
  double original_context = 4096;
  // Pairs that turn more than beta_fast times in the original context keep their frequency, those
  // that turn less than beta_slow times have it divided by the factor, and those between are
  // blended. The ends of that range are rounded away from it, to whole pairs, if `round_range`.
  double beta_fast = 32, beta_slow = 1;
  bool round_range = true;
  // Rotated vectors are multiplied by m(mscale) / m(mscale_all_dim), m(x) = 1 + 0.1 x ln(factor).
  double mscale = 1, mscale_all_dim = 0;
};

// Wavelengths that are stretched by a factor of each pair (Y. Ding et al., "LongRoPE", arXiv
// 2402.13753).
struct LongRopeOptions {
  // The factors in a context that is longer than `original_context`, and in others; empty: off.
  std::vector<double> long_factors, short_factors;
  double original_context = 4096;
  bool is_long = false;  // which of the two count
  double magnitude = 1;  // rotated vectors are multiplied by it
};

struct RotaryOptions {
  double base = 10000;
  double percent = 1;               // the share of each head's channels that is rotated
  bool interleaved = false;         // pairs (2i, 2i+1) rather than (i, i + half)
  double interpolation_factor = 1;  // positions are divided by it
  // The factor of Llama 3.1's scaling of low frequencies (8 there, with low 1, high 4 and an
  // original context of 8192); 0 turns it off.
  double scaling_factor = 0;
  YarnOptions yarn;
  LongRopeOptions longrope;
  // Where above 0, the base in layers whose attention sees a window; nothing scales their
  // frequencies.
  double local_base = 0;
};

// Relative positions (C. Raffel et al., arXiv 1910.10683): each head adds to a score a learned
// number for the distance of key and query. Far distances share entries, by their logarithm, and
// those beyond max_distance one.
struct RelativePositionOptions {
  int64_t buckets = 0;  // entries of each head; 0 turns relative positions off
  int64_t max_distance = 128;
};

// Multi-head latent attention (layers/latent_attention.h) in place of self-attention.
struct LatentOptions {
  int64_t kv_rank = 0;  // size of the vector that keys and values are made from; 0 turns it off
  int64_t q_rank = 0;   // the width of the queries' vector; 0: they are made from x
  // The last channels of a query and key head, which are rotated. A key head shares its with all.
  int64_t rotated_size = 0;
  // Whether a KvCache has latents and shared keys. Else it has keys and values of all heads.
  bool caches_latents = true;
};

// The layers of a hybrid model, each of which has one branch.
enum class HybridLayer {
  kMamba,      // layers/mamba_mixer.h
  kDelta,      // layers/gated_delta_net.h
  kAttention,  // self-attention or latent attention
  kMlp,        // an MLP or, where MoeOptions::layers says so, experts
};

// The mixers of Mamba-2 layers.
struct MambaOptions {
  int64_t state_dim = 128;
  int64_t head_dim = 64;   // channels of a head
  int64_t num_groups = 8;  // groups of heads that read and write their states alike
  int64_t num_heads = 0;
  // The norm is of the outputs of all groups together, those of other ranks included.
  bool norm_all_groups = false;
};

// The mixers of gated delta nets.
struct DeltaOptions {
  int64_t conv_taps = 4;
  int64_t key_head_dim = 128, value_head_dim = 128;  // channels of a head
  int64_t num_key_heads = 16, num_value_heads = 32;  // a key head is that of as many value heads
};

// The activations that are not kept but computed again in backward.
struct RecomputeOptions {
  bool core_attention = false;  // the attention's output and log-sum-exp
  bool mlp = false;             // everything between fc1 and fc2
  bool norm = false;            // the outputs of the two norms
  bool latent_heads = false;    // queries, keys and values of latent attention
  // All that a mixture of experts keeps but its input. Rows then travel to experts once more. `mlp`
  // changes nothing about experts then.
  bool experts = false;
  // Where above 0, an MLP runs over chunks of about so many tokens (layers/mlp.h) and keeps its
  // input alone. FP8 must be off then, and recompute.mlp changes nothing.
  int64_t mlp_chunk_tokens = 0;
  // Where above 0, self-attention and latent attention run over chunks of so many tokens
  // (layers/attention_in_chunks.h). They must be causal, without relative positions and FP8.
  // Context-parallel ranks must not be of the kind kHierarchical and have stripes of tokens
  // (context_slice.h), and a chunk is of the tokens of all of them.
  int64_t attention_chunk_tokens = 0;
};

// The ways in which attention reaches the tokens of other context-parallel ranks.
enum class ContextParallel {
  kRing,          // keys and values go around
  kAllToAll,      // each rank has all tokens of some heads
  kGather,        // each rank has all keys and values
  kHierarchical,  // all-to-all within teams of ranks, a ring between them
};

// The score of one more key of value zero, which each query of self-attention has.
enum class AttentionSink {
  kNone,     // there is no such key
  kZero,     // 0
  kLearned,  // a number that each head learns
};

struct TransformerOptions {
  int64_t num_layers = 0;  // layers of the whole model; they scale the initial output projections
  int64_t hidden_size = 0;
  int64_t ffn_hidden_size = 0;
  int64_t num_attention_heads = 0;
  int64_t num_query_groups = 0;  // num_attention_heads: multi-head attention; 1: multi-query
  int64_t kv_channels = 0;       // size of a query or key head
  int64_t value_channels = 0;    // size of a value head; 0: kv_channels

  ops::Norm norm;
  ops::Activation activation = ops::Activation::kGeluTanh;
  bool gated = false;  // a gate in place of the activation
  ops::Activation gate = ops::Activation::kSilu;
  // The limit and the offset of the gate (ops::Gate).
  float gate_limit = std::numeric_limits<float>::infinity(), gate_offset = 0;
  bool has_plain_gate() const { return ops::Gate(gate, gate_limit, gate_offset).is_plain(); }
  bool linear_bias = true;
  bool qkv_bias = true;
  bool mlp_bias = false;  // MLPs have biases, whatever linear_bias says; they are no experts then
  bool has_mlp_bias() const { return linear_bias || mlp_bias; }
  bool qk_norm = false;
  bool qk_norm_all_heads = false;  // the norms are of all heads of a token together
  // Each head has gains of its own in these norms, and no bias. Ranks share no group of queries
  // then, and there is no grid.
  bool qk_norm_each_head = false;
  // Self-attention's output is multiplied by a sigmoid of another projection of its input. Values
  // are as wide as keys then, no ranks share a group of queries, and there are neither a grid nor
  // FP8 nor chunks of tokens.
  bool output_gate = false;
  LatentOptions latent;
  bool rotary = false;
  RotaryOptions rotary_options;
  std::vector<bool> rotary_layers;  // which of all layers rotate; empty: all do
  // Where above 0, self-attention sees a window (ops/attention.h) in these of all layers; empty: in
  // all.
  int64_t window_size = 0;
  std::vector<bool> window_layers;
  AttentionSink sink = AttentionSink::kNone;
  RelativePositionOptions relative_positions;
  bool causal = true;
  float softmax_scale = 0;       // factor of attention's scores; 0 means 1 / sqrt(kv_channels)
  float score_softcap = 0;       // ops::Attention::softcap of self-attention
  bool cross_attention = false;  // adds attention to the encoder's output behind self-attention
  // The number of this stack's first layer among all layers of the model, which keys its dropout.
  int64_t first_dropout_layer = 0;
  // Norms stand behind each sum with the residual stream, as in the first transformers, and not in
  // front of each branch.
  bool post_norm = false;
  // Norms also stand behind each branch, before its sum with the residual stream. Linear layers
  // have no biases then, and layers no cross-attention.
  bool sandwich_norm = false;
  // Norms stand behind each branch, before its sum with the residual stream, and not in front of
  // it. Linear layers have no biases then, and layers no cross-attention.
  bool reordered_norm = false;
  // Attention and the MLP both read the layer's input, and the residual stream gets the sum of what
  // they give. Norms stand in front of the branches, layers have neither cross-attention nor latent
  // attention nor experts, and the model is not hybrid. With `parallel_shared_norm` there is one
  // norm, whose output both branches read.
  bool parallel_residual = false, parallel_shared_norm = false;
  // Factor of what a branch gives, before its sum with the residual stream. Where it is not 1,
  // linear layers have no biases, norms stand in no layer behind a sum, and layers have no
  // cross-attention.
  float residual_multiplier = 1;
  std::string name = "decoder";  // prefix of the parameters' names
  std::string layer_name;        // name of the only layer; empty: "decoder.layers.0" and so on

  float hidden_dropout = 0.1f;
  float attention_dropout = 0.1f;
  float init_std = 0.02f;
  float output_init_std = 0.02f;  // for the projections that write into the residual stream
  DType dtype = DType::kFloat32;
  // Gradients of parameters that meet the residual stream's rows are then summands
  // (LayerContext::sequence_parallel).
  bool sequence_parallel = false;
  // Linear layers communicate beside their products in forward (LinearOptions::overlap).
  bool tp_comm_overlap = false;
  RecomputeOptions recompute;
  // FP8 for the linear layers of attention, MLPs and experts. It must be off where several ranks
  // share a group of queries, whose packed weight is then more than one tensor.
  Float8Options float8;
  // Low-rank adapters of the linear layers of self-attention and MLPs. Not with a grid; that of
  // linear_qkv not where several ranks share a group of queries.
  LoraOptions lora;
  ContextParallel context_parallel =
      ContextParallel::kRing;  // used where there are context-parallel ranks
  int context_team_size = 1;   // number of ranks in a team of kHierarchical
  ops::AttentionKernels attention_kernels;
  MoeOptions moe;
  // The kind of each of all layers; empty: each has attention and an MLP. Norms stand in front of
  // the branches alone, and layers have no cross-attention.
  std::vector<HybridLayer> hybrid_layers;
  MambaOptions mamba;
  DeltaOptions delta;
  // This rank's place in the grid of tensor-parallel ranks. ModelStage sets it.
  TensorGrid grid;

  int64_t value_size() const { return value_channels > 0 ? value_channels : kv_channels; }
  bool is_latent() const { return latent.kv_rank > 0; }
  // Returns the channels of a head among which rotary positions turn theirs.
  int64_t rotary_size() const { return is_latent() ? latent.rotated_size : kv_channels; }
  bool is_hybrid() const { return !hybrid_layers.empty(); }
  bool HasAttention(int64_t layer) const {
    return !is_hybrid() || hybrid_layers[layer] == HybridLayer::kAttention;
  }
  bool HasMlp(int64_t layer) const {
    return !is_hybrid() || hybrid_layers[layer] == HybridLayer::kMlp;
  }
  // Returns whether a layer keeps a state in place of keys and values.
  bool HasStates() const {
    for (const HybridLayer layer : hybrid_layers)
      if (layer == HybridLayer::kMamba || layer == HybridLayer::kDelta) return true;
    return false;
  }
  bool HasWindow(int64_t layer) const {
    return window_size > 0 && (window_layers.empty() || window_layers[layer]);
  }
  bool Rotates(int64_t layer) const {
    return rotary && (rotary_layers.empty() || rotary_layers[layer]);
  }
  // Returns how many of `ranks` context-parallel ranks exchange tokens for heads (context_slice.h).
  int TeamSize(int ranks) const {
    if (context_parallel == ContextParallel::kAllToAll) return ranks;
    return context_parallel == ContextParallel::kHierarchical ? context_team_size : 1;
  }
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_TRANSFORMER_OPTIONS_H_
