#include "megatron/models/huggingface/hf_decoder.h"

#include <limits>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "megatron/models/huggingface/hf_mixers.h"

namespace megatron {
namespace {

constexpr HfDecoder Llama() {
  HfDecoder family{"llama", "LlamaForCausalLM"};
  family.biases = HfBiases::kOptional;
  family.head_width = HfHeadWidth::kQuotient;
  return family;
}

constexpr HfDecoder Mistral() {
  HfDecoder family{"mistral", "MistralForCausalLM"};
  family.head_width = HfHeadWidth::kQuotient;
  family.windows = HfWindows::kAllLayers;
  family.window = 4096;
  family.scaled_rotation = false;
  return family;
}

constexpr HfDecoder Qwen2() {
  HfDecoder family{"qwen2", "Qwen2ForCausalLM"};
  family.biases = HfBiases::kQkv;
  family.head_width = HfHeadWidth::kFixed;
  family.windows = HfWindows::kRefused;
  family.window = 4096;
  return family;
}

constexpr HfDecoder Qwen3() {
  HfDecoder family{"qwen3", "Qwen3ForCausalLM"};
  family.windows = HfWindows::kRefused;
  family.window = 4096;
  family.qk_norm = true;
  return family;
}

constexpr HfDecoder Mixtral() {
  HfDecoder family{"mixtral", "MixtralForCausalLM"};
  family.head_width = HfHeadWidth::kFixed;
  family.windows = HfWindows::kAllLayers;
  family.experts = HfExperts::kMixtral;
  family.scaled_rotation = false;
  family.epsilon = 1e-5;
  family.rope_theta = 1e6;
  return family;
}

constexpr HfDecoder Qwen2Moe() {
  HfDecoder family{"qwen2_moe", "Qwen2MoeForCausalLM"};
  family.biases = HfBiases::kQkv;
  family.head_width = HfHeadWidth::kFixed;
  family.windows = HfWindows::kRefused;
  family.window = 4096;
  family.experts = HfExperts::kQwen;
  family.gated_shared_expert = true;
  return family;
}

constexpr HfDecoder Qwen3Moe() {
  HfDecoder family{"qwen3_moe", "Qwen3MoeForCausalLM"};
  family.windows = HfWindows::kRefused;
  family.window = 4096;
  family.experts = HfExperts::kQwen;
  family.qk_norm = true;
  return family;
}

constexpr HfDecoder GptOss() {
  HfDecoder family{"gpt_oss", "GptOssForCausalLM"};
  family.biases = HfBiases::kAll;
  family.windows = HfWindows::kByLayer;
  family.window = 128;
  family.experts = HfExperts::kGptOss;
  family.gate = HfGate::kGptOss;
  family.sinks = true;
  family.epsilon = 1e-5;
  family.rope_theta = 150000;
  return family;
}

constexpr HfDecoder Gemma2() {
  HfDecoder family{"gemma2", "Gemma2ForCausalLM"};
  family.zero_centered = true;
  family.windows = HfWindows::kByLayer;
  family.window = 4096;
  family.gate = HfGate::kGeluTanh;
  family.gemma = family.query_scalar = family.sandwich_norm = true;
  family.softcaps = family.tied = true;
  return family;
}

constexpr HfDecoder Olmo2() {
  HfDecoder family{"olmo2", "Olmo2ForCausalLM"};
  family.head_width = HfHeadWidth::kFixed;
  family.qk_norm = family.qk_norm_all_heads = family.reordered_norm = true;
  family.scaled_rotation = false;
  family.epsilon = 1e-5;
  return family;
}

constexpr HfDecoder Olmo3() {
  HfDecoder family{"olmo3", "Olmo3ForCausalLM"};
  family.head_width = HfHeadWidth::kQuotient;
  family.windows = HfWindows::kByLayer;
  family.window = 4096;
  family.window_period = 4;
  family.plain_windows = true;
  family.qk_norm = family.qk_norm_all_heads = family.reordered_norm = true;
  family.epsilon = 1e-5;
  return family;
}

constexpr HfDecoder Olmoe() {
  HfDecoder family{"olmoe", "OlmoeForCausalLM"};
  family.head_width = HfHeadWidth::kFixed;
  family.experts = HfExperts::kOlmoe;
  family.qk_norm = family.qk_norm_all_heads = true;
  family.epsilon = 1e-5;
  return family;
}

constexpr HfDecoder Gemma3() {
  HfDecoder family{"gemma3_text", "Gemma3ForCausalLM"};
  family.windows = HfWindows::kByLayer;
  family.window = 4096;
  family.gate = HfGate::kGeluTanh;
  family.qk_norm = true;
  family.gemma = family.query_scalar = family.sandwich_norm = family.zero_centered = true;
  family.local_rotation = true;
  family.window_period = 6;
  family.rope_theta = 1e6;
  family.tied = true;
  return family;
}

constexpr HfDecoder DeepSeek(const char* model_type, const char* architecture, HfExperts experts) {
  HfDecoder family{model_type, architecture};
  family.attention = HfAttention::kLatent;
  family.experts = experts;
  family.qk_norm = true;
  return family;
}

constexpr HfDecoder DeepSeekV3() {
  HfDecoder family = DeepSeek("deepseek_v3", "DeepseekV3ForCausalLM", HfExperts::kDeepSeekV3);
  family.routed_scale = 2.5;
  family.expert_groups = 8;
  family.chosen_groups = 4;
  family.dense_layers = 3;
  family.normalized_scores = true;
  return family;
}

constexpr HfDecoder Phi3() {
  HfDecoder family{"phi3", "Phi3ForCausalLM"};
  family.head_width = HfHeadWidth::kFixed;
  family.windows = HfWindows::kAllLayers;
  family.scaled_rotation = false;
  family.partial_rotation = family.longrope = true;
  family.fused = true;
  family.dropout_key = "resid_pdrop";
  family.embedding_dropout_key = "embd_pdrop";
  family.epsilon = 1e-5;
  return family;
}

constexpr HfDecoder Mamba2() {
  HfDecoder family{"mamba2", "Mamba2ForCausalLM"};
  family.mixers = HfMixers::kMamba2;
  family.positions = HfPositions::kNone;
  family.epsilon = 1e-5;
  family.names.embedding = "backbone.embeddings";
  family.names.layers = "backbone.layers.";
  family.names.final_norm = "backbone.norm_f";
  return family;
}

constexpr HfDecoder Bamba() {
  HfDecoder family{"bamba", "BambaForCausalLM"};
  family.mixers = HfMixers::kBamba;
  family.names.final_norm = "model.final_layernorm";
  family.head_width = HfHeadWidth::kFixed;
  family.partial_rotation = true;
  family.rotated_share = 0.5;
  family.epsilon = 1e-5;
  return family;
}

constexpr HfDecoder GraniteMoeHybrid() {
  HfDecoder family{"granitemoehybrid", "GraniteMoeHybridForCausalLM"};
  family.mixers = HfMixers::kGranite;
  family.positions = HfPositions::kOptional;
  family.head_width = HfHeadWidth::kFixed;
  family.experts = HfExperts::kGranite;
  family.multipliers = true;
  return family;
}

constexpr HfDecoder Qwen3Next() {
  HfDecoder family{"qwen3_next", "Qwen3NextForCausalLM"};
  family.mixers = HfMixers::kQwen3Next;
  family.experts = HfExperts::kQwen;
  family.gated_shared_expert = true;
  family.qk_norm = family.zero_centered = family.output_gate = true;
  family.partial_rotation = true;
  family.rotated_share = 0.25;
  return family;
}

constexpr HfDecoder Gemma() {
  HfDecoder family{"gemma", "GemmaForCausalLM"};
  family.zero_centered = family.gemma = family.tied = true;
  family.gate = HfGate::kGeluTanh;
  family.scaled_rotation = false;
  return family;
}

constexpr HfDecoder Granite(const char* model_type, const char* architecture, HfExperts experts) {
  HfDecoder family{model_type, architecture};
  family.head_width = HfHeadWidth::kFixed;
  family.experts = experts;
  family.multipliers = true;
  return family;
}

constexpr HfDecoder SmolLm3() {
  HfDecoder family{"smollm3", "SmolLM3ForCausalLM"};
  family.biases = HfBiases::kOptional;
  family.head_width = HfHeadWidth::kQuotient;
  family.windows = HfWindows::kRefused;
  family.window = 4096;
  family.rotated_layers = HfRotatedLayers::kListed;
  family.rope_theta = 2e6;
  family.tied = true;
  return family;
}

constexpr HfDecoder SeedOss() {
  HfDecoder family{"seed_oss", "SeedOssForCausalLM"};
  family.biases = HfBiases::kOptionalQkv;
  family.has_biases = true;
  family.dropout_key = "residual_dropout";
  family.dropout = 0.1;
  return family;
}

constexpr HfDecoder Ernie() {
  HfDecoder family{"ernie4_5", "Ernie4_5ForCausalLM"};
  family.biases = HfBiases::kUseBias;
  family.bias_key = "use_bias";
  family.interleaved = true;
  family.epsilon = 1e-5;
  family.rope_theta = 500000;
  family.tied = true;
  return family;
}

constexpr HfDecoder Glm(const char* model_type, const char* architecture, bool sandwich_norm) {
  HfDecoder family{model_type, architecture};
  family.biases = HfBiases::kOptionalQkv;
  family.has_biases = true;
  family.scaled_rotation = false;
  family.partial_rotation = family.interleaved = true;
  family.rotated_share = 0.5;
  family.fused_gate = true;
  family.sandwich_norm = sandwich_norm;
  family.epsilon = 1.5625e-7;
  return family;
}

constexpr HfDecoder Glm4Moe() {
  HfDecoder family{"glm4_moe", "Glm4MoeForCausalLM"};
  family.biases = HfBiases::kOptionalQkv;
  family.head_width = HfHeadWidth::kQuotient;
  family.experts = HfExperts::kDeepSeekV3;
  family.dense_layers = 1;
  family.normalized_scores = true;
  family.optional_qk_norm = true;
  family.partial_rotation = true;
  family.rotated_share = 0.5;
  family.epsilon = 1e-5;
  return family;
}

constexpr HfDecoder Dots1() {
  HfDecoder family{"dots1", "Dots1ForCausalLM"};
  family.head_width = HfHeadWidth::kQuotient;
  family.windows = HfWindows::kByLayer;
  family.window = 4096;
  family.window_period = 0;
  family.experts = HfExperts::kDeepSeekV3;
  family.qk_norm = true;
  return family;
}

constexpr HfDecoder Starcoder2() {
  HfDecoder family{"starcoder2", "Starcoder2ForCausalLM"};
  family.biases = HfBiases::kUseBias;
  family.bias_key = "use_bias";
  family.has_biases = true;
  family.head_width = HfHeadWidth::kFixed;
  family.windows = HfWindows::kAllLayers;
  family.gate = HfGate::kUngatedGelu;
  family.layer_norm = true;
  family.scaled_rotation = false;
  family.dropout_key = "residual_dropout";
  family.embedding_dropout_key = "embedding_dropout";
  family.epsilon_key = "norm_epsilon";
  family.epsilon = 1e-5;
  family.tied = true;
  family.names.fc1 = ".c_fc";
  family.names.fc2 = ".c_proj";
  return family;
}

constexpr HfDecoder StableLm() {
  HfDecoder family{"stablelm", "StableLmForCausalLM"};
  family.biases = HfBiases::kOptionalQkv;
  family.bias_key = "use_qkv_bias";
  family.head_width = HfHeadWidth::kFixed;
  family.branches = HfBranches::kStableLm;
  family.optional_qk_norm = true;
  family.qk_norm_key = "qk_layernorm";
  family.head_gains = HfHeadGains::kTensors;
  family.layer_norm = true;
  family.scaled_rotation = false;
  family.partial_rotation = true;
  family.rotated_share = 0.25;
  family.dropout_key = "hidden_dropout";
  family.epsilon_key = "layer_norm_eps";
  family.epsilon = 1e-5;
  return family;
}

constexpr HfDecoder Nemotron() {
  HfDecoder family{"nemotron", "NemotronForCausalLM"};
  family.biases = HfBiases::kOptional;
  family.head_width = HfHeadWidth::kQuotient;
  family.gate = HfGate::kUngatedSquaredRelu;
  family.layer_norm = family.zero_centered = true;
  family.scaled_rotation = false;
  family.partial_rotation = true;
  family.rotated_share = 0.5;
  family.epsilon_key = "norm_eps";
  family.epsilon = 1e-5;
  return family;
}

constexpr HfDecoder Arcee() {
  HfDecoder family{"arcee", "ArceeForCausalLM"};
  family.biases = HfBiases::kOptional;
  family.head_width = HfHeadWidth::kQuotient;
  family.gate = HfGate::kUngatedSquaredRelu;
  family.epsilon = 1e-5;
  return family;
}

constexpr HfDecoder Exaone4() {
  HfDecoder family{"exaone4", "Exaone4ForCausalLM"};
  family.head_width = HfHeadWidth::kQuotient;
  family.windows = HfWindows::kByLayer;
  family.window = 4096;
  family.window_period = 4;
  family.rotated_layers = HfRotatedLayers::kWithWindow;
  family.qk_norm = family.reordered_norm = true;
  family.epsilon = 1e-5;
  return family;
}

constexpr HfDecoder GptNeoX() {
  HfDecoder family{"gpt_neox", "GPTNeoXForCausalLM"};
  family.biases = HfBiases::kAll;
  family.head_width = HfHeadWidth::kFixed;
  family.key_heads = HfKeyHeads::kEachHead;
  family.branches = HfBranches::kGptNeoX;
  family.gate = HfGate::kUngatedEitherGelu;
  family.layer_norm = family.grouped_qkv = true;
  family.scaled_rotation = false;
  family.partial_rotation = true;
  family.rotated_share = 0.25;
  family.share_key = "rotary_pct";
  family.theta_key = "rotary_emb_base";
  family.dropout_key = "hidden_dropout";
  family.epsilon_key = "layer_norm_eps";
  family.epsilon = 1e-5;
  family.names = {"gpt_neox.embed_in", "gpt_neox.layers.", "gpt_neox.final_layer_norm",
                  "embed_out",         ".attention",       ".dense",
                  ".dense_h_to_4h",    ".dense_4h_to_h"};
  return family;
}

constexpr HfDecoder Phi() {
  HfDecoder family{"phi", "PhiForCausalLM"};
  family.biases = HfBiases::kAll;
  family.head_width = HfHeadWidth::kFixed;
  family.key_heads = HfKeyHeads::kGivenOrEach;
  family.branches = HfBranches::kPhi;
  family.gate = HfGate::kUngatedEitherGelu;
  family.activation = "gelu_new";
  family.layer_norm = family.output_bias = true;
  family.scaled_rotation = false;
  family.partial_rotation = true;
  family.rotated_share = 0.5;
  family.dropout_key = "resid_pdrop";
  family.embedding_dropout_key = "embd_pdrop";
  family.epsilon_key = "layer_norm_eps";
  family.epsilon = 1e-5;
  family.names.final_norm = "model.final_layernorm";
  family.names.attention_output = ".dense";
  family.names.fc1 = ".fc1";
  family.names.fc2 = ".fc2";
  return family;
}

constexpr HfDecoder Falcon() {
  HfDecoder family{"falcon", "FalconForCausalLM"};
  family.biases = HfBiases::kUseBias;
  family.bias_key = "bias";
  family.head_width = HfHeadWidth::kFixed;
  family.key_heads = HfKeyHeads::kFalcon;
  family.branches = HfBranches::kFalcon;
  family.gate = HfGate::kUngatedGeluErf;
  family.layer_norm = family.grouped_qkv = true;
  family.scaled_rotation = false;
  family.ffn_key = "ffn_hidden_size";
  family.activation_key = "activation";
  family.dropout_key = "hidden_dropout";
  family.epsilon_key = "layer_norm_epsilon";
  family.epsilon = 1e-5;
  family.ffn_multiple = 4;
  family.max_positions = 2048;
  family.tied = true;
  family.names = {"transformer.word_embeddings",
                  "transformer.h.",
                  "transformer.ln_f",
                  "lm_head",
                  ".self_attention",
                  ".dense",
                  ".dense_h_to_4h",
                  ".dense_4h_to_h"};
  return family;
}

constexpr HfDecoder GptJ() {
  HfDecoder family{"gptj", "GPTJForCausalLM"};
  family.biases = HfBiases::kMlp;
  family.head_width = HfHeadWidth::kFixed;
  family.key_heads = HfKeyHeads::kEachHead;
  family.branches = HfBranches::kPhi;
  family.gate = HfGate::kUngatedEitherGelu;
  family.activation = "gelu_new";
  family.layer_norm = family.output_bias = true;
  family.scaled_rotation = false;
  family.partial_rotation = family.interleaved = true;
  family.share_key = "rotary_dim";
  family.rotated_channels = 64;
  family.theta_key = nullptr;
  family.ffn_key = "n_inner";
  family.ffn_multiple = 4;
  family.activation_key = "activation_function";
  family.attention_dropout_key = "attn_pdrop";
  family.dropout_key = "resid_pdrop";
  family.embedding_dropout_key = "embd_pdrop";
  family.epsilon_key = "layer_norm_epsilon";
  family.epsilon = 1e-5;
  family.names = {"transformer.wte", "transformer.h.", "transformer.ln_f", "lm_head", ".attn",
                  ".out_proj",       ".fc_in",         ".fc_out",          ".ln_1"};
  family.sizes = {"n_embd", "n_layer", "n_head", "n_positions"};
  return family;
}

constexpr HfDecoder GptBigCode() {
  HfDecoder family{"gpt_bigcode", "GPTBigCodeForCausalLM"};
  family.biases = HfBiases::kAll;
  family.head_width = HfHeadWidth::kFixed;
  family.key_heads = HfKeyHeads::kMultiQuery;
  family.positions = HfPositions::kLearned;
  family.gate = HfGate::kUngatedEitherGelu;
  family.activation = "gelu_pytorch_tanh";
  family.layer_norm = family.grouped_qkv = true;
  family.scaled_rotation = false;
  family.theta_key = nullptr;
  family.ffn_key = "n_inner";
  family.ffn_multiple = 4;
  family.activation_key = "activation_function";
  family.dropout = 0.1;
  family.attention_dropout_key = "attn_pdrop";
  family.dropout_key = "resid_pdrop";
  family.embedding_dropout_key = "embd_pdrop";
  family.epsilon_key = "layer_norm_epsilon";
  family.epsilon = 1e-5;
  family.tied = true;
  family.names = {"transformer.wte", "transformer.h.", "transformer.ln_f", "lm_head", ".attn",
                  ".c_proj",         ".c_fc",          ".c_proj",          ".ln_1",   ".ln_2",
                  ".c_attn",         "transformer.wpe"};
  family.sizes = {"n_embd", "n_layer", "n_head", "n_positions"};
  return family;
}

constexpr HfDecoder Cohere(const char* model_type, const char* architecture) {
  HfDecoder family{model_type, architecture};
  family.head_width = HfHeadWidth::kFixed;
  family.key_heads = HfKeyHeads::kGivenOrEach;
  family.branches = HfBranches::kPhi;
  family.layer_norm = family.logit_scale = true;
  family.norm_biases = false;
  family.scaled_rotation = false;
  family.interleaved = true;
  family.epsilon_key = "layer_norm_eps";
  family.epsilon = 1e-5;
  family.tied = true;
  return family;
}

constexpr HfDecoder Cohere1() {
  HfDecoder family = Cohere("cohere", "CohereForCausalLM");
  family.optional_qk_norm = true;
  family.head_gains = HfHeadGains::kOneTensor;
  return family;
}

constexpr HfDecoder Cohere2() {
  HfDecoder family = Cohere("cohere2", "Cohere2ForCausalLM");
  family.windows = HfWindows::kByLayer;
  family.window = 4096;
  family.window_period = 4;
  family.rotated_layers = HfRotatedLayers::kWithWindowAlone;
  return family;
}

// Returns how many kinds of weights only one of the two has. A model that differs in fewer is
// closer than one that differs in sizes.
int PartsThatDiffer(const HfDecoder& family, const ModelOptions& options) {
  const TransformerOptions& layer = options.transformer;
  const bool mlp_biases = layer.mlp_bias && !layer.linear_bias;
  const bool no_biases = !layer.linear_bias && !layer.qkv_bias && !mlp_biases;
  const bool all_biases = layer.linear_bias && layer.qkv_bias;
  bool biases = false;  // whether the family may have the layer's
  switch (family.biases) {
    case HfBiases::kNone:
      biases = no_biases;
      break;
    case HfBiases::kQkv:
      biases = layer.qkv_bias && !layer.linear_bias;
      break;
    case HfBiases::kAll:
      biases = all_biases;
      break;
    case HfBiases::kOptional:
    case HfBiases::kUseBias:
      biases = no_biases || all_biases;
      break;
    case HfBiases::kOptionalQkv:
      biases = !layer.linear_bias && !mlp_biases;
      break;
    case HfBiases::kMlp:
      biases = mlp_biases && !layer.qkv_bias;
  }
  const bool may_be_parallel = family.branches != HfBranches::kInTurn;
  const bool may_be_in_turn = family.branches != HfBranches::kPhi;
  const bool may_have_none =
      family.experts == HfExperts::kNone || family.experts == HfExperts::kGranite;
  const bool experts =
      layer.moe.num_experts > 0 ? family.experts != HfExperts::kNone : may_have_none;
  const bool has_delta = HasHybridLayer(layer, HybridLayer::kDelta);
  const bool has_mlp = !layer.is_hybrid() || HasHybridLayer(layer, HybridLayer::kMlp);
  const bool learned = family.positions == HfPositions::kLearned;
  return static_cast<int>(learned != options.learned_positions) +
         static_cast<int>((family.mixers == HfMixers::kQwen3Next) != has_delta) +
         static_cast<int>((family.mixers != HfMixers::kMamba2) != has_mlp) +
         static_cast<int>(!biases) + static_cast<int>(!experts) +
         static_cast<int>(!family.optional_qk_norm && family.qk_norm != layer.qk_norm) +
         static_cast<int>((layer.qk_norm && layer.qk_norm_each_head) !=
                          (layer.qk_norm && family.head_gains != HfHeadGains::kShared)) +
         static_cast<int>(family.layer_norm != (layer.norm.kind == ops::Norm::kLayerNorm)) +
         static_cast<int>(family.norm_biases != layer.norm.bias) +
         static_cast<int>(has_mlp && family.is_gated() != layer.gated) +
         static_cast<int>(family.is_latent() != layer.is_latent()) +
         static_cast<int>((family.experts == HfExperts::kDeepSeekV3) !=
                          (layer.moe.router.score == ops::RouterScore::kSigmoid)) +
         static_cast<int>(family.sinks != (layer.sink == AttentionSink::kLearned)) +
         static_cast<int>(family.sandwich_norm != layer.sandwich_norm) +
         static_cast<int>(layer.parallel_residual ? !may_be_parallel : !may_be_in_turn) +
         static_cast<int>(family.output_gate != layer.output_gate) +
         static_cast<int>(!family.multipliers && layer.residual_multiplier != 1) +
         static_cast<int>(family.reordered_norm != layer.reordered_norm) +
         static_cast<int>(family.qk_norm_all_heads != layer.qk_norm_all_heads);
}

constexpr HfDecoder kFamilies[] = {
    Llama(),
    Mistral(),
    Qwen2(),
    Qwen3(),
    Mixtral(),
    Qwen2Moe(),
    Qwen3Moe(),
    GptOss(),
    Gemma2(),
    Gemma3(),
    Olmo2(),
    Olmo3(),
    Olmoe(),
    DeepSeek("deepseek_v2", "DeepseekV2ForCausalLM", HfExperts::kDeepSeekV2),
    DeepSeekV3(),
    Phi3(),
    Mamba2(),
    Bamba(),
    GraniteMoeHybrid(),
    Qwen3Next(),
    Gemma(),
    Granite("granite", "GraniteForCausalLM", HfExperts::kNone),
    Granite("granitemoe", "GraniteMoeForCausalLM", HfExperts::kGraniteMoe),
    Granite("granitemoeshared", "GraniteMoeSharedForCausalLM", HfExperts::kGraniteMoeShared),
    SmolLm3(),
    SeedOss(),
    Glm("glm", "GlmForCausalLM", /*sandwich_norm=*/false),
    Glm("glm4", "Glm4ForCausalLM", /*sandwich_norm=*/true),
    Glm4Moe(),
    Dots1(),
    Ernie(),
    Starcoder2(),
    StableLm(),
    Nemotron(),
    Arcee(),
    Exaone4(),
    GptNeoX(),
    Phi(),
    Falcon(),
    GptJ(),
    Cohere1(),
    Cohere2(),
    GptBigCode()};

}  // namespace

absl::Span<const HfDecoder> HfDecoders() { return kFamilies; }

bool IsHfGpt2(const ModelOptions& options, absl::string_view model_type) {
  const TransformerOptions& layer = options.transformer;
  const bool has_one_key = layer.num_query_groups == 1 && layer.num_attention_heads > 1;
  return options.learned_positions && (model_type.empty() ? !has_one_key : model_type == "gpt2");
}

const HfDecoder* FindHfDecoder(absl::string_view model_type) {
  for (const HfDecoder& family : kFamilies) {
    if (model_type == family.model_type) return &family;
  }
  return nullptr;
}

const HfDecoder* ChooseHfDecoder(const ModelOptions& options, absl::string_view model_type,
                                 HfReasons* reasons) {
  *reasons = {absl::StrCat(model_type, " is no decoder with rotary positions")};
  // A model of mixers is closer to any hybrid than to what has none.
  using Distance = std::tuple<bool, int, size_t>;
  Distance least = {true, std::numeric_limits<int>::max(), 0};
  for (const HfDecoder& family : kFamilies) {
    if (!model_type.empty() && model_type != family.model_type) continue;
    HfReasons against;
    CheckHfDecoder(family, options, &against);
    if (against.empty()) return &family;
    const Distance distance = {family.is_hybrid() != options.transformer.is_hybrid(),
                               PartsThatDiffer(family, options), against.size()};
    if (distance >= least) continue;
    least = distance;
    *reasons = against;
  }
  return nullptr;
}

}  // namespace megatron
