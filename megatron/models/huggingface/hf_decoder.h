// The families of decoders but gpt2, one row of a table each. What a row says is all
// that tells the families apart; the functions below read and write any of them.
//
// To add a family whose parts are here already, add a row, and its name to docs/huggingface.md. A
// part that no family has yet gets a field here, and a place in hf_decoder_read.cc (config.json to
// our options), hf_decoder_write.cc (what has no counterpart, and our options to config.json) and
// hf_decoder_weights.cc (names and shapes of tensors). Experts are in hf_experts.cc and the layers
// of hybrid families in hf_mixers.cc.
#ifndef MEGATRON_MODELS_HUGGINGFACE_HF_DECODER_H_
#define MEGATRON_MODELS_HUGGINGFACE_HF_DECODER_H_

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "megatron/models/huggingface/hf_config_fields.h"
#include "megatron/models/model_options.h"

namespace megatron {

enum class HfBiases {
  kNone,
  kQkv,          // on the projections of queries, keys and values
  kAll,          // on all projections, the router and the experts
  kOptional,     // on all projections or on none, as attention_bias and mlp_bias say
  kUseBias,      // the same, as bias_key says
  kOptionalQkv,  // on those of queries, keys and values or on none, as bias_key says
  kMlp,          // on those of MLPs
};

enum class HfHeadWidth {
  kGiven,     // head_dim must be there
  kQuotient,  // hidden_size / num_attention_heads, unless head_dim says otherwise
  kFixed,     // hidden_size / num_attention_heads: not all versions of transformers heed head_dim
};

// How many heads of keys and values there are.
enum class HfKeyHeads {
  kGiven,        // num_key_value_heads
  kGivenOrEach,  // the same, or one for each head of queries
  kEachHead,     // one for each head of queries
  kMultiQuery,   // one where multi_query says so, else one for each head of queries
  // One where multi_query says so, else one for each head of queries; with new_decoder_architecture
  // num_kv_heads.
  kFalcon,
};

// Whether attention and MLP are parallel branches of a layer, and what they read.
enum class HfBranches {
  kInTurn,    // the MLP reads what attention has added
  kPhi,       // both read the output of one norm
  kStableLm,  // use_parallel_residual says whether both read the output of one norm
  kGptNeoX,   // use_parallel_residual says whether each has a norm in front of it; most have
  // Both read one norm unless parallel_attn is false; with new_decoder_architecture,
  // num_ln_in_parallel_attn says whether there are two.
  kFalcon,
};

// The gains of norms of query heads, and of key heads.
enum class HfHeadGains {
  kShared,     // all heads have the same
  kOneTensor,  // each has its own, in one tensor
  kTensors,    // each has its own, in a tensor of its own
};

enum class HfAttention {
  kHeads,   // projections of queries, keys and values
  kLatent,  // multi-head latent attention, with norms of the latents
};

enum class HfWindows {
  kNone,
  kRefused,    // use_sliding_window turns one on, which is refused
  kAllLayers,  // sliding_window is all layers'
  kByLayer,    // layer_types says which layers have the window
};

// Which layers rotate queries and keys.
enum class HfRotatedLayers {
  kAll,
  kListed,           // no_rope_layers or no_rope_layer_interval says it
  kWithWindow,       // those with the window; all where sliding_window is null
  kWithWindowAlone,  // those with the window; there must be one
};

enum class HfExperts {
  kNone,
  kMixtral,  // all layers have experts: block_sparse_moe, w1, w2 and w3
  kQwen,     // decoder_sparse_step and mlp_only_layers say which layers have experts
  kOlmoe,    // all layers have experts, which are intermediate_size wide
  kGptOss,   // one tensor for all experts, gates and ups in turn
  // All layers have experts, each kind in one tensor, and a shared one without a gate; or none has,
  // and the shared one is the MLP.
  kGranite,
  kGraniteMoe,        // as Granite's, without a shared one
  kGraniteMoeShared,  // as Granite's; the shared one may be missing
  // first_k_dense_replace layers have none, and the others a shared one without a gate.
  kDeepSeekV2,  // softmax over all experts, and perhaps groups, chosen by their best expert
  kDeepSeekV3,  // sigmoid scores, with biases that balance, and groups, chosen by their two best
};

// The gate of MLPs and experts, or what is in its place.
enum class HfGate {
  kSilu,
  kGeluTanh,
  kGptOss,
  kUngatedGelu,  // GELU by tanh
  kUngatedSquaredRelu,
  kUngatedGeluErf,     // the exact GELU
  kUngatedEitherGelu,  // that or GELU by tanh
};

// Names of tensors.
struct HfNames {
  const char* embedding = "model.embed_tokens";
  const char* layers = "model.layers.";  // the number follows
  const char* final_norm = "model.norm";
  const char* head = "lm_head";
  const char* attention = ".self_attn";
  const char* attention_output = ".o_proj";
  const char *fc1 = ".up_proj", *fc2 = ".down_proj";  // names in an MLP without a gate
  const char* input_norm = ".input_layernorm";
  const char* mlp_norm = ".post_attention_layernorm";
  const char* grouped_qkv = ".query_key_value";
  const char* positions = "";  // the table of learned positions
};

// The keys of sizes in config.json.
struct HfSizeKeys {
  const char* hidden = "hidden_size";
  const char* layers = "num_hidden_layers";
  const char* heads = "num_attention_heads";
  const char* positions = "max_position_embeddings";
};

// The mixers of a hybrid family (hf_mixers.h): what its layers have in place of attention.
enum class HfMixers {
  kNone,
  kMamba2,     // all layers have a Mamba-2 mixer, and nothing else
  kBamba,      // attn_layer_indices says which layers have attention, the others have Mamba-2
  kGranite,    // layer_types says it
  kQwen3Next,  // layer_types says which layers have attention, the others have gated delta nets
};

enum class HfPositions {
  kRotary,
  kNone,
  kLearned,   // a table of positions
  kOptional,  // position_embedding_type says whether there is a rotation
};

struct HfDecoder {
  const char* model_type;
  const char* architecture;
  HfAttention attention = HfAttention::kHeads;
  HfBiases biases = HfBiases::kNone;
  HfHeadWidth head_width = HfHeadWidth::kGiven;
  HfWindows windows = HfWindows::kNone;
  HfKeyHeads key_heads = HfKeyHeads::kGiven;
  HfBranches branches = HfBranches::kInTurn;
  HfExperts experts = HfExperts::kNone;
  HfGate gate = HfGate::kSilu;
  HfMixers mixers = HfMixers::kNone;
  HfPositions positions = HfPositions::kRotary;
  HfRotatedLayers rotated_layers = HfRotatedLayers::kAll;
  bool gated_shared_expert = false;  // every layer with experts has one, with a gate
  bool qk_norm = false;              // each query and key head is normalized
  bool optional_qk_norm = false;     // they are if qk_norm_key says so
  bool qk_norm_all_heads = false;    // all heads of queries, and of keys, are normalized together
  HfHeadGains head_gains = HfHeadGains::kShared;
  bool sinks = false;           // each head learns the score of one more key
  bool scaled_rotation = true;  // rope_scaling counts in all versions of transformers that have it
  bool partial_rotation = false;  // share_key says which share of a head's channels rotates
  bool longrope = false;          // rope_scaling may be LongRoPE's
  bool interleaved = false;       // pairs of channels that rotate are neighbours
  bool fused = false;             // q, k and v are one tensor, and so are gate and up
  bool grouped_qkv = false;       // q, k and v are one tensor, by groups of heads
  bool fused_gate = false;        // gate and up are one tensor
  bool layer_norm = false;        // norms are LayerNorm, and not RMSNorm
  bool norm_biases = true;        // LayerNorms have biases
  bool zero_centered = false;     // gains are stored less one
  bool output_gate = false;       // q_proj has a gate behind each query head
  bool multipliers = false;       // embedding, branches, scores and logits have each a multiplier
  bool output_bias = false;       // the output matrix has a bias behind it
  bool logit_scale = false;       // logit_scale multiplies logits
  // The embedding is scaled by the root of hidden_size, hidden_activation names the gate, and norms
  // have Gemma's names.
  bool gemma = false;
  bool query_scalar = false;    // query_pre_attn_scalar says how scores are scaled
  bool sandwich_norm = false;   // norms stand on both sides of a branch
  bool local_rotation = false;  // layers with windows rotate by a base of their own
  bool plain_windows = false;   // rope_scaling counts in the layers without windows alone
  bool softcaps = false;        // attn_logit_softcapping and final_logit_softcapping
  bool reordered_norm = false;  // norms stand behind the branches alone
  const char* epsilon_key = "rms_norm_eps";
  const char* bias_key = "attention_bias";  // the key that kOptionalQkv and kUseBias ask for
  const char* qk_norm_key = "use_qk_norm";  // the key that optional_qk_norm asks for
  const char* share_key = "partial_rotary_factor";
  const char* theta_key = "rope_theta";  // null: the base is always rope_theta
  const char* ffn_key = "intermediate_size";
  const char* activation_key = "hidden_act";
  const char* activation = "gelu";  // kUngatedEitherGelu, where config.json does not say it
  const char* attention_dropout_key = "attention_dropout";
  const char* dropout_key = nullptr;  // what names the dropout of branches, if something does
  const char* embedding_dropout_key = nullptr;  // the same, of the embedding, if it has its own
  bool has_biases = false;  // kUseBias and kOptionalQkv, where config.json does not say it
  // The values where config.json has none; without a window if it is 0.
  double rotated_share = 1;      // the share of a head's channels that partial_rotation rotates
  int64_t rotated_channels = 0;  // their number; where above 0, share_key has it, and not the share
  // The last of so many layers sees everything, where layers differ; where it is 0, the first
  // max_window_layers do.
  int64_t window_period = 2;
  double epsilon = 1e-6, rope_theta = 10000;
  double dropout = 0;  // attention's, and the one that dropout_key names
  int64_t window = 0;
  int64_t ffn_multiple = 0;   // the width of an MLP, in hidden_size; 0: it must be there
  int64_t max_positions = 0;  // 0: it must be there
  bool tied = false;
  // The same of DeepSeek's experts: routed_scaling_factor, n_group, topk_group,
  // first_k_dense_replace and norm_topk_prob.
  double routed_scale = 1;
  int64_t expert_groups = 1, chosen_groups = 1, dense_layers = 0;
  bool normalized_scores = false;
  HfNames names;
  HfSizeKeys sizes;

  bool is_hybrid() const { return mixers != HfMixers::kNone; }
  bool is_gated() const {
    return gate == HfGate::kSilu || gate == HfGate::kGeluTanh || gate == HfGate::kGptOss;
  }
  bool is_granite() const {
    return experts == HfExperts::kGranite || experts == HfExperts::kGraniteMoe ||
           experts == HfExperts::kGraniteMoeShared;
  }
  bool is_latent() const { return attention == HfAttention::kLatent; }
  bool rotates_with_window() const {
    return rotated_layers == HfRotatedLayers::kWithWindow ||
           rotated_layers == HfRotatedLayers::kWithWindowAlone;
  }
  bool is_deepseek() const {
    return experts == HfExperts::kDeepSeekV2 || experts == HfExperts::kDeepSeekV3;
  }
};

// In the order in which a model that several of them have is written as one of them.
absl::Span<const HfDecoder> HfDecoders();
// Returns null where there is none.
const HfDecoder* FindHfDecoder(absl::string_view model_type);
// Returns the family of which `options` are a model: the one of that type or, where it is empty,
// the first one. Where there is none, it is null, and *reasons are those against the one that the
// model comes closest to.
const HfDecoder* ChooseHfDecoder(const ModelOptions& options, absl::string_view model_type,
                                 HfReasons* reasons);

// Adds as a reason what does not hold, with the name of the family.
class HfRequirements {
 public:
  HfRequirements(const HfDecoder& family, HfReasons* reasons)
      : family_(family), reasons_(*reasons) {}

  // `option` is ours, `there` what the family has in its place.
  void operator()(bool holds, const char* option, const std::string& there) const {
    if (!holds) reasons_.push_back(absl::StrCat(option, ": ", family_.model_type, " has ", there));
  }

 private:
  const HfDecoder& family_;
  HfReasons& reasons_;
};

// Returns whether a GPT is written as a gpt2, if at all, and not as one of these families. gpt2 is
// the first of those with learned positions; one key head is another's alone.
bool IsHfGpt2(const ModelOptions& options, absl::string_view model_type = "");

void ReadHfDecoder(const HfDecoder& family, const HfFields& fields, ModelOptions* options);
void CheckHfDecoder(const HfDecoder& family, const ModelOptions& options, HfReasons* reasons);
HfJson HfDecoderConfig(const HfDecoder& family, const ModelOptions& options);

}  // namespace megatron

#endif  // MEGATRON_MODELS_HUGGINGFACE_HF_DECODER_H_
