#include "tools/huggingface/hf_import_config.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "megatron/base/round_up.h"
#include "megatron/base/status_macros.h"
#include "megatron/models/huggingface/hf_config.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/trainer/run_options.h"
#include "tools/common/import_text.h"

namespace megatron {
namespace {

constexpr int64_t kLongestSequence = 2048;

// Returns the double with the float's shortest decimals: 1e-05, and not 9.99999974e-06.
double Shortest(float value) {
  char text[32];
  *std::to_chars(text, text + sizeof(text) - 1, value).ptr = '\0';
  return std::strtod(text, nullptr);
}

void SetYarn(const YarnOptions& yarn, config::ModelConfig* config) {
  config->set_yarn_rotary_scaling_factor(yarn.factor);
  config->set_yarn_original_max_position_embeddings(static_cast<int64_t>(yarn.original_context));
  config->set_yarn_beta_fast(yarn.beta_fast);
  config->set_yarn_beta_slow(yarn.beta_slow);
  config->set_yarn_mscale(yarn.mscale);
  config->set_yarn_mscale_all_dim(yarn.mscale_all_dim);
  config->set_yarn_correction_range_round_to_int(yarn.round_range);
}

// The factor of rotated vectors follows from the contexts.
void SetLongRope(const LongRopeOptions& longrope, config::ModelConfig* config) {
  if (longrope.long_factors.empty()) return;
  for (const double factor : longrope.long_factors) config->add_longrope_long_factors(factor);
  for (const double factor : longrope.short_factors) config->add_longrope_short_factors(factor);
  config->set_longrope_original_max_position_embeddings(
      static_cast<int64_t>(longrope.original_context));
}

// Returns the pattern that says of each layer whether it is one of `layers`: "[1]*5+[0]".
std::string Pattern(const std::vector<bool>& layers) {
  std::string pattern;
  for (size_t begin = 0; begin < layers.size();) {
    size_t end = begin;
    while (end < layers.size() && layers[end] == layers[begin]) ++end;
    absl::StrAppend(&pattern, begin == 0 ? "" : "+", layers[begin] ? "[1]" : "[0]", "*",
                    end - begin);
    begin = end;
  }
  return pattern;
}

void SetPositions(const ModelOptions& model, config::ModelConfig* config) {
  const RotaryOptions& rotary = model.transformer.rotary_options;
  config->set_max_position_embeddings(model.max_positions);
  if (!model.transformer.rotary) {
    if (model.transformer.is_hybrid())
      config->set_position_embedding_type(config::PositionEmbedding::none);
    return;
  }
  const bool yarn = rotary.yarn.factor > 0;
  config->set_position_embedding_type(yarn ? config::PositionEmbedding::yarn
                                           : config::PositionEmbedding::rope);
  config->set_rotary_base(rotary.base);
  if (!model.transformer.is_latent()) {
    config->set_rotary_percent(rotary.percent);
    config->set_rotary_interleaved(rotary.interleaved);
  }
  if (rotary.local_base > 0) config->set_rotary_base_local(rotary.local_base);
  std::vector<bool> still = model.transformer.rotary_layers;  // that do not rotate
  still.flip();
  if (!still.empty()) config->set_no_rope_freq(Pattern(still));
  if (yarn) return SetYarn(rotary.yarn, config);
  SetLongRope(rotary.longrope, config);
  config->set_rotary_seq_len_interpolation_factor(rotary.interpolation_factor);
  if (rotary.scaling_factor == 0) return;
  config->set_use_rope_scaling(true);
  config->set_rope_scaling_factor(rotary.scaling_factor);
}

void SetWindow(const TransformerOptions& layer, config::ModelConfig* config) {
  if (layer.window_size == 0) return;
  config->set_window_size(layer.window_size);
  if (!layer.window_layers.empty()) config->set_window_attn_skip_freq(Pattern(layer.window_layers));
}

void SetExperts(const MoeOptions& moe, config::ModelConfig* config) {
  if (moe.num_experts == 0) return;
  config->set_num_experts(moe.num_experts);
  if (!moe.layers.empty()) config->set_moe_layer_freq(Pattern(moe.layers));
  config->set_moe_ffn_hidden_size(moe.ffn_hidden_size);
  config->set_moe_router_topk(moe.router.topk);
  const ops::Router& router = moe.router;
  if (router.score == ops::RouterScore::kSigmoid) {
    config->set_moe_router_score_function(config::RouterScoreFunction::sigmoid);
    config->set_moe_router_enable_expert_bias(moe.expert_bias);
  } else {
    config->set_moe_router_pre_softmax(router.pre_softmax);
  }
  config->set_moe_router_topk_scaling_factor(Shortest(router.scaling_factor));
  if (router.num_groups > 1) {
    config->set_moe_router_num_groups(router.num_groups);
    config->set_moe_router_group_topk(router.group_topk);
    config->set_moe_router_group_score_topk(router.group_score_topk);
  }
  if (moe.shared_ffn_hidden_size == 0) return;
  config->set_moe_shared_expert_intermediate_size(moe.shared_ffn_hidden_size);
  config->set_moe_shared_expert_gate(moe.shared_expert_gate);
}

config::Activation::Type ToConfig(ops::Activation activation) {
  switch (activation) {
    case ops::Activation::kGeluErf:
      return config::Activation::gelu_erf;
    case ops::Activation::kRelu:
      return config::Activation::relu;
    case ops::Activation::kSilu:
      return config::Activation::silu;
    case ops::Activation::kSquaredRelu:
      return config::Activation::squared_relu;
    case ops::Activation::kQuickGelu:
      return config::Activation::quick_gelu;
    default:
      return config::Activation::gelu_tanh;
  }
}

void SetT5(const ModelOptions& model, config::ModelConfig* config) {
  const TransformerOptions& decoder = model.transformer;
  config->set_model_type(config::ModelType::t5);
  config->set_num_layers(model.num_encoder_layers);
  config->set_decoder_num_layers(decoder.num_layers);
  config->set_add_output_bias(model.output_bias);
  if (decoder.relative_positions.buckets == 0) return;
  config->set_position_embedding_type(config::PositionEmbedding::relative);
  config->set_relative_attention_num_buckets(decoder.relative_positions.buckets);
  config->set_relative_attention_max_distance(decoder.relative_positions.max_distance);
}

void SetLatents(const TransformerOptions& layer, config::ModelConfig* config) {
  config->set_multi_latent_attention(true);
  if (layer.latent.q_rank > 0) config->set_q_lora_rank(layer.latent.q_rank);
  config->set_kv_lora_rank(layer.latent.kv_rank);
  config->set_qk_head_dim(layer.kv_channels - layer.latent.rotated_size);
  config->set_qk_pos_emb_head_dim(layer.latent.rotated_size);
  config->set_v_head_dim(layer.value_size());
}

// Sets the layers of a hybrid model, and the sizes of the mixers that it has.
void SetHybridLayers(const TransformerOptions& layer, config::ModelConfig* config) {
  if (!layer.is_hybrid()) return;
  std::string pattern;
  for (int64_t i = 0; i < layer.num_layers; ++i) {
    switch (layer.hybrid_layers[i]) {
      case HybridLayer::kMamba:
        pattern += 'M';
        break;
      case HybridLayer::kDelta:
        pattern += 'G';
        break;
      case HybridLayer::kAttention:
        pattern += '*';
        break;
      case HybridLayer::kMlp:
        pattern += layer.moe.IsMoeLayer(i) ? 'E' : '-';
    }
  }
  config->set_hybrid_layer_pattern(pattern);
  if (absl::StrContains(pattern, 'M')) {
    config->set_mamba_state_dim(layer.mamba.state_dim);
    config->set_mamba_head_dim(layer.mamba.head_dim);
    config->set_mamba_num_groups(layer.mamba.num_groups);
    config->set_mamba_num_heads(layer.mamba.num_heads);
    config->set_mamba_norm_all_groups(layer.mamba.norm_all_groups);
  }
  if (absl::StrContains(pattern, 'G')) {
    config->set_linear_conv_kernel_dim(layer.delta.conv_taps);
    config->set_linear_key_head_dim(layer.delta.key_head_dim);
    config->set_linear_value_head_dim(layer.delta.value_head_dim);
    config->set_linear_num_key_heads(layer.delta.num_key_heads);
    config->set_linear_num_value_heads(layer.delta.num_value_heads);
  }
}

void SetModel(const ModelOptions& model, config::ModelConfig* config) {
  const TransformerOptions& layer = model.transformer;
  config->set_num_layers(layer.num_layers);
  config->set_hidden_size(layer.hidden_size);
  config->set_ffn_hidden_size(layer.ffn_hidden_size);
  config->set_num_attention_heads(layer.num_attention_heads);
  if (layer.is_latent()) {
    SetLatents(layer, config);
  } else {
    config->set_kv_channels(layer.kv_channels);
  }
  config->set_group_query_attention(layer.num_query_groups != layer.num_attention_heads);
  config->set_num_query_groups(layer.num_query_groups);
  config->set_normalization(layer.norm.kind == ops::Norm::kRmsNorm
                                ? config::Normalization::RMSNorm
                                : config::Normalization::LayerNorm);
  config->set_norm_epsilon(Shortest(layer.norm.epsilon));
  config->set_swiglu(layer.gated && layer.gate == ops::Activation::kSilu);
  config->set_gated_linear_unit(layer.gated && !config->swiglu());
  if (!config->swiglu())
    config->set_activation_func(ToConfig(layer.gated ? layer.gate : layer.activation));
  config->set_disable_bias_linear(!layer.linear_bias);
  config->set_add_qkv_bias(layer.qkv_bias && !layer.linear_bias);
  if (layer.mlp_bias && !layer.linear_bias) config->set_add_mlp_bias(true);
  config->set_untie_embeddings_and_output_weights(!model.tied_embeddings);
  config->set_hidden_dropout(Shortest(layer.hidden_dropout));
  config->set_attention_dropout(Shortest(layer.attention_dropout));
  config->set_init_method_std(Shortest(layer.init_std));
  if (model.kind == ModelKind::kBert) {
    config->set_model_type(config::ModelType::bert);
    config->set_post_norm(layer.post_norm);
    config->set_bert_binary_head(model.sentence_order_head);
    config->set_num_tokentypes(model.num_token_types);
    config->set_openai_gelu(model.masked_lm_activation == ops::Activation::kGeluTanh);
  }
  if (!layer.has_plain_gate()) {
    config->set_activation_func_clamp_value(Shortest(layer.gate_limit));
    config->set_glu_linear_offset(Shortest(layer.gate_offset));
  }
  config->set_apply_layernorm_1p(layer.norm.zero_centered_gamma);
  if (!layer.norm.bias) config->set_disable_bias_norm(true);
  config->set_sandwich_norm(layer.sandwich_norm);
  config->set_qk_layernorm(layer.qk_norm);
  config->set_qk_layernorm_all_heads(layer.qk_norm_all_heads);
  if (layer.qk_norm_each_head) config->set_qk_layernorm_each_head(true);
  config->set_reordered_norm(layer.reordered_norm);
  config->set_parallel_residual(layer.parallel_residual);
  config->set_parallel_residual_shared_norm(layer.parallel_shared_norm);
  if (layer.score_softcap > 0) config->set_attn_logit_softcapping(Shortest(layer.score_softcap));
  if (model.logit_softcap > 0) config->set_final_logit_softcapping(Shortest(model.logit_softcap));
  if (layer.sink == AttentionSink::kLearned)
    config->set_softmax_type(config::SoftmaxType::learnable);
  if (layer.softmax_scale != 0 && !layer.is_latent())
    config->set_softmax_scale(Shortest(layer.softmax_scale));
  config->set_embedding_scale(Shortest(model.embedding_scale));
  config->set_attention_output_gate(layer.output_gate);
  if (layer.residual_multiplier != 1)
    config->set_residual_multiplier(Shortest(layer.residual_multiplier));
  if (model.kind == ModelKind::kGpt && model.output_bias) config->set_add_output_bias(true);
  if (model.output_scale != 1) config->set_output_scale(Shortest(model.output_scale));
  SetHybridLayers(layer, config);
  SetWindow(layer, config);
  SetExperts(layer.moe, config);
  SetPositions(model, config);
  if (model.kind == ModelKind::kT5) SetT5(model, config);
  if (layer.lora.dim == 0) return;
  config->mutable_lora()->set_dim(layer.lora.dim);
  config->mutable_lora()->set_alpha(layer.lora.alpha);
  for (const std::string& module : layer.lora.target_modules)
    config->mutable_lora()->add_target_modules(module);
}

int64_t TokenizerVocabulary(const ModelOptions& model, const ImportOptions& options) {
  return options.tokenizer.type.empty() ? model.vocab_size : options.tokenizer_vocab_size;
}

// Returns the multiple to which the vocabulary must be padded to get `padded` rows: the usual 128
// if that gives them.
int64_t VocabularyMultiple(int64_t vocab_size, int64_t padded) {
  constexpr int64_t kUsual = 128;
  return RoundUp(vocab_size, kUsual) == padded ? kUsual : padded;
}

void SetTokenizer(const ModelOptions& model, const ImportOptions& options,
                  config::DataConfig* config) {
  const TokenizerOptions& tokenizer = options.tokenizer;
  if (tokenizer.type.empty()) {
    config->set_tokenizer_type(config::Tokenizer::NullTokenizer);
    config->set_vocab_size(model.vocab_size);
    // The last id it is unless something else is said.
    if (options.tokens.eos >= 0 && options.tokens.eos != model.vocab_size - 1)
      config->set_null_tokenizer_eod_id(options.tokens.eos);
    if (options.tokens.pad >= 0) config->set_null_tokenizer_pad_id(options.tokens.pad);
    return;
  }
  config::Tokenizer::Type type;
  CHECK(config::Tokenizer::Type_Parse(tokenizer.type, &type)) << tokenizer.type;
  config->set_tokenizer_type(type);
  if (!tokenizer.vocab_file.empty()) config->set_vocab_file(tokenizer.vocab_file);
  if (!tokenizer.merge_file.empty()) config->set_merge_file(tokenizer.merge_file);
  if (!tokenizer.tokenizer_model.empty()) config->set_tokenizer_model(tokenizer.tokenizer_model);
}

config::PretrainConfig MakeConfig(const ModelOptions& model, const ImportOptions& options) {
  config::PretrainConfig config;
  SetModel(model, config.mutable_model());
  config.mutable_model()->set_seq_length(options.seq_length > 0
                                             ? options.seq_length
                                             : std::min(model.max_positions, kLongestSequence));
  if (model.kind == ModelKind::kT5)
    config.mutable_model()->set_decoder_seq_length(config.model().seq_length());
  config.mutable_model()->set_make_vocab_size_divisible_by(
      VocabularyMultiple(TokenizerVocabulary(model, options), model.padded_vocab_size));
  config.mutable_precision()->set_bf16(model.transformer.dtype == DType::kBFloat16);
  config.mutable_precision()->set_fp16(model.transformer.dtype == DType::kFloat16);
  SetTokenizer(model, options, config.mutable_data());
  config.mutable_data()->set_mock_data(true);
  config.mutable_optimizer()->set_lr(1e-5);
  config.mutable_train()->set_micro_batch_size(1);
  config.mutable_train()->set_train_iters(1000);
  return config;
}

// Reads the text as every program will, and checks that it says what the model is.
absl::StatusOr<std::string> Checked(const ModelOptions& model, int64_t tokenizer_vocabulary,
                                    const std::string& text) {
  MEGATRON_ASSIGN_OR_RETURN(const LoadedConfig loaded,
                            LoadConfigFromString(text, "configuration of the imported model", {},
                                                 ConfigPurpose::kDryRun));
  ModelOptions said = ToRunOptions(loaded.config, tokenizer_vocabulary).trainer.model;
  said.vocab_size = model.vocab_size;
  MEGATRON_ASSIGN_OR_RETURN(const std::string expected, HfConfigJson(model, {}));
  const absl::StatusOr<std::string> actual = HfConfigJson(said, {});
  if (actual.ok() && *actual == expected && said.padded_vocab_size == model.padded_vocab_size) {
    return text;
  }
  return absl::InternalError("the configuration would be another model's");
}

}  // namespace

absl::StatusOr<ImportedConfig> MakeImportedConfig(const ModelOptions& model,
                                                  const ImportOptions& options) {
  ImportedConfig imported;
  config::PretrainConfig config = MakeConfig(model, options);
  const int64_t vocabulary = TokenizerVocabulary(model, options);
  MEGATRON_ASSIGN_OR_RETURN(imported.checkpoint_text,
                            Checked(model, vocabulary, CompleteText(config)));
  config.mutable_checkpoint()->set_load(options.save);
  config.mutable_checkpoint()->set_finetune(true);
  MEGATRON_ASSIGN_OR_RETURN(imported.training_text,
                            Checked(model, vocabulary, TextToTrainFrom(config)));
  return imported;
}

}  // namespace megatron
