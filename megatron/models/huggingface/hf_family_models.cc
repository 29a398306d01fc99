#include "megatron/models/huggingface/hf_family_models.h"

#include <cmath>

#include "megatron/layers/latent_scale.h"
#include "megatron/layers/longrope_scale.h"

namespace megatron {
namespace {

ModelOptions Llama() {
  ModelOptions options;
  TransformerOptions& layer = options.transformer;
  layer.num_layers = 3;
  layer.hidden_size = 32;
  layer.ffn_hidden_size = 24;
  layer.num_attention_heads = 4;
  layer.num_query_groups = 2;
  layer.kv_channels = 12;
  layer.norm.kind = ops::Norm::kRmsNorm;
  layer.norm.epsilon = 1e-6f;
  layer.gated = layer.rotary = true;
  layer.linear_bias = layer.qkv_bias = false;
  layer.hidden_dropout = layer.attention_dropout = 0;
  options.vocab_size = options.padded_vocab_size = 50;
  options.max_positions = 64;
  options.learned_positions = options.tied_embeddings = false;
  return options;
}

// With heads of hidden_size / num_attention_heads.
ModelOptions Narrow() {
  ModelOptions options = Llama();
  options.transformer.kv_channels = 8;
  return options;
}

void SetExperts(int64_t ffn_hidden_size, ModelOptions* options) {
  MoeOptions& moe = options->transformer.moe;
  moe.num_experts = 5;
  moe.ffn_hidden_size = ffn_hidden_size;
  moe.router.topk = 3;
  moe.balance = BalanceUnit::kNone;
}

ModelOptions Qwen2() {
  ModelOptions options = Narrow();
  options.transformer.qkv_bias = true;
  options.tied_embeddings = true;
  return options;
}

ModelOptions Qwen3() {
  ModelOptions options = Llama();
  options.transformer.qk_norm = true;
  return options;
}

// One layer of three has no experts.
ModelOptions Qwen2Moe() {
  ModelOptions options = Narrow();
  options.transformer.qkv_bias = true;
  SetExperts(16, &options);
  MoeOptions& moe = options.transformer.moe;
  moe.layers = {true, false, true};
  moe.router.pre_softmax = true;
  moe.shared_ffn_hidden_size = 20;
  moe.shared_expert_gate = true;
  return options;
}

ModelOptions Qwen3Moe() {
  ModelOptions options = Qwen3();
  SetExperts(16, &options);
  options.transformer.rotary_options.yarn.factor = 4;
  options.transformer.rotary_options.yarn.original_context = 16;
  return options;
}

// Its list of layers names all of them, as a configuration's does.
ModelOptions Mixtral() {
  ModelOptions options = Narrow();
  SetExperts(24, &options);
  options.transformer.moe.layers = {true, true, true};
  options.transformer.window_size = 9;
  return options;
}

ModelOptions GptOss() {
  ModelOptions options = Llama();
  TransformerOptions& layer = options.transformer;
  SetExperts(24, &options);
  layer.linear_bias = layer.qkv_bias = true;
  layer.gate = ops::Activation::kQuickGelu;
  layer.gate_limit = 7;
  layer.gate_offset = 1;
  layer.sink = AttentionSink::kLearned;
  layer.window_size = 9;
  layer.window_layers = {true, false, true};
  layer.rotary_options.base = 150000;
  layer.rotary_options.yarn.factor = 32;
  layer.rotary_options.yarn.original_context = 8;
  layer.rotary_options.yarn.round_range = false;
  return options;
}

ModelOptions Gemma3() {
  ModelOptions options = Llama();
  TransformerOptions& layer = options.transformer;
  layer.qk_norm = layer.sandwich_norm = layer.norm.zero_centered_gamma = true;
  layer.gate = ops::Activation::kGeluTanh;
  layer.softmax_scale = static_cast<float>(1 / std::sqrt(20.0));
  layer.window_size = 9;
  layer.window_layers = {true, true, false};
  layer.rotary_options.base = 1e6;
  layer.rotary_options.local_base = 10000;
  layer.rotary_options.interpolation_factor = 8;
  options.embedding_scale = std::sqrt(32.0f);
  options.tied_embeddings = true;
  return options;
}

ModelOptions Gemma2() {
  ModelOptions options = Gemma3();
  TransformerOptions& layer = options.transformer;
  layer.qk_norm = false;
  layer.window_layers = {true, false, true};
  layer.rotary_options = RotaryOptions();
  layer.score_softcap = 2.5f;
  options.logit_softcap = 1.5f;
  return options;
}

ModelOptions Olmo2() {
  ModelOptions options = Narrow();
  TransformerOptions& layer = options.transformer;
  layer.qk_norm = layer.qk_norm_all_heads = layer.reordered_norm = true;
  return options;
}

// The layer without a window is scaled, the others are not.
ModelOptions Olmo3() {
  ModelOptions options = Olmo2();
  TransformerOptions& layer = options.transformer;
  layer.window_size = 9;
  layer.window_layers = {true, false, true};
  layer.rotary_options.yarn.factor = 4;
  layer.rotary_options.yarn.original_context = 16;
  layer.rotary_options.local_base = layer.rotary_options.base;
  return options;
}

ModelOptions Olmoe() {
  ModelOptions options = Narrow();
  SetExperts(24, &options);
  TransformerOptions& layer = options.transformer;
  layer.moe.router.pre_softmax = true;
  layer.qk_norm = layer.qk_norm_all_heads = true;
  return options;
}

ModelOptions DeepSeekV3() {
  ModelOptions options = Llama();
  TransformerOptions& layer = options.transformer;
  layer.num_query_groups = 4;
  layer.qk_norm = true;
  layer.latent.kv_rank = 20;
  layer.latent.q_rank = 28;
  layer.latent.rotated_size = 6;
  layer.kv_channels = 16;
  layer.value_channels = 14;
  layer.rotary_options.interleaved = true;
  layer.rotary_options.yarn.factor = 4;
  layer.rotary_options.yarn.original_context = 16;
  layer.rotary_options.yarn.mscale = layer.rotary_options.yarn.mscale_all_dim = 0.7;
  layer.softmax_scale = LatentSoftmaxScale(layer);
  SetExperts(10, &options);
  MoeOptions& moe = layer.moe;
  moe.num_experts = 8;
  moe.layers = {false, true, true};
  moe.shared_ffn_hidden_size = 20;
  moe.router.score = ops::RouterScore::kSigmoid;
  moe.router.topk = 4;
  moe.router.num_groups = 4;
  moe.router.group_topk = 2;
  moe.router.group_score_topk = 2;
  moe.router.scaling_factor = 2.5f;
  moe.expert_bias = true;
  return options;
}

ModelOptions DeepSeekV2() {
  ModelOptions options = DeepSeekV3();
  TransformerOptions& layer = options.transformer;
  layer.latent.q_rank = 0;
  layer.rotary_options.yarn = YarnOptions();
  layer.softmax_scale = LatentSoftmaxScale(layer);
  MoeOptions& moe = layer.moe;
  moe.router = ops::Router();
  moe.router.topk = 3;
  moe.router.pre_softmax = true;
  moe.expert_bias = false;
  return options;
}

// Its groups are chosen by their best expert.
ModelOptions DeepSeekV2WithGroups() {
  ModelOptions options = DeepSeekV2();
  ops::Router& router = options.transformer.moe.router;
  router.num_groups = 4;
  router.group_topk = 3;
  router.group_score_topk = 1;
  router.scaling_factor = 1.5f;
  return options;
}

// Three quarters of a head are rotated.
ModelOptions Phi3() {
  ModelOptions options = Narrow();
  options.transformer.rotary_options.percent = 0.75;
  options.transformer.window_size = 9;
  return options;
}

ModelOptions Phi3WithLongRope() {
  ModelOptions options = Phi3();
  LongRopeOptions& longrope = options.transformer.rotary_options.longrope;
  longrope.long_factors = {1, 2.5, 40};
  longrope.short_factors = {1, 1.25, 2};
  longrope.original_context = 16;
  longrope.magnitude = LongRopeMagnitude(64, 16);
  return options;
}

constexpr HybridLayer kM = HybridLayer::kMamba, kG = HybridLayer::kDelta,
                      kA = HybridLayer::kAttention, kF = HybridLayer::kMlp;

void SetLayers(const std::vector<HybridLayer>& layers, TransformerOptions* options) {
  options->hybrid_layers = layers;
  options->num_layers = static_cast<int64_t>(layers.size());
  options->mamba = {/*state_dim=*/6, /*head_dim=*/16, /*num_groups=*/1, /*num_heads=*/4};
  options->delta = {/*conv_taps=*/4, /*key_head_dim=*/6, /*value_head_dim=*/10,
                    /*num_key_heads=*/2, /*num_value_heads=*/4};
}

ModelOptions Mamba2() {
  ModelOptions options = Llama();
  TransformerOptions& layer = options.transformer;
  SetLayers({kM, kM, kM}, &layer);
  layer.rotary = layer.gated = false;
  layer.num_query_groups = 4;
  layer.kv_channels = 16;
  layer.ffn_hidden_size = 128;
  return options;
}

// Half of a head is rotated.
ModelOptions Bamba() {
  ModelOptions options = Narrow();
  SetLayers({kM, kF, kA, kF, kM, kF}, &options.transformer);
  options.transformer.rotary_options.percent = 0.5;
  return options;
}

ModelOptions Granite() {
  ModelOptions options = Narrow();
  TransformerOptions& layer = options.transformer;
  SetLayers({kM, kF, kA, kF}, &layer);
  layer.residual_multiplier = 0.22f;
  layer.softmax_scale = 0.015625f;
  options.embedding_scale = 12;
  options.output_scale = 0.125f;
  return options;
}

// Without positions.
ModelOptions GraniteWithExperts() {
  ModelOptions options = Granite();
  TransformerOptions& layer = options.transformer;
  layer.rotary = false;
  SetExperts(24, &options);
  layer.moe.layers = {false, true, false, true};
  layer.moe.shared_ffn_hidden_size = 20;
  options.output_scale = 1 / 6.0f;
  return options;
}

// One layer has an MLP in place of experts.
ModelOptions Qwen3Next() {
  ModelOptions options = Llama();
  TransformerOptions& layer = options.transformer;
  SetLayers({kG, kF, kG, kF, kA, kF}, &layer);
  layer.kv_channels = 16;
  layer.rotary_options.percent = 0.25;
  layer.qk_norm = layer.norm.zero_centered_gamma = layer.output_gate = true;
  SetExperts(16, &options);
  layer.moe.layers = {false, true, false, false, false, true};
  layer.moe.shared_ffn_hidden_size = 20;
  layer.moe.shared_expert_gate = true;
  return options;
}

// Mixers whose heads are two groups.
ModelOptions WithTwoGroups(ModelOptions options) {
  options.transformer.mamba.num_groups = 2;
  options.transformer.mamba.norm_all_groups = true;
  return options;
}

ModelOptions Gemma() {
  ModelOptions options = Llama();
  TransformerOptions& layer = options.transformer;
  layer.norm.zero_centered_gamma = true;
  layer.gate = ops::Activation::kGeluTanh;
  options.embedding_scale = std::sqrt(32.0f);
  options.tied_embeddings = true;
  return options;
}

ModelOptions DenseGranite() {
  ModelOptions options = Narrow();
  options.transformer.residual_multiplier = 0.22f;
  options.transformer.softmax_scale = 0.015625f;
  options.embedding_scale = 12;
  options.output_scale = 0.125f;
  return options;
}

ModelOptions GraniteMoe(int64_t shared_ffn_hidden_size) {
  ModelOptions options = DenseGranite();
  SetExperts(24, &options);
  options.transformer.moe.shared_ffn_hidden_size = shared_ffn_hidden_size;
  return options;
}

// The second layer does not rotate.
ModelOptions SmolLm3() {
  ModelOptions options = Llama();
  options.transformer.rotary_layers = {true, false, true};
  return options;
}

ModelOptions SeedOss() {
  ModelOptions options = Llama();
  options.transformer.qkv_bias = true;
  return options;
}

// Half of a head rotates, in pairs of neighbours.
ModelOptions Glm() {
  ModelOptions options = Llama();
  options.transformer.qkv_bias = true;
  options.transformer.rotary_options.percent = 0.5;
  options.transformer.rotary_options.interleaved = true;
  return options;
}

ModelOptions Glm4() {
  ModelOptions options = Glm();
  options.transformer.sandwich_norm = true;
  return options;
}

// The experts of DeepSeek V3.
void SetBalancedExperts(ModelOptions* options) {
  options->transformer.moe = DeepSeekV3().transformer.moe;
}

ModelOptions Glm4Moe(bool qk_norm) {
  ModelOptions options = Llama();
  options.transformer.qkv_bias = true;
  options.transformer.qk_norm = qk_norm;
  options.transformer.rotary_options.percent = 0.5;
  SetBalancedExperts(&options);
  return options;
}

ModelOptions Dots1() {
  ModelOptions options = Qwen3();
  options.transformer.window_size = 9;
  options.transformer.window_layers = {false, true, true};
  SetBalancedExperts(&options);
  return options;
}

ModelOptions Starcoder2() {
  ModelOptions options = Narrow();
  TransformerOptions& layer = options.transformer;
  layer.norm.kind = ops::Norm::kLayerNorm;
  layer.gated = false;
  layer.linear_bias = layer.qkv_bias = true;
  layer.window_size = 9;
  options.tied_embeddings = true;
  return options;
}

// A quarter of a head rotates.
ModelOptions StableLm() {
  ModelOptions options = Narrow();
  options.transformer.norm.kind = ops::Norm::kLayerNorm;
  options.transformer.qkv_bias = true;
  options.transformer.rotary_options.percent = 0.25;
  return options;
}

// Both branches read one norm.
ModelOptions ParallelStableLm() {
  ModelOptions options = StableLm();
  options.transformer.qkv_bias = false;
  options.transformer.parallel_residual = options.transformer.parallel_shared_norm = true;
  return options;
}

// The heads of queries and of keys have gains of their own.
ModelOptions WithGainsOfHeads(ModelOptions options) {
  options.transformer.qk_norm = options.transformer.qk_norm_each_head = true;
  return options;
}

// A quarter of a head rotates, and each branch has its norm.
ModelOptions GptNeoX() {
  ModelOptions options = Narrow();
  TransformerOptions& layer = options.transformer;
  layer.norm.kind = ops::Norm::kLayerNorm;
  layer.num_query_groups = layer.num_attention_heads;
  layer.gated = false;
  layer.activation = ops::Activation::kGeluErf;
  layer.linear_bias = layer.qkv_bias = true;
  layer.rotary_options.percent = 0.25;
  layer.parallel_residual = true;
  return options;
}

// Half of a head rotates, both branches read one norm, and the head has a bias.
ModelOptions Phi() {
  ModelOptions options = Narrow();
  TransformerOptions& layer = options.transformer;
  layer.norm.kind = ops::Norm::kLayerNorm;
  layer.gated = false;
  layer.linear_bias = layer.qkv_bias = true;
  layer.rotary_options.percent = 0.5;
  layer.parallel_residual = layer.parallel_shared_norm = true;
  options.output_bias = true;
  return options;
}

// Half of a head rotates, in pairs of neighbours; MLPs and the head alone have biases.
ModelOptions GptJ() {
  ModelOptions options = Phi();
  TransformerOptions& layer = options.transformer;
  layer.num_query_groups = layer.num_attention_heads;
  layer.linear_bias = layer.qkv_bias = false;
  layer.mlp_bias = true;
  layer.rotary_options.interleaved = true;
  return options;
}

// Both branches read one norm, which has no bias, and logits are scaled.
ModelOptions Cohere() {
  ModelOptions options = Narrow();
  TransformerOptions& layer = options.transformer;
  layer.norm.kind = ops::Norm::kLayerNorm;
  layer.norm.bias = false;
  layer.parallel_residual = layer.parallel_shared_norm = true;
  layer.rotary_options.interleaved = true;
  options.output_scale = 0.25f;
  options.tied_embeddings = true;
  return options;
}

// The last layer has neither a window nor a rotation.
ModelOptions Cohere2() {
  ModelOptions options = Cohere();
  TransformerOptions& layer = options.transformer;
  layer.window_size = 9;
  layer.window_layers = layer.rotary_layers = {true, true, false};
  options.tied_embeddings = false;
  return options;
}

// GPT-2 with so many key heads.
ModelOptions GptBigCode(int64_t key_heads) {
  ModelOptions options = Narrow();
  TransformerOptions& layer = options.transformer;
  layer.norm.kind = ops::Norm::kLayerNorm;
  layer.num_query_groups = key_heads;
  layer.gated = layer.rotary = false;
  layer.linear_bias = layer.qkv_bias = true;
  options.learned_positions = options.tied_embeddings = true;
  return options;
}

// As the one of 7B, with one key head.
ModelOptions Falcon() {
  ModelOptions options = Narrow();
  TransformerOptions& layer = options.transformer;
  layer.norm.kind = ops::Norm::kLayerNorm;
  layer.num_query_groups = 1;
  layer.gated = false;
  layer.activation = ops::Activation::kGeluErf;
  layer.parallel_residual = layer.parallel_shared_norm = true;
  options.tied_embeddings = true;
  return options;
}

// As those of 40B, with a norm in front of each branch, and of 11B, with one.
ModelOptions NewFalcon(bool shared_norm) {
  ModelOptions options = Falcon();
  options.transformer.num_query_groups = 2;
  options.transformer.parallel_shared_norm = shared_norm;
  options.transformer.linear_bias = options.transformer.qkv_bias = shared_norm;
  return options;
}

ModelOptions Arcee() {
  ModelOptions options = Llama();
  options.transformer.gated = false;
  options.transformer.activation = ops::Activation::kSquaredRelu;
  return options;
}

ModelOptions Nemotron() {
  ModelOptions options = Arcee();
  options.transformer.norm.kind = ops::Norm::kLayerNorm;
  options.transformer.norm.zero_centered_gamma = true;
  options.transformer.rotary_options.percent = 0.5;
  return options;
}

// The last layer has neither a window nor a rotation.
ModelOptions Exaone4() {
  ModelOptions options = Qwen3();
  TransformerOptions& layer = options.transformer;
  layer.reordered_norm = true;
  layer.window_size = 9;
  layer.window_layers = layer.rotary_layers = {true, true, false};
  return options;
}

}  // namespace

std::vector<HfFamilyModel> HfFamilyModels() {
  ModelOptions biases = Llama(), mistral = Llama();
  biases.transformer.linear_bias = biases.transformer.qkv_bias = true;
  biases.transformer.rotary_options.scaling_factor = 8;
  mistral.transformer.window_size = 9;
  ModelOptions ernie = Llama(), sequential_neox = GptNeoX(), sequential_falcon = Falcon();
  sequential_neox.transformer.parallel_residual = false;
  sequential_neox.transformer.activation = ops::Activation::kGeluTanh;
  sequential_falcon.transformer.parallel_residual = false;
  sequential_falcon.transformer.parallel_shared_norm = false;
  ernie.transformer.rotary_options.interleaved = true;
  return {{"llama", Llama()},
          {"llama", biases},
          {"mistral", mistral},
          {"qwen2", Qwen2()},
          {"qwen3", Qwen3()},
          {"mixtral", Mixtral()},
          {"qwen2_moe", Qwen2Moe()},
          {"qwen3_moe", Qwen3Moe()},
          {"gpt_oss", GptOss()},
          {"gemma2", Gemma2()},
          {"gemma3_text", Gemma3()},
          {"olmo2", Olmo2()},
          {"olmo3", Olmo3()},
          {"olmoe", Olmoe()},
          {"deepseek_v2", DeepSeekV2()},
          {"deepseek_v2", DeepSeekV2WithGroups()},
          {"deepseek_v3", DeepSeekV3()},
          {"phi3", Phi3()},
          {"phi3", Phi3WithLongRope()},
          {"mamba2", Mamba2()},
          {"mamba2", WithTwoGroups(Mamba2())},
          {"bamba", Bamba()},
          {"bamba", WithTwoGroups(Bamba())},
          {"granitemoehybrid", Granite()},
          {"granitemoehybrid", GraniteWithExperts()},
          {"qwen3_next", Qwen3Next()},
          {"gemma", Gemma()},
          {"granite", DenseGranite()},
          {"granitemoe", GraniteMoe(0)},
          {"granitemoeshared", GraniteMoe(20)},
          {"smollm3", SmolLm3()},
          {"seed_oss", SeedOss()},
          {"glm", Glm()},
          {"glm4", Glm4()},
          {"glm4_moe", Glm4Moe(false)},
          {"glm4_moe", Glm4Moe(true)},
          {"dots1", Dots1()},
          {"ernie4_5", ernie, "llama"},
          {"starcoder2", Starcoder2()},
          {"stablelm", StableLm()},
          {"nemotron", Nemotron()},
          {"arcee", Arcee()},
          {"exaone4", Exaone4()},
          {"stablelm", ParallelStableLm()},
          {"stablelm", WithGainsOfHeads(ParallelStableLm())},
          {"gpt_neox", GptNeoX()},
          {"gpt_neox", sequential_neox},
          {"phi", Phi()},
          {"falcon", Falcon()},
          {"falcon", sequential_falcon},
          {"falcon", NewFalcon(/*shared_norm=*/false)},
          {"falcon", NewFalcon(/*shared_norm=*/true)},
          {"gptj", GptJ()},
          {"cohere", Cohere()},
          {"cohere", WithGainsOfHeads(Cohere())},
          {"cohere2", Cohere2()},
          {"gpt_bigcode", GptBigCode(1)},
          {"gpt_bigcode", GptBigCode(4), "gpt2"}};
}

}  // namespace megatron
