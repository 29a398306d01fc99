#include "megatron/models/huggingface/hf_decoder.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/models/huggingface/hf_config.h"
#include "megatron/models/huggingface/hf_family_models.h"
#include "megatron/models/huggingface/hf_mixers.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

Json ConfigOf(const ModelOptions& options, const std::string& model_type = "") {
  const auto text = HfConfigJson(options, {1, 2}, model_type);
  EXPECT_THAT(text, IsOk());
  return Json::parse(text.value_or("{}"));
}

ModelOptions ModelOf(const std::string& model_type) {
  for (const HfFamilyModel& model : HfFamilyModels()) {
    if (model.model_type == model_type) return model.options;
  }
  ADD_FAILURE() << model_type;
  return ModelOptions();
}

TEST(HfDecoderTest, EachFamilyIsWrittenAndReadAsItself) {
  std::set<std::string> seen;
  for (const HfFamilyModel& model : HfFamilyModels()) {
    EXPECT_EQ(ConfigOf(model.options)["model_type"], model.written_as());
    const Json config = ConfigOf(model.options, model.model_type);
    EXPECT_EQ(config["model_type"], model.model_type);
    const auto back = ParseHfConfig(config.dump());
    ASSERT_THAT(back, IsOk()) << config;
    EXPECT_EQ(ConfigOf(*back, model.model_type), config);
    EXPECT_EQ(*ParseHfModelType(config.dump()), model.model_type);
    seen.insert(model.model_type);
    const TransformerOptions &x = model.options.transformer, &y = back->transformer;
    EXPECT_EQ(x.ffn_hidden_size, y.ffn_hidden_size) << config;
    EXPECT_EQ(x.kv_channels, y.kv_channels) << config;
    EXPECT_EQ(x.linear_bias, y.linear_bias) << config;
    EXPECT_EQ(x.qkv_bias, y.qkv_bias) << config;
    EXPECT_EQ(x.mlp_bias, y.mlp_bias) << config;
    EXPECT_EQ(x.norm.bias, y.norm.bias) << config;
    EXPECT_EQ(x.qk_norm, y.qk_norm) << config;
    EXPECT_EQ(x.gate, y.gate) << config;
    EXPECT_EQ(x.gate_limit, y.gate_limit) << config;
    EXPECT_EQ(x.gate_offset, y.gate_offset) << config;
    EXPECT_EQ(x.norm.zero_centered_gamma, y.norm.zero_centered_gamma) << config;
    EXPECT_EQ(x.norm.kind, y.norm.kind) << config;
    EXPECT_EQ(x.gated, y.gated) << config;
    EXPECT_TRUE(x.gated || !x.HasMlp(0) || x.activation == y.activation) << config;
    EXPECT_EQ(x.rotary_layers, y.rotary_layers) << config;
    EXPECT_EQ(x.rotary_options.interleaved, y.rotary_options.interleaved) << config;
    EXPECT_EQ(x.sandwich_norm, y.sandwich_norm) << config;
    EXPECT_EQ(x.parallel_residual, y.parallel_residual) << config;
    EXPECT_EQ(x.parallel_shared_norm, y.parallel_shared_norm) << config;
    EXPECT_EQ(x.num_query_groups, y.num_query_groups) << config;
    EXPECT_EQ(x.softmax_scale, y.softmax_scale) << config;
    EXPECT_EQ(x.sink, y.sink) << config;
    EXPECT_EQ(x.window_size, y.window_size) << config;
    EXPECT_EQ(x.window_layers, y.window_layers) << config;
    EXPECT_EQ(x.moe.num_experts, y.moe.num_experts) << config;
    for (int64_t i = 0; i < x.num_layers; ++i)
      EXPECT_EQ(x.moe.IsMoeLayer(i), y.moe.IsMoeLayer(i)) << config;
    EXPECT_EQ(x.moe.router.topk, y.moe.router.topk) << config;
    EXPECT_EQ(x.moe.router.score, y.moe.router.score) << config;
    EXPECT_EQ(x.moe.router.num_groups, y.moe.router.num_groups) << config;
    EXPECT_EQ(x.moe.router.group_topk, y.moe.router.group_topk) << config;
    EXPECT_EQ(x.moe.router.group_score_topk, y.moe.router.group_score_topk) << config;
    EXPECT_EQ(x.qk_norm_all_heads, y.qk_norm_all_heads) << config;
    EXPECT_EQ(x.qk_norm_each_head, y.qk_norm_each_head) << config;
    EXPECT_EQ(x.reordered_norm, y.reordered_norm) << config;
    EXPECT_EQ(x.output_gate, y.output_gate) << config;
    EXPECT_EQ(x.residual_multiplier, y.residual_multiplier) << config;
    EXPECT_EQ(x.rotary, y.rotary) << config;
    EXPECT_EQ(x.hybrid_layers, y.hybrid_layers) << config;
    if (HasHybridLayer(x, HybridLayer::kMamba)) {
      EXPECT_EQ(x.mamba.state_dim, y.mamba.state_dim) << config;
      EXPECT_EQ(x.mamba.head_dim, y.mamba.head_dim) << config;
      EXPECT_EQ(x.mamba.num_groups, y.mamba.num_groups) << config;
      EXPECT_EQ(x.mamba.num_heads, y.mamba.num_heads) << config;
      EXPECT_EQ(x.mamba.norm_all_groups, y.mamba.norm_all_groups) << config;
    }
    if (HasHybridLayer(x, HybridLayer::kDelta)) {
      EXPECT_EQ(x.delta.conv_taps, y.delta.conv_taps) << config;
      EXPECT_EQ(x.delta.key_head_dim, y.delta.key_head_dim) << config;
      EXPECT_EQ(x.delta.value_head_dim, y.delta.value_head_dim) << config;
      EXPECT_EQ(x.delta.num_key_heads, y.delta.num_key_heads) << config;
      EXPECT_EQ(x.delta.num_value_heads, y.delta.num_value_heads) << config;
    }
    EXPECT_EQ(model.options.output_scale, back->output_scale) << config;
    EXPECT_EQ(x.score_softcap, y.score_softcap) << config;
    EXPECT_EQ(model.options.logit_softcap, back->logit_softcap) << config;
    const LongRopeOptions &a = x.rotary_options.longrope, &b = y.rotary_options.longrope;
    EXPECT_EQ(a.long_factors, b.long_factors) << config;
    EXPECT_EQ(a.short_factors, b.short_factors) << config;
    EXPECT_EQ(a.original_context, b.original_context) << config;
    EXPECT_EQ(a.magnitude, b.magnitude) << config;
    EXPECT_EQ(x.moe.router.scaling_factor, y.moe.router.scaling_factor) << config;
    EXPECT_EQ(x.moe.expert_bias, y.moe.expert_bias) << config;
    EXPECT_EQ(x.moe.shared_ffn_hidden_size, y.moe.shared_ffn_hidden_size) << config;
    EXPECT_EQ(x.latent.kv_rank, y.latent.kv_rank) << config;
    EXPECT_EQ(x.latent.q_rank, y.latent.q_rank) << config;
    EXPECT_EQ(x.latent.rotated_size, y.latent.rotated_size) << config;
    EXPECT_EQ(x.value_size(), y.value_size()) << config;
    EXPECT_EQ(x.moe.router.pre_softmax, y.moe.router.pre_softmax) << config;
    EXPECT_EQ(x.rotary_options.local_base, y.rotary_options.local_base) << config;
    EXPECT_EQ(x.rotary_options.percent, y.rotary_options.percent) << config;
    EXPECT_EQ(x.rotary_options.yarn.factor, y.rotary_options.yarn.factor) << config;
    EXPECT_EQ(x.rotary_options.yarn.original_context, y.rotary_options.yarn.original_context);
    EXPECT_EQ(x.rotary_options.yarn.round_range, y.rotary_options.yarn.round_range) << config;
    EXPECT_EQ(model.options.embedding_scale, back->embedding_scale) << config;
    EXPECT_EQ(model.options.tied_embeddings, back->tied_embeddings) << config;
    EXPECT_EQ(model.options.output_bias, back->output_bias) << config;
    EXPECT_EQ(model.options.learned_positions, back->learned_positions) << config;
  }
  EXPECT_EQ(seen.size(), HfDecoders().size());
}

TEST(HfDecoderTest, AFileIsNotToldOfFieldsThatItDoesNotHave) {
  for (const char* type : {"llama", "phi", "falcon"}) {
    Json config = ConfigOf(ModelOf(type), type);
    config.erase("head_dim");
    config.update({{"hidden_size", 30}, {"num_attention_heads", 4}, {"num_key_value_heads", 4}});
    EXPECT_THAT(ParseHfConfig(config.dump()),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("num_attention_heads: does not divide hidden_size"),
                               Not(HasSubstr("head_dim")), Not(HasSubstr("rotary")))))
        << type;
    config["hidden_size"] = 20;
    EXPECT_THAT(ParseHfConfig(config.dump()),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("num_attention_heads: makes heads of an odd width"),
                               Not(HasSubstr("head_dim")), Not(HasSubstr("rotary")))))
        << type;
  }
}

// Expects that the family's configuration, with `changes` made to it, is refused with `message`.
void ExpectRefused(const std::string& model_type, const Json& changes, const std::string& message) {
  Json config = ConfigOf(ModelOf(model_type));
  ASSERT_THAT(ParseHfConfig(config.dump()), IsOk());
  config.update(changes);
  EXPECT_THAT(ParseHfConfig(config.dump()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)))
      << model_type << changes;
}

TEST(HfDecoderTest, RefusesToImportWhatChangesTheModel) {
  ExpectRefused("qwen3", {{"attention_bias", true}}, "attention_bias");
  ExpectRefused("qwen3", {{"head_dim", nullptr}}, "head_dim: is missing");
  ExpectRefused("mixtral", {{"num_local_experts", 1}}, "num_experts_per_tok");
  ExpectRefused("mixtral", {{"num_experts_per_tok", 6}}, "num_experts_per_tok");
  ExpectRefused("mixtral", {{"head_dim", 6}}, "head_dim");
  ExpectRefused("qwen2_moe", {{"mlp_only_layers", {3}}}, "mlp_only_layers");
  ExpectRefused("qwen2_moe", {{"mlp_only_layers", {0, 1, 2}}}, "no layer has experts");
  ExpectRefused("qwen2_moe", {{"qkv_bias", false}}, "qkv_bias");
  ExpectRefused("gpt_oss", {{"attention_bias", false}}, "attention_bias");
  ExpectRefused("gpt_oss", {{"swiglu_limit", 5}}, "swiglu_limit");
  ExpectRefused("gpt_oss", {{"layer_types", {"sliding_attention"}}}, "layer_types");
  ExpectRefused("gpt_oss", {{"quantization_config", {{"quant_method", "fp8"}}}},
                "quantization_config");
  ExpectRefused("qwen3", {{"quantization_config", {{"quant_method", "mxfp4"}}}},
                "quantization_config");
  ExpectRefused("gemma3_text", {{"attn_logit_softcapping", 50.0}}, "attn_logit_softcapping");
  ExpectRefused("gemma3_text", {{"final_logit_softcapping", 30.0}}, "final_logit_softcapping");
  ExpectRefused("gemma3_text", {{"hidden_activation", "gelu"}}, "hidden_activation");
  ExpectRefused("phi3", {{"rope_scaling", {{"type", "longrope"}, {"factor", 2}}}},
                "rope_scaling.long_factor");
  ExpectRefused("phi3",
                {{"rope_scaling",
                  {{"type", "longrope"}, {"long_factor", {1, 2, 0}}, {"short_factor", {1, 1, 1}}}}},
                "rope_scaling.long_factor");
  ExpectRefused("phi3", {{"rope_scaling", {{"type", "linear"}, {"factor", 2}}}},
                "must be default or longrope");
  for (const char* type : {"phi", "phi3"}) {
    ExpectRefused(type, {{"resid_pdrop", 0.1}}, "embd_pdrop: must be as resid_pdrop");
    ExpectRefused(type, {{"embd_pdrop", nullptr}, {"resid_pdrop", 0.1}}, "embd_pdrop");
    ExpectRefused(type, {{"embd_pdrop", 0.1}}, "embd_pdrop");
    ExpectRefused(type, {{"embd_pdrop", 2}}, "embd_pdrop: must be a number from 0 to 1");
  }
  ExpectRefused("olmoe", {{"clip_qkv", 8.0}}, "clip_qkv");
  ExpectRefused("olmoe", {{"num_experts_per_tok", 6}}, "num_experts_per_tok");
  ExpectRefused("olmo2", {{"attention_bias", true}}, "attention_bias");
  ExpectRefused("gemma2", {{"attn_logit_softcapping", -1}}, "attn_logit_softcapping");
  ExpectRefused("phi3", {{"partial_rotary_factor", 0.05}}, "partial_rotary_factor");
  ExpectRefused("qwen3_moe", {{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4}}}},
                "original_max_position_embeddings: is missing");
  ExpectRefused("qwen3_moe",
                {{"rope_scaling",
                  {{"rope_type", "yarn"},
                   {"factor", 4},
                   {"original_max_position_embeddings", 16},
                   {"attention_factor", 1.0}}}},
                "attention_factor");
  ExpectRefused("deepseek_v2", {{"topk_method", "best"}}, "topk_method");
  ExpectRefused("deepseek_v2",
                {{"topk_method", "group_limited_greedy"}, {"n_group", 3}, {"topk_group", 2}},
                "topk_group");
  ExpectRefused("deepseek_v2", {{"rms_norm_eps", 1e-5}}, "rms_norm_eps");
  ExpectRefused("deepseek_v3", {{"topk_group", 5}}, "topk_group");
  ExpectRefused("deepseek_v3", {{"num_experts_per_tok", 5}}, "topk_group");
  ExpectRefused("deepseek_v3", {{"rope_interleave", false}}, "rope_interleave");
  ExpectRefused("deepseek_v3", {{"first_k_dense_replace", 3}}, "no layer has experts");
  ExpectRefused("deepseek_v3", {{"norm_topk_prob", false}}, "norm_topk_prob");
  ExpectRefused("deepseek_v3", {{"q_lora_rank", "x"}}, "q_lora_rank");
  ExpectRefused("deepseek_v3", {{"qk_nope_head_dim", 7}}, "qk_nope_head_dim: must be even");
  ExpectRefused("olmo3", {{"layer_types", {"full_attention"}}}, "layer_types");
  ExpectRefused("mamba2", {{"n_groups", 3}}, "n_groups: must divide num_heads");
  ExpectRefused("mamba2", {{"num_heads", 5}}, "num_heads: times head_dim");
  ExpectRefused("mamba2", {{"expand", 3}}, "as expand says");
  ExpectRefused("mamba2", {{"conv_kernel", 3}}, "conv_kernel: must be 4");
  ExpectRefused("mamba2", {{"use_conv_bias", false}}, "use_conv_bias");
  ExpectRefused("mamba2", {{"use_bias", true}}, "use_bias");
  ExpectRefused("mamba2", {{"rms_norm", false}}, "rms_norm");
  ExpectRefused("mamba2", {{"time_step_limit", {0.0, 0.5}}}, "time_step_limit");
  ExpectRefused("mamba2", {{"state_size", nullptr}}, "state_size: is missing");
  ExpectRefused("bamba", {{"attn_layer_indices", {3}}}, "attn_layer_indices");
  ExpectRefused("bamba", {{"mamba_proj_bias", true}}, "mamba_proj_bias");
  ExpectRefused("granitemoehybrid", {{"layer_types", {"mamba", "linear_attention"}}},
                "layer_types: must be attention and mamba");
  ExpectRefused("granitemoehybrid", {{"position_embedding_type", "alibi"}},
                "position_embedding_type: must be rope or nope");
  ExpectRefused("granitemoehybrid", {{"residual_multiplier", 0}}, "residual_multiplier");
  ExpectRefused("granitemoehybrid", {{"num_local_experts", 4}, {"num_experts_per_tok", 5}},
                "num_experts_per_tok");
  ExpectRefused("qwen3_next", {{"linear_num_key_heads", 3}}, "linear_num_key_heads");
  ExpectRefused("qwen3_next", {{"full_attention_interval", 8}, {"layer_types", nullptr}},
                "attention in some layer");
  ExpectRefused("qwen3_next", {{"attention_bias", true}}, "attention_bias");
  ExpectRefused("gemma", {{"hidden_act", "gelu"}}, "hidden_act: must be gelu_pytorch_tanh");
  ExpectRefused("gemma", {{"final_logit_softcapping", 30.0}}, "final_logit_softcapping");
  ExpectRefused("granite", {{"attention_bias", true}}, "attention_bias: granite has no biases");
  ExpectRefused("granite", {{"logits_scaling", 0}}, "logits_scaling");
  ExpectRefused("granitemoe", {{"num_local_experts", 0}}, "num_experts_per_tok");
  ExpectRefused("granitemoeshared", {{"shared_intermediate_size", -1}}, "shared_intermediate_size");
  ExpectRefused("smollm3", {{"no_rope_layers", {1, 0}}}, "no_rope_layers: must be a list");
  ExpectRefused("smollm3", {{"no_rope_layers", {0, 0, 0}}}, "no layer rotates");
  ExpectRefused("smollm3", {{"no_rope_layers", {1, 2, 0}}}, "no_rope_layers: must be a list");
  ExpectRefused("smollm3", {{"use_sliding_window", true}, {"sliding_window", 8}},
                "sliding_window: smollm3's attention sees all");
  ExpectRefused("seed_oss", {{"attention_out_bias", true}}, "attention_out_bias");
  ExpectRefused("glm", {{"mlp_bias", true}}, "mlp_bias");
  ExpectRefused("glm4", {{"partial_rotary_factor", 0.05}}, "partial_rotary_factor");
  ExpectRefused("glm4", {{"hidden_act", "gelu"}}, "hidden_act");
  ExpectRefused("glm4_moe", {{"norm_topk_prob", false}}, "norm_topk_prob");
  ExpectRefused("dots1", {{"layer_types", {"full_attention"}}}, "layer_types");
  ExpectRefused("dots1", {{"sliding_window", nullptr}}, "sliding_window: must be a number");
  ExpectRefused("starcoder2", {{"hidden_act", "gelu"}}, "hidden_act: must be gelu_pytorch_tanh");
  ExpectRefused("starcoder2", {{"use_bias", 1}}, "use_bias");
  ExpectRefused("starcoder2", {{"norm_epsilon", -1}}, "norm_epsilon");
  ExpectRefused("starcoder2", {{"residual_dropout", 0.1}},
                "embedding_dropout: must be as residual_dropout");
  ExpectRefused("llama", {{"use_parallel_residual", true}}, "use_parallel_residual");
  ExpectRefused("gpt_neox", {{"attention_bias", false}}, "attention_bias: attention has biases");
  ExpectRefused("gpt_neox", {{"hidden_act", "relu"}}, "hidden_act: must be gelu, gelu_new");
  ExpectRefused("gpt_neox", {{"rotary_pct", 0.1}}, "rotary_pct: an odd number");
  ExpectRefused("gpt_neox", {{"partial_rotary_factor", 0.5}}, "must be as rotary_pct");
  ExpectRefused("gpt_neox", {{"rope_theta", 500}}, "rope_theta: must be as rotary_emb_base");
  ExpectRefused("gpt_neox", {{"rope_scaling", {{"type", "linear"}, {"factor", 2}}}},
                "scaled rotary positions");
  ExpectRefused("phi", {{"qk_layernorm", true}}, "qk_layernorm");
  ExpectRefused("phi", {{"hidden_act", "relu"}}, "hidden_act: must be gelu, gelu_new");
  ExpectRefused("falcon", {{"alibi", true}}, "alibi: positions are rotary");
  ExpectRefused("falcon", {{"activation", "gelu_new"}}, "activation: must be gelu");
  ExpectRefused("falcon", {{"num_ln_in_parallel_attn", 2}}, "without new_decoder_architecture");
  ExpectRefused("falcon", {{"new_decoder_architecture", true}, {"parallel_attn", false}},
                "parallel_attn: must be true");
  ExpectRefused("falcon", {{"new_decoder_architecture", true}, {"num_kv_heads", 3}},
                "num_kv_heads: does not divide");
  ExpectRefused("stablelm",
                {{"qk_layernorm", true},
                 {"num_hidden_layers", 4096},
                 {"num_attention_heads", 32},
                 {"hidden_size", 256},
                 {"head_dim", 8},
                 {"num_key_value_heads", 32}},
                "num_attention_heads: all layers have too many together");
  ExpectRefused("nemotron", {{"mlp_bias", true}}, "attention_bias: must be as mlp_bias");
  ExpectRefused("arcee", {{"hidden_act", "silu"}}, "hidden_act: must be relu2");
  ExpectRefused("exaone4",
                {{"layer_types", {"full_attention", "full_attention", "full_attention"}}},
                "no layer rotates");
  ExpectRefused("gptj", {{"rotary_dim", 3}}, "rotary_dim: must be even");
  ExpectRefused("gptj", {{"rotary_dim", 10}}, "rotary_dim: must be even, and at most the width");
  ExpectRefused("gptj", {{"rotary_dim", nullptr}}, "rotary_dim: must be even");
  ExpectRefused("gptj", {{"n_head", 3}}, "n_head: does not divide n_embd");
  ExpectRefused("gptj", {{"n_positions", nullptr}}, "n_positions: is missing");
  ExpectRefused("gptj", {{"activation_function", "relu"}}, "activation_function: must be gelu");
  ExpectRefused("gptj", {{"rope_parameters", {{"rope_theta", 500.0}}}}, "rotary_base: gptj has");
  ExpectRefused("cohere2", {{"use_qk_norm", true}}, "use_qk_norm: queries and keys are not");
  ExpectRefused("cohere", {{"attention_bias", true}}, "attention_bias: cohere has no biases");
  ExpectRefused("cohere", {{"logit_scale", 0}}, "logit_scale");
  ExpectRefused("cohere", {{"rope_scaling", {{"type", "linear"}, {"factor", 2}}}},
                "scaled rotary positions");
  ExpectRefused("cohere2", {{"sliding_window", nullptr}}, "sliding_window: must be a number");
  ExpectRefused("cohere2",
                {{"sliding_window", nullptr},
                 {"layer_types", {"full_attention", "full_attention", "full_attention"}}},
                "no layer rotates");
  ExpectRefused("gpt_bigcode", {{"scale_attn_weights", false}}, "scale_attn_weights");
  ExpectRefused("gpt_bigcode", {{"add_cross_attention", true}}, "add_cross_attention");
  ExpectRefused("gpt_bigcode", {{"activation_function", "relu"}}, "activation_function: must be");
  ExpectRefused("gpt_bigcode", {{"attn_pdrop", 0.1}, {"resid_pdrop", 0.2}},
                "embd_pdrop: must be as resid_pdrop");
  // Mistral's window and scaled positions are each known, and together no model that is written.
  ExpectRefused("mistral", {{"rope_scaling", {{"rope_type", "linear"}, {"factor", 2}}}},
                "scaled rotary positions");
  Json huge = ConfigOf(ModelOf("mixtral"));
  huge["num_hidden_layers"] = 4096;
  huge["num_local_experts"] = 1024;
  EXPECT_THAT(ParseHfConfig(huge.dump()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("too many together")));
}

TEST(HfDecoderTest, ANullOfABooleanIsFalse) {
  const auto read = [](const std::string& model_type, const Json& changes) {
    Json config = ConfigOf(ModelOf(model_type));
    config.update(changes);
    const auto options = ParseHfConfig(config.dump());
    EXPECT_THAT(options, IsOk()) << changes;
    return options.value_or(ModelOptions());
  };
  EXPECT_TRUE(read("gpt_neox", Json::object()).transformer.parallel_residual);
  EXPECT_FALSE(
      read("gpt_neox", {{"use_parallel_residual", nullptr}}).transformer.parallel_residual);
  EXPECT_FALSE(read("falcon", {{"parallel_attn", nullptr}}).transformer.parallel_residual);
  EXPECT_EQ(read("falcon", {{"multi_query", nullptr}}).transformer.num_query_groups, 4);
  EXPECT_FALSE(read("falcon", {{"tie_word_embeddings", nullptr}}).tied_embeddings);
  EXPECT_TRUE(read("qwen3_moe", {{"norm_topk_prob", nullptr}}).transformer.moe.router.pre_softmax);
  ExpectRefused("gpt_neox", {{"attention_bias", nullptr}}, "attention_bias: attention has biases");
  ExpectRefused("mamba2", {{"use_conv_bias", nullptr}}, "use_conv_bias: the convolution has");
  ExpectRefused("deepseek_v3", {{"rope_interleave", nullptr}}, "rope_interleave: neighbouring");
}

TEST(HfDecoderTest, LayersThatRotateAreThoseThatTheFileNames) {
  Json smol = ConfigOf(ModelOf("smollm3"));
  EXPECT_EQ(smol["no_rope_layers"], Json::array({1, 0, 1}));
  smol.erase("no_rope_layers");  // every fourth does not rotate
  EXPECT_EQ(ParseHfConfig(smol.dump())->transformer.rotary_layers, std::vector<bool>());
  smol["no_rope_layer_interval"] = 3;
  EXPECT_EQ(ParseHfConfig(smol.dump())->transformer.rotary_layers,
            (std::vector<bool>{true, true, false}));
  // Without windows all layers of an exaone4 rotate.
  Json exaone = ConfigOf(ModelOf("exaone4"));
  exaone["sliding_window"] = nullptr;
  exaone["layer_types"] = {"full_attention", "full_attention", "full_attention"};
  const auto read = ParseHfConfig(exaone.dump());
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(read->transformer.rotary_layers, std::vector<bool>());
  EXPECT_EQ(ConfigOf(*read, "exaone4")["sliding_window"], nullptr);
  // Where all layers have windows, all rotate.
  exaone["sliding_window"] = 10;
  exaone["layer_types"] = {"sliding_attention", "sliding_attention", "sliding_attention"};
  EXPECT_EQ(ParseHfConfig(exaone.dump())->transformer.rotary_layers, std::vector<bool>());
  ModelOptions options = ModelOf("exaone4");
  options.transformer.rotary_layers.clear();
  EXPECT_THAT(HfConfigJson(options, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no_rope_freq")));
}

TEST(HfDecoderTest, BranchesAndTheirNormsAreThoseThatTheFileNames) {
  const auto read = [](const Json& config) {
    const auto options = ParseHfConfig(config.dump());
    EXPECT_THAT(options, IsOk()) << config;
    return options.ok() ? options->transformer : TransformerOptions();
  };
  Json neox = ConfigOf(ModelOf("gpt_neox"));
  EXPECT_EQ(neox["rotary_pct"], 0.25);
  EXPECT_EQ(neox.count("head_dim"), 0u);
  neox.erase("use_parallel_residual");
  EXPECT_TRUE(read(neox).parallel_residual);
  neox["use_parallel_residual"] = false;
  EXPECT_FALSE(read(neox).parallel_residual);
  neox["hidden_act"] = "gelu_fast";
  EXPECT_EQ(read(neox).activation, ops::Activation::kGeluTanh);
  neox.erase("rotary_pct");
  neox["rope_parameters"] = {{"rope_theta", 500.0}, {"partial_rotary_factor", 0.5}};
  EXPECT_EQ(read(neox).rotary_options.percent, 0.5);

  Json phi = ConfigOf(ModelOf("phi"));
  EXPECT_EQ(phi["hidden_act"], "gelu_new");
  EXPECT_EQ(phi["embd_pdrop"], phi["resid_pdrop"]);
  phi["embd_pdrop"] = phi["resid_pdrop"] = 0.1;
  EXPECT_EQ(read(phi).hidden_dropout, 0.1f);
  phi.erase("hidden_act");
  EXPECT_EQ(read(phi).activation, ops::Activation::kGeluTanh);
  phi["num_key_value_heads"] = nullptr;
  EXPECT_EQ(read(phi).num_query_groups, 4);
  ModelOptions gated = ModelOf("gpt_neox");
  gated.transformer.gated = true;
  EXPECT_THAT(HfConfigJson(gated, {}, "gpt_neox"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("other than gelu_erf and gelu_tanh: gpt_neox has one of these")));
  ModelOptions no_bias = ModelOf("phi");
  no_bias.output_bias = false;
  EXPECT_THAT(HfConfigJson(no_bias, {}, "phi"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no add_output_bias: phi")));

  Json falcon = ConfigOf(ModelOf("falcon"));
  for (const char* key :
       {"parallel_attn", "multi_query", "num_kv_heads", "new_decoder_architecture", "alibi",
        "ffn_hidden_size", "activation", "bias", "max_position_embeddings"}) {
    falcon.erase(key);
  }
  EXPECT_TRUE(read(falcon).parallel_shared_norm);
  EXPECT_EQ(read(falcon).num_query_groups, 1);
  EXPECT_EQ(read(falcon).ffn_hidden_size, 4 * 32);
  EXPECT_EQ(ParseHfConfig(falcon.dump())->max_positions, 2048);
  falcon["multi_query"] = false;
  EXPECT_EQ(read(falcon).num_query_groups, 4);
  falcon["new_decoder_architecture"] = true;
  falcon["num_kv_heads"] = 2;
  EXPECT_EQ(read(falcon).num_query_groups, 2);
  EXPECT_TRUE(read(falcon).parallel_residual);
  EXPECT_FALSE(read(falcon).parallel_shared_norm);
  falcon["num_ln_in_parallel_attn"] = 1;
  EXPECT_TRUE(read(falcon).parallel_shared_norm);
}

TEST(HfDecoderTest, GptJHasGpt2sNamesOfSizesAndCountsTheChannelsThatRotate) {
  Json gptj = ConfigOf(ModelOf("gptj"));
  EXPECT_EQ(gptj["n_embd"], 32);
  EXPECT_EQ(gptj["rotary_dim"], 4);
  EXPECT_EQ(gptj["activation_function"], "gelu_new");
  for (const char* key : {"hidden_size", "rope_theta", "rope_scaling", "num_key_value_heads"})
    EXPECT_EQ(gptj.count(key), 0u) << key;
  const auto read = [&] { return ParseHfConfig(gptj.dump())->transformer; };
  gptj["n_inner"] = nullptr;
  EXPECT_EQ(read().ffn_hidden_size, 4 * 32);
  gptj["attn_pdrop"] = 0.2;
  EXPECT_EQ(read().attention_dropout, 0.2f);
  gptj["activation_function"] = "gelu";
  EXPECT_EQ(read().activation, ops::Activation::kGeluErf);
  // 49 times a share of 1 / 49 is a little less than 1, and the number that rotates is cut off.
  gptj.update({{"n_embd", 4 * 98}, {"rotary_dim", 2}});
  const auto odd = ParseHfConfig(gptj.dump());
  ASSERT_THAT(odd, IsOk());
  EXPECT_EQ(static_cast<int64_t>(98 * odd->transformer.rotary_options.percent), 2);
  EXPECT_EQ(ConfigOf(*odd)["rotary_dim"], 2);
  ModelOptions other_base = ModelOf("gptj");
  other_base.transformer.rotary_options.base = 500;
  EXPECT_THAT(HfConfigJson(other_base, {}), StatusIs(absl::StatusCode::kInvalidArgument,
                                                     HasSubstr("rotary_base: gptj has 10000")));
}

TEST(HfDecoderTest, BiasesThatAFamilyDoesNotHaveAreReasonsAgainstIt) {
  ModelOptions options = ModelOf("gptj");
  options.transformer.mlp_bias = false;
  EXPECT_THAT(HfConfigJson(options, {}, "gptj"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no add_mlp_bias")));
  options = ModelOf("llama");
  options.transformer.mlp_bias = true;
  EXPECT_THAT(
      HfConfigJson(options, {}, "llama"),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("add_mlp_bias: llama has no")));
  options = ModelOf("cohere");
  options.transformer.norm.bias = true;
  EXPECT_THAT(HfConfigJson(options, {}, "cohere"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("no disable_bias_norm: cohere has norms without biases")));
  options = ModelOf("phi");
  options.transformer.norm.bias = false;
  EXPECT_THAT(HfConfigJson(options, {}), StatusIs(absl::StatusCode::kInvalidArgument,
                                                  HasSubstr("disable_bias_norm: phi has biases")));
  options.learned_positions = true;
  EXPECT_THAT(HfConfigJson(options, {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("disable_bias_norm: LayerNorms of gpt2 and bert have biases")));
}

TEST(HfDecoderTest, AGpt2WithOneKeyHeadIsAGptBigCode) {
  ModelOptions options = ModelOf("gpt_bigcode");
  Json config = ConfigOf(options);
  EXPECT_EQ(config["multi_query"], true);
  EXPECT_EQ(config["n_positions"], 64);
  EXPECT_EQ(config["activation_function"], "gelu_pytorch_tanh");
  EXPECT_EQ(config.count("num_key_value_heads"), 0u);
  EXPECT_THAT(HfConfigJson(options, {}, "gpt2"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("num_query_groups")));
  EXPECT_THAT(
      HfConfigJson(options, {}, "llama"),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("learned positions: llama has none")));
  for (const char* key : {"multi_query", "n_inner", "attn_pdrop", "embd_pdrop", "resid_pdrop"})
    config.erase(key);
  const auto read = ParseHfConfig(config.dump());
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(read->transformer.num_query_groups, 1);
  EXPECT_EQ(read->transformer.ffn_hidden_size, 4 * 32);
  EXPECT_EQ(read->transformer.hidden_dropout, 0.1f);
  EXPECT_EQ(read->transformer.attention_dropout, 0.1f);
  // With a key for each head it is both, and with a number between these neither.
  options.transformer.num_query_groups = 4;
  EXPECT_EQ(ConfigOf(options)["model_type"], "gpt2");
  EXPECT_EQ(ConfigOf(options, "gpt_bigcode")["multi_query"], false);
  options.transformer.num_query_groups = 2;
  for (const char* type : {"", "gpt_bigcode"}) {
    EXPECT_THAT(HfConfigJson(options, {}, type),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("num_query_groups")));
  }
}

TEST(HfDecoderTest, HeadsHaveGainsOfTheirOwnOrAlike) {
  ModelOptions options = ModelOf("qwen3");
  options.transformer.qk_norm_each_head = true;
  EXPECT_THAT(HfConfigJson(options, {}, "qwen3"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("qk_layernorm_each_head: qwen3 has the same gains")));
  options = ModelOf("cohere");
  EXPECT_EQ(ConfigOf(options)["use_qk_norm"], false);
  options.transformer.qk_norm = true;
  EXPECT_THAT(HfConfigJson(options, {}, "cohere"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("no qk_layernorm_each_head: cohere has gains of each head")));
  Json stablelm = ConfigOf(ModelOf("stablelm"));
  stablelm["qk_layernorm"] = true;
  EXPECT_TRUE(ParseHfConfig(stablelm.dump())->transformer.qk_norm_each_head);
  stablelm.erase("qk_layernorm");
  EXPECT_FALSE(ParseHfConfig(stablelm.dump())->transformer.qk_norm);
}

TEST(HfDecoderTest, LogitsOfCohereAreScaledAndLayersWithWindowsAloneRotate) {
  Json cohere = ConfigOf(ModelOf("cohere"));
  EXPECT_EQ(cohere["logit_scale"], 0.25);
  cohere.erase("logit_scale");
  EXPECT_EQ(ParseHfConfig(cohere.dump())->output_scale, 0.0625f);
  cohere.erase("num_key_value_heads");
  EXPECT_EQ(ParseHfConfig(cohere.dump())->transformer.num_query_groups, 4);

  Json cohere2 = ConfigOf(ModelOf("cohere2"));
  const auto read = [&] { return ParseHfConfig(cohere2.dump())->transformer; };
  cohere2.erase("layer_types");
  cohere2["sliding_window_pattern"] = 2;
  EXPECT_EQ(read().window_layers, (std::vector<bool>{true, false, true}));
  EXPECT_EQ(read().rotary_layers, read().window_layers);
  cohere2.erase("sliding_window_pattern");  // every fourth sees all
  EXPECT_EQ(read().window_layers, std::vector<bool>());
  EXPECT_EQ(read().rotary_layers, std::vector<bool>());
  EXPECT_EQ(read().window_size, 9);
  ModelOptions options = ModelOf("cohere2");
  options.transformer.window_size = 0;
  options.transformer.window_layers.clear();
  options.transformer.rotary_layers.clear();
  EXPECT_EQ(ConfigOf(options)["model_type"], "cohere");  // all layers rotate
  EXPECT_THAT(HfConfigJson(options, {}, "cohere2"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no window_size: cohere2")));
}

TEST(HfDecoderTest, TheLastLayersOfDotsMayHaveWindows) {
  Json dots = ConfigOf(ModelOf("dots1"));
  dots.erase("layer_types");
  EXPECT_EQ(ParseHfConfig(dots.dump())->transformer.window_size, 0);
  dots["max_window_layers"] = 2;
  EXPECT_EQ(ParseHfConfig(dots.dump())->transformer.window_layers,
            (std::vector<bool>{false, false, true}));
  dots["sliding_window"] = nullptr;
  EXPECT_EQ(ParseHfConfig(dots.dump())->transformer.window_size, 0);
}

TEST(HfDecoderTest, BiasesAreThoseThatTheFileNames) {
  Json glm = ConfigOf(ModelOf("glm4"));
  EXPECT_EQ(glm["attention_bias"], true);
  glm["attention_bias"] = false;
  EXPECT_FALSE(ParseHfConfig(glm.dump())->transformer.qkv_bias);
  glm.erase("attention_bias");
  EXPECT_TRUE(ParseHfConfig(glm.dump())->transformer.qkv_bias);
  Json starcoder = ConfigOf(ModelOf("starcoder2"));
  starcoder["use_bias"] = false;
  EXPECT_FALSE(ParseHfConfig(starcoder.dump())->transformer.linear_bias);
  Json moe = ConfigOf(ModelOf("glm4_moe"));
  moe.erase("attention_bias");
  EXPECT_FALSE(ParseHfConfig(moe.dump())->transformer.qkv_bias);
}

TEST(HfDecoderTest, DropoutIsTheFilesAndElseThatOfTransformers) {
  const auto expect = [](const Json& config, float attention, float hidden) {
    const auto read = ParseHfConfig(config.dump());
    ASSERT_THAT(read, IsOk()) << config;
    EXPECT_EQ(read->transformer.attention_dropout, attention) << config;
    EXPECT_EQ(read->transformer.hidden_dropout, hidden) << config;
  };
  Json seed = ConfigOf(ModelOf("seed_oss"), "seed_oss");
  expect(seed, 0, 0);
  seed["attention_dropout"] = 0.25;
  seed["residual_dropout"] = 0.5;
  expect(seed, 0.25f, 0.5f);
  seed.erase("attention_dropout");
  seed.erase("residual_dropout");
  expect(seed, 0.1f, 0.1f);
  Json starcoder = ConfigOf(ModelOf("starcoder2"));
  EXPECT_EQ(starcoder["embedding_dropout"], starcoder["residual_dropout"]);
  starcoder["attention_dropout"] = 0.25;
  starcoder["residual_dropout"] = starcoder["embedding_dropout"] = 0.5;
  expect(starcoder, 0.25f, 0.5f);
  for (const char* key : {"attention_dropout", "residual_dropout", "embedding_dropout"})
    starcoder.erase(key);
  expect(starcoder, 0, 0);
}

// transformers 5 writes all of the rotation there.
TEST(HfDecoderTest, RopeParametersMayBeByTypeOfLayer) {
  const ModelOptions options = ModelOf("gemma3_text");
  Json gemma = ConfigOf(options);
  for (const char* key : {"rope_theta", "rope_local_base_freq", "rope_scaling"}) gemma.erase(key);
  gemma["rope_parameters"] = {
      {"full_attention", {{"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 5e5}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 300.0}}}};
  const auto read = ParseHfConfig(gemma.dump());
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(read->transformer.rotary_options.base, 5e5);
  EXPECT_EQ(read->transformer.rotary_options.interpolation_factor, 4);
  EXPECT_EQ(read->transformer.rotary_options.local_base, 300);
  gemma["rope_parameters"]["sliding_attention"] = {{"rope_type", "linear"}, {"factor", 4.0}};
  ExpectRefused("gemma3_text", gemma, "sliding_attention.rope_type: must be default");
  gemma["rope_parameters"]["sliding_attention"] = {{"partial_rotary_factor", 0.5}};
  ExpectRefused("gemma3_text", gemma, "sliding_attention.partial_rotary_factor: all channels");
  gemma["rope_parameters"] = {{"chunked_attention", {{"rope_theta", 300.0}}}};
  ExpectRefused("gemma3_text", gemma, "rope_parameters: may have objects as full_attention");

  Json olmo = ConfigOf(ModelOf("olmo3"));
  Json full = olmo["rope_scaling"];
  full["rope_theta"] = 500.0;
  for (const char* key : {"rope_theta", "rope_scaling"}) olmo.erase(key);
  olmo["rope_parameters"] = {
      {"full_attention", full},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 500.0}}}};
  const auto scaled = ParseHfConfig(olmo.dump());
  ASSERT_THAT(scaled, IsOk());
  EXPECT_EQ(scaled->transformer.rotary_options.base, 500);
  EXPECT_EQ(scaled->transformer.rotary_options.yarn.factor, 4);
  EXPECT_EQ(scaled->transformer.rotary_options.local_base, 500);
  olmo["rope_parameters"]["sliding_attention"]["rope_theta"] = 300.0;
  ExpectRefused("olmo3", olmo, "rope_theta: must be as that of full_attention");

  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    ExpectRefused("qwen3", {{key, {{"full_attention", {{"rope_theta", 500.0}}}}}},
                  "must have no objects: all layers of qwen3 rotate alike");
  }
}

TEST(HfDecoderTest, LongRopeMayBeInRopeParameters) {
  ModelOptions options;
  for (const HfFamilyModel& model : HfFamilyModels()) {
    if (!model.options.transformer.rotary_options.longrope.long_factors.empty())
      options = model.options;
  }
  Json config = ConfigOf(options);
  Json rope = config["rope_scaling"];
  rope.erase("type");
  rope.update({{"rope_type", "longrope"},
               {"rope_theta", 10000.0},
               {"partial_rotary_factor", 0.75},
               {"original_max_position_embeddings", 16}});
  for (const char* key : {"rope_theta", "rope_scaling", "partial_rotary_factor"}) config.erase(key);
  config["rope_parameters"] = rope;
  const auto read = ParseHfConfig(config.dump());
  ASSERT_THAT(read, IsOk());
  const LongRopeOptions &want = options.transformer.rotary_options.longrope,
                        &got = read->transformer.rotary_options.longrope;
  EXPECT_EQ(got.long_factors, want.long_factors);
  EXPECT_EQ(got.short_factors, want.short_factors);
  EXPECT_EQ(got.original_context, want.original_context);
  EXPECT_EQ(got.magnitude, want.magnitude);
  // transformers reads the number beside them.
  config["rope_parameters"]["original_max_position_embeddings"] = 32;
  EXPECT_THAT(ParseHfConfig(config.dump()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("rope_parameters.original_max_position_embeddings: must be 16")));
  config["rope_parameters"].erase("long_factor");
  EXPECT_THAT(ParseHfConfig(config.dump()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("rope_parameters.long_factor: must be a list of 3")));
}

TEST(HfDecoderTest, ExpertsAreRoutedAsInTransformersWhereTheFileDoesNotSayHow) {
  Json v3 = ConfigOf(ModelOf("deepseek_v3"));
  for (const char* key : {"routed_scaling_factor", "n_group", "topk_group", "norm_topk_prob"})
    v3.erase(key);
  v3.update({{"n_routed_experts", 16}, {"num_hidden_layers", 5}});
  v3.erase("first_k_dense_replace");
  const auto read = ParseHfConfig(v3.dump());
  ASSERT_THAT(read, IsOk());
  const MoeOptions& moe = read->transformer.moe;
  EXPECT_EQ(moe.router.scaling_factor, 2.5f);
  EXPECT_EQ(moe.router.num_groups, 8);
  EXPECT_EQ(moe.router.group_topk, 4);
  EXPECT_EQ(moe.layers, (std::vector<bool>{false, false, false, true, true}));
  for (const char* type : {"glm4_moe", "dots1"}) {
    Json config = ConfigOf(ModelOf(type));
    for (const char* key : {"routed_scaling_factor", "n_group", "topk_group"}) config.erase(key);
    const auto other = ParseHfConfig(config.dump());
    ASSERT_THAT(other, IsOk()) << type;
    EXPECT_EQ(other->transformer.moe.router.scaling_factor, 1) << type;
    EXPECT_EQ(other->transformer.moe.router.num_groups, 1) << type;
    config.erase("norm_topk_prob");
    if (std::string(type) == "glm4_moe") {
      EXPECT_THAT(ParseHfConfig(config.dump()), IsOk());
    } else {
      EXPECT_THAT(
          ParseHfConfig(config.dump()),
          StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("norm_topk_prob: must be true")));
    }
  }
}

TEST(HfDecoderTest, AGptOssSaysHowItsRotationIsScaled) {
  ModelOptions options = ModelOf("gpt_oss");
  options.transformer.rotary_options.yarn = YarnOptions();
  Json config = ConfigOf(options);
  EXPECT_EQ(config["rope_scaling"]["rope_type"], "default");
  config["rope_scaling"] = nullptr;
  ASSERT_THAT(ParseHfConfig(config.dump()), IsOk());
  EXPECT_EQ(ParseHfConfig(config.dump())->transformer.rotary_options.yarn.factor, 0);
  config.erase("rope_scaling");
  EXPECT_THAT(ParseHfConfig(config.dump()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rope_scaling: is missing")));
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 150000.0}};
  EXPECT_THAT(ParseHfConfig(config.dump()), IsOk());
}

TEST(HfDecoderTest, AnMscaleOfOneAloneIsNone) {
  Json config = ConfigOf(ModelOf("qwen3_moe"));
  config["rope_scaling"]["mscale"] = 1.0;
  const auto read = ParseHfConfig(config.dump());
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(ConfigOf(*read)["rope_scaling"].count("mscale"), 0u);
  config["rope_scaling"]["mscale"] = 0.7;
  EXPECT_THAT(ParseHfConfig(config.dump()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("mscale")));
}

TEST(HfDecoderTest, GptOssMayBeInMxfp4) {
  Json config = ConfigOf(ModelOf("gpt_oss"));
  config["quantization_config"] = {{"quant_method", "mxfp4"}};
  EXPECT_THAT(ParseHfConfig(config.dump()), IsOk());
}

TEST(HfDecoderTest, DecodersMayBeInBlocksOfFloat8) {
  Json quantization = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  for (const char* model_type : {"deepseek_v3", "qwen3_moe", "llama"}) {
    Json config = ConfigOf(ModelOf(model_type));
    config["quantization_config"] = quantization;
    EXPECT_THAT(ParseHfConfig(config.dump()), IsOk()) << model_type;
  }
  quantization["fmt"] = "e5m2";
  ExpectRefused("deepseek_v3", {{"quantization_config", quantization}}, "fmt: must be e4m3");
  ExpectRefused("deepseek_v3", {{"quantization_config", {{"quant_method", "fp8"}}}},
                "weight_block_size: must be [128, 128]");
}

TEST(HfDecoderTest, ANullSwitchesACapOffAndAMissingOneIsTheFamilys) {
  Json gemma = ConfigOf(ModelOf("gemma2"));
  gemma["attn_logit_softcapping"] = nullptr;
  EXPECT_EQ(ParseHfConfig(gemma.dump())->transformer.score_softcap, 0);
  gemma.erase("attn_logit_softcapping");
  gemma.erase("final_logit_softcapping");
  EXPECT_EQ(ParseHfConfig(gemma.dump())->transformer.score_softcap, 50);
  EXPECT_EQ(ParseHfConfig(gemma.dump())->logit_softcap, 30);
}

TEST(HfDecoderTest, OlderFilesSayWhichLayersHaveWindowsInOtherWays) {
  Json gemma = ConfigOf(ModelOf("gemma3_text"));
  gemma.erase("layer_types");
  gemma["sliding_window_pattern"] = 2;
  EXPECT_EQ(ParseHfConfig(gemma.dump())->transformer.window_layers,
            (std::vector<bool>{true, false, true}));
  gemma.erase("sliding_window_pattern");  // every sixth sees all
  EXPECT_EQ(ParseHfConfig(gemma.dump())->transformer.window_layers, std::vector<bool>());
  EXPECT_EQ(ParseHfConfig(gemma.dump())->transformer.window_size, 9);
  Json gpt_oss = ConfigOf(ModelOf("gpt_oss"));
  gpt_oss.erase("layer_types");
  EXPECT_EQ(ParseHfConfig(gpt_oss.dump())->transformer.window_layers,
            (std::vector<bool>{true, false, true}));
}

TEST(HfDecoderTest, OlmosLayersWithWindowsAreNotScaled) {
  Json config = ConfigOf(ModelOf("olmo3"));
  config.erase("layer_types");  // every fourth sees all
  EXPECT_EQ(ParseHfConfig(config.dump())->transformer.window_layers, std::vector<bool>());
  EXPECT_EQ(ParseHfConfig(config.dump())->transformer.rotary_options.local_base, 10000);
  config["rope_scaling"] = nullptr;
  EXPECT_EQ(ParseHfConfig(config.dump())->transformer.rotary_options.local_base, 0);
  // An olmo3 without windows is an olmo2, whose rotation is not scaled.
  ModelOptions options = ModelOf("olmo3");
  options.transformer.window_size = 0;
  options.transformer.window_layers.clear();
  options.transformer.rotary_options.local_base = 0;
  EXPECT_EQ(ConfigOf(options)["model_type"], "olmo3");
  options.transformer.rotary_options.yarn = YarnOptions();
  EXPECT_EQ(ConfigOf(options)["model_type"], "olmo2");
  // With another base in its layers with windows it is neither.
  options = ModelOf("olmo3");
  options.transformer.rotary_options.local_base = 500;
  EXPECT_THAT(HfConfigJson(options, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rotary_base_local")));
}

// transformers spells what JSON cannot say as Python does.
TEST(HfDecoderTest, AnInfiniteLimitOfStepsIsNone) {
  std::string config = ConfigOf(ModelOf("mamba2")).dump();
  config.insert(1, R"("time_step_limit": [0.0, Infinity], "note": "\"Infinity", )");
  EXPECT_THAT(ParseHfConfig(config), IsOk());
  config.insert(1, R"("min": -Infinity, )");
  EXPECT_THAT(ParseHfConfig(config), StatusIs(absl::StatusCode::kDataLoss));
}

TEST(HfDecoderTest, MixersAreTakenFromTheLayersThatAreNamed) {
  Json bamba = ConfigOf(ModelOf("bamba"));
  EXPECT_EQ(bamba["num_hidden_layers"], 3);
  EXPECT_EQ(bamba["attn_layer_indices"], Json::array({1}));
  bamba["attn_layer_indices"] = nullptr;
  bamba["mamba_d_head"] = "auto";
  const auto all_mamba = ParseHfConfig(bamba.dump());
  ASSERT_THAT(all_mamba, IsOk());
  EXPECT_FALSE(HasHybridLayer(all_mamba->transformer, HybridLayer::kAttention));
  EXPECT_EQ(all_mamba->transformer.mamba.head_dim, 16);
  Json qwen = ConfigOf(ModelOf("qwen3_next"));
  EXPECT_EQ(qwen["mlp_only_layers"], Json::array({1}));
  qwen["layer_types"] = nullptr;
  qwen["full_attention_interval"] = 2;
  const auto interval = ParseHfConfig(qwen.dump());
  ASSERT_THAT(interval, IsOk());
  EXPECT_EQ(interval->transformer.hybrid_layers[2], HybridLayer::kAttention);
  EXPECT_EQ(interval->transformer.hybrid_layers[4], HybridLayer::kDelta);
  // A hybrid whose mixers do not take turns with MLPs is no model of theirs.
  ModelOptions options = ModelOf("bamba");
  std::swap(options.transformer.hybrid_layers[1], options.transformer.hybrid_layers[2]);
  EXPECT_THAT(HfConfigJson(options, {}), StatusIs(absl::StatusCode::kInvalidArgument,
                                                  HasSubstr("each with a layer - or E behind it")));
  options = ModelOf("bamba");
  options.transformer.mamba.num_groups = 2;
  EXPECT_THAT(HfConfigJson(options, {}), StatusIs(absl::StatusCode::kInvalidArgument,
                                                  HasSubstr("no mamba_norm_all_groups: bamba")));
}

TEST(HfDecoderTest, OtherFamiliesAreRefusedWithThePartThatIsMissing) {
  ExpectRefused("bamba", {{"model_type", "falcon_h1"}}, "attention and a mixer side by side");
  ExpectRefused("bamba", {{"model_type", "zamba2"}}, "zamba2 is not read: layers share");
  ExpectRefused("bamba", {{"model_type", "another"}}, "must be one of gpt2, ");
}

TEST(HfDecoderTest, AModelOfSeveralFamiliesIsWrittenAsTheOneThatIsNamed) {
  ModelOptions options = ModelOf("llama");
  options.transformer.kv_channels = 8;
  EXPECT_EQ(ConfigOf(options)["model_type"], "llama");
  EXPECT_EQ(ConfigOf(options, "mistral")["model_type"], "mistral");
  EXPECT_EQ(ConfigOf(options, "mistral")["sliding_window"], nullptr);
  EXPECT_EQ(ConfigOf(options, "phi3")["model_type"], "phi3");
  EXPECT_THAT(HfConfigJson(options, {}, "qwen3"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no qk_layernorm: qwen3")));
  EXPECT_THAT(HfConfigJson(options, {}, "gpt2"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("gpt2")));
}

TEST(HfDecoderTest, TheReasonsAreThoseAgainstTheClosestFamily) {
  ModelOptions options = ModelOf("gpt_oss");
  options.transformer.gate_limit = 5;
  EXPECT_THAT(HfConfigJson(options, {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("activation_func_clamp_value: 7"), HasSubstr("gpt_oss"))));
  options = ModelOf("mixtral");
  options.transformer.moe.capacity_factor = 2;
  options.transformer.moe.expert_bias = true;
  EXPECT_THAT(HfConfigJson(options, {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("moe_expert_capacity_factor: mixtral"),
                             HasSubstr("moe_router_enable_expert_bias"))));
  // Its last layer is none of its MLPs.
  options = ModelOf("bamba");
  std::swap(options.transformer.hybrid_layers[4], options.transformer.hybrid_layers[5]);
  EXPECT_THAT(HfConfigJson(options, {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("hybrid_layer_pattern: bamba has layers * and M")));
  options = ModelOf("llama");
  options.embedding_scale = 2;
  EXPECT_THAT(HfConfigJson(options, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("embedding_scale: llama")));
  options.transformer.kv_channels = 8;  // with heads of this width it is a Granite
  EXPECT_EQ(ConfigOf(options)["model_type"], "granite");
  // A hybrid without a gate has the MLPs of an arcee, and is closer to a hybrid all the same.
  options = ModelOf("bamba");
  TransformerOptions& layer = options.transformer;
  layer.hybrid_layers[2] = HybridLayer::kMamba;
  layer.mamba.num_groups = 2;
  layer.rotary = layer.gated = false;
  layer.rotary_options.percent = 1;
  layer.activation = ops::Activation::kSquaredRelu;
  EXPECT_THAT(HfConfigJson(options, {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("no mamba_norm_all_groups: granitemoehybrid"),
                             HasSubstr("no swiglu: granitemoehybrid"), Not(HasSubstr("arcee")))));
}

}  // namespace
}  // namespace megatron
