#include "megatron/models/huggingface/hf_config.h"

#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

ModelOptions Gpt2() {
  ModelOptions options;
  TransformerOptions& layer = options.transformer;
  layer.num_layers = 3;
  layer.hidden_size = 32;
  layer.ffn_hidden_size = 100;
  layer.num_attention_heads = layer.num_query_groups = 4;
  layer.kv_channels = 8;
  layer.norm.epsilon = 1e-5f;
  options.vocab_size = 50257;
  options.padded_vocab_size = 50304;
  options.max_positions = 64;
  return options;
}

ModelOptions Llama() {
  ModelOptions options = Gpt2();
  TransformerOptions& layer = options.transformer;
  layer.num_query_groups = 2;
  layer.kv_channels = 16;
  layer.norm.kind = ops::Norm::kRmsNorm;
  layer.gated = layer.rotary = true;
  layer.linear_bias = layer.qkv_bias = false;
  layer.rotary_options.base = 500000;
  options.learned_positions = options.tied_embeddings = false;
  return options;
}

Json ConfigOf(const ModelOptions& options) {
  const auto text = HfConfigJson(options, {1, 2});
  EXPECT_THAT(text, IsOk());
  return Json::parse(text.value_or("{}"));
}

// Compares what config.json says of both.
void ExpectSameModel(const ModelOptions& a, const ModelOptions& b) {
  EXPECT_EQ(ConfigOf(a), ConfigOf(b));
  EXPECT_EQ(a.vocab_size, b.vocab_size);
  EXPECT_EQ(a.max_positions, b.max_positions);
  EXPECT_EQ(a.tied_embeddings, b.tied_embeddings);
  EXPECT_EQ(a.learned_positions, b.learned_positions);
  EXPECT_EQ(a.num_token_types, b.num_token_types);
  EXPECT_EQ(a.kind, b.kind);
  EXPECT_EQ(a.sentence_order_head, b.sentence_order_head);
  EXPECT_EQ(a.transformer.causal, b.transformer.causal);
  EXPECT_EQ(a.transformer.post_norm, b.transformer.post_norm);
  EXPECT_EQ(a.transformer.name, b.transformer.name);
  const TransformerOptions &x = a.transformer, &y = b.transformer;
  EXPECT_EQ(x.num_layers, y.num_layers);
  EXPECT_EQ(x.hidden_size, y.hidden_size);
  EXPECT_EQ(x.ffn_hidden_size, y.ffn_hidden_size);
  EXPECT_EQ(x.num_attention_heads, y.num_attention_heads);
  EXPECT_EQ(x.num_query_groups, y.num_query_groups);
  EXPECT_EQ(x.kv_channels, y.kv_channels);
  EXPECT_EQ(x.norm.kind, y.norm.kind);
  EXPECT_EQ(x.norm.epsilon, y.norm.epsilon);
  EXPECT_EQ(x.gated, y.gated);
  EXPECT_TRUE(x.gated || x.activation == y.activation);
  EXPECT_EQ(x.linear_bias, y.linear_bias);
  EXPECT_EQ(x.qkv_bias, y.qkv_bias);
  EXPECT_EQ(x.rotary, y.rotary);
  EXPECT_EQ(x.rotary_options.base, y.rotary_options.base);
  EXPECT_EQ(x.rotary_options.interpolation_factor, y.rotary_options.interpolation_factor);
  EXPECT_EQ(x.rotary_options.scaling_factor, y.rotary_options.scaling_factor);
  EXPECT_EQ(x.window_size, y.window_size);
}

ModelOptions Bert() {
  ModelOptions options = Gpt2();
  options.transformer.name = "encoder";
  options.transformer.causal = false;
  options.transformer.activation = ops::Activation::kGeluErf;
  options.num_token_types = 2;
  options.kind = ModelKind::kBert;
  options.sentence_order_head = true;
  return options;
}

TEST(HfConfigTest, EveryModelThatIsExportedIsImportedAsItself) {
  std::vector<ModelOptions> models = {Gpt2(),  Gpt2(),  Gpt2(), Llama(), Llama(), Llama(),
                                      Llama(), Llama(), Bert(), Bert(),  Bert(),  Llama()};
  models[11].transformer.window_size = 31;
  models[9].transformer.post_norm = true;
  models[10].sentence_order_head = false;
  models[10].num_token_types = 1;
  models[1].transformer.activation = ops::Activation::kGeluErf;
  models[2].tied_embeddings = false;
  models[2].transformer.norm.epsilon = 3e-7f;
  models[4].transformer.qkv_bias = true;
  models[4].transformer.kv_channels = 8;
  models[5].transformer.qkv_bias = models[5].transformer.linear_bias = true;
  models[6].transformer.rotary_options.scaling_factor = 8;
  models[7].transformer.rotary_options.interpolation_factor = 2.5;
  models[7].tied_embeddings = true;
  for (const ModelOptions& model : models) {
    const auto text = HfConfigJson(model, {});
    ASSERT_THAT(text, IsOk());
    const auto back = ParseHfConfig(*text);
    ASSERT_THAT(back, IsOk()) << *text;
    EXPECT_EQ(back->padded_vocab_size, model.vocab_size);
    ExpectSameModel(*back, model);
  }
}

TEST(HfConfigTest, WritesTheNamesThatTransformersReads) {
  const Json gpt2 = ConfigOf(Gpt2());
  EXPECT_EQ(gpt2["model_type"], "gpt2");
  EXPECT_EQ(gpt2["architectures"], Json::array({"GPT2LMHeadModel"}));
  EXPECT_EQ(gpt2["n_positions"], 64);
  EXPECT_EQ(gpt2["layer_norm_epsilon"].dump(), "1e-05");
  EXPECT_EQ(gpt2["activation_function"], "gelu_new");
  EXPECT_EQ(gpt2["bos_token_id"], 1);
  ModelOptions options = Llama();
  EXPECT_EQ(ConfigOf(options)["model_type"], "llama");
  EXPECT_EQ(ConfigOf(options)["head_dim"], 16);
  options.transformer.qkv_bias = true;
  EXPECT_EQ(ConfigOf(options)["architectures"], Json::array({"SeedOssForCausalLM"}));
  EXPECT_THAT(HfConfigJson(options, {}, "qwen2"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("kv_channels")));
  options.transformer.kv_channels = 8;
  EXPECT_EQ(ConfigOf(options)["architectures"], Json::array({"Qwen2ForCausalLM"}));
  EXPECT_EQ(Json::parse(HfGenerationConfigJson(Gpt2(), {-1, 7})),
            Json({{"_from_model_config", true}, {"bos_token_id", nullptr}, {"eos_token_id", 7}}));
}

TEST(HfConfigTest, BertIsNamedByItsNormsAndItsHead) {
  ModelOptions options = Bert();
  EXPECT_EQ(ConfigOf(options)["model_type"], "megatron-bert");
  EXPECT_EQ(ConfigOf(options)["architectures"], Json::array({"MegatronBertForPreTraining"}));
  options.transformer.post_norm = true;
  options.sentence_order_head = false;
  EXPECT_EQ(ConfigOf(options)["model_type"], "bert");
  EXPECT_EQ(ConfigOf(options)["architectures"], Json::array({"BertForMaskedLM"}));
  options.transformer.activation = ops::Activation::kGeluTanh;
  options.tied_embeddings = false;
  EXPECT_THAT(HfConfigJson(options, {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("openai_gelu"), HasSubstr("untie"))));
  options = Gpt2();
  options.transformer.post_norm = true;
  options.num_token_types = 2;
  options.transformer.causal = false;
  EXPECT_THAT(
      HfConfigJson(options, {}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("post_norm"), HasSubstr("token types"), HasSubstr("not causal"))));
}

TEST(HfConfigTest, RefusesToExportWithAllReasonsAtOnce) {
  ModelOptions options = Gpt2();
  options.transformer.gated = true;
  options.transformer.norm.kind = ops::Norm::kRmsNorm;
  options.transformer.norm.zero_centered_gamma = true;
  options.transformer.num_query_groups = 2;
  options.transformer.linear_bias = false;
  options.transformer.kv_channels = 16;
  EXPECT_THAT(HfConfigJson(options, {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("swiglu"), HasSubstr("RMSNorm"), HasSubstr("layernorm_1p"),
                             HasSubstr("num_query_groups"), HasSubstr("disable_bias_linear"),
                             HasSubstr("kv_channels"))));
  options = Llama();
  options.transformer.rotary = options.transformer.gated = false;
  options.transformer.norm.kind = ops::Norm::kLayerNorm;
  options.transformer.rotary_options.percent = 0.5;
  options.transformer.rotary_options.interpolation_factor = 2;
  options.transformer.rotary_options.scaling_factor = 8;
  EXPECT_THAT(
      HfConfigJson(options, {}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("position_embedding_type"), HasSubstr("kv_channels: starcoder2"),
                     HasSubstr("rotary_percent"), HasSubstr("together"))));
  EXPECT_THAT(HfConfigJson(options, {}, "llama"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("no swiglu"), HasSubstr("LayerNorm: llama"))));
}

TEST(HfConfigTest, AModelTypeThatNobodyKnowsIsToldTheKnownOnes) {
  for (const ModelOptions& model : {Gpt2(), Llama(), Bert()}) {
    EXPECT_THAT(HfConfigJson(model, {}, "nosuch"),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("model_type nosuch is unknown; it must be one of gpt2, "),
                               HasSubstr(", llama, "), HasSubstr(", falcon"))));
  }
  EXPECT_THAT(HfConfigJson(Llama(), {}, "gpt2"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("gpt2 is no decoder with rotary positions")));
}

TEST(HfConfigTest, ABertWithGeluByTanhInItsHeadTooIsTheirs) {
  ModelOptions options = Bert();
  options.transformer.activation = options.masked_lm_activation = ops::Activation::kGeluTanh;
  Json config = ConfigOf(options);
  EXPECT_EQ(config["hidden_act"], "gelu_new");
  for (const char* name : {"gelu_new", "gelu_pytorch_tanh"}) {
    config["hidden_act"] = name;
    const auto read = ParseHfConfig(config.dump());
    ASSERT_THAT(read, IsOk());
    EXPECT_EQ(read->transformer.activation, ops::Activation::kGeluTanh);
    EXPECT_EQ(read->masked_lm_activation, ops::Activation::kGeluTanh);
  }
}

TEST(HfConfigTest, ABertWithoutTokenTypesHasATableForTwo) {
  ModelOptions options = Bert();
  options.sentence_order_head = false;
  options.num_token_types = 0;
  EXPECT_EQ(ConfigOf(options)["type_vocab_size"], 2);
}

TEST(HfConfigTest, TokensAreThoseThatAreIds) {
  const auto tokens = ParseHfTokens(
      R"({"bos_token_id": 50, "eos_token_id": [5, 6], "pad_token_id": 3})", /*vocab_size=*/50);
  ASSERT_THAT(tokens, IsOk());
  EXPECT_EQ(tokens->bos, -1);
  EXPECT_EQ(tokens->eos, 5);
  EXPECT_EQ(tokens->pad, 3);
  const auto others =
      ParseHfTokens(R"({"bos_token_id": null, "eos_token_id": [], "pad_token_id": -1})", 50);
  ASSERT_THAT(others, IsOk());
  EXPECT_EQ(others->eos, -1);
  EXPECT_EQ(others->pad, -1);
}

TEST(HfConfigTest, FillsInWhatTransformersFillsIn) {
  const auto gpt2 = ParseHfConfig(
      R"({"model_type":"gpt2","vocab_size":50257,"n_positions":1024,"n_embd":768,"n_layer":12,"n_head":12})");
  ASSERT_THAT(gpt2, IsOk());
  EXPECT_EQ(gpt2->transformer.ffn_hidden_size, 3072);
  EXPECT_TRUE(gpt2->tied_embeddings);
  const auto llama = ParseHfConfig(
      R"({"model_type":"llama","vocab_size":32000,"hidden_size":4096,"intermediate_size":11008,)"
      R"("num_hidden_layers":32,"num_attention_heads":32,"max_position_embeddings":2048,)"
      R"("rope_parameters":{"rope_theta":1e6,"rope_type":"default"}})");
  ASSERT_THAT(llama, IsOk());
  EXPECT_EQ(llama->transformer.num_query_groups, 32);
  EXPECT_EQ(llama->transformer.kv_channels, 128);
  EXPECT_EQ(llama->transformer.norm.epsilon, 1e-6f);
  EXPECT_EQ(llama->transformer.rotary_options.base, 1e6);
  EXPECT_FALSE(llama->tied_embeddings);
}

// Expects that the config, with `changes` made to it, is refused with each of `messages`.
void ExpectRefused(Json config, const Json& changes, const std::vector<std::string>& messages) {
  ASSERT_THAT(ParseHfConfig(config.dump()), IsOk());
  config.update(changes);
  const auto status = ParseHfConfig(config.dump()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << changes;
  for (const std::string& message : messages) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

TEST(HfConfigTest, RefusesToImportWhatChangesTheModel) {
  const Json gpt2 = ConfigOf(Gpt2());
  ExpectRefused(gpt2, {{"scale_attn_weights", false}}, {"scale_attn_weights"});
  ExpectRefused(gpt2, {{"scale_attn_by_inverse_layer_idx", true}, {"add_cross_attention", true}},
                {"inverse_layer_idx", "add_cross_attention"});
  ExpectRefused(gpt2, {{"activation_function", "relu"}}, {"activation_function"});
  ExpectRefused(gpt2, {{"embd_pdrop", 0.0}}, {"embd_pdrop: must be as resid_pdrop"});
  ExpectRefused(gpt2, {{"embd_pdrop", nullptr}, {"resid_pdrop", 0.0}}, {"embd_pdrop"});
  ExpectRefused(gpt2, {{"n_head", 5}}, {"n_head"});
  ExpectRefused(gpt2, {{"architectures", {"GPT2ForSequenceClassification"}}}, {"architectures"});
  ExpectRefused(gpt2, {{"model_type", "opt"}}, {"model_type"});
  ExpectRefused(gpt2, {{"quantization_config", Json::object()}}, {"quantization_config"});

  ExpectRefused(ConfigOf(Bert()), {{"position_embedding_type", nullptr}},
                {"position_embedding_type: must be absolute"});

  const Json llama = ConfigOf(Llama());
  ExpectRefused(llama, {{"attention_bias", true}}, {"mlp_bias"});
  ExpectRefused(llama, {{"hidden_act", "gelu"}}, {"hidden_act"});
  ExpectRefused(llama, {{"partial_rotary_factor", 0.5}}, {"partial_rotary_factor"});
  ExpectRefused(llama, {{"num_key_value_heads", 3}}, {"num_key_value_heads"});
  ExpectRefused(llama, {{"head_dim", 15}}, {"head_dim"});
  ExpectRefused(llama, {{"rope_scaling", {{"type", "dynamic"}, {"factor", 2}}}}, {"rope_type"});
  ExpectRefused(llama, {{"rope_scaling", {{"type", "linear"}}}},
                {"rope_scaling.factor: is missing"});
  ExpectRefused(llama, {{"rope_scaling", 8}}, {"rope_scaling: must be an object"});
  ExpectRefused(llama,
                {{"rope_scaling",
                  {{"rope_type", "llama3"},
                   {"factor", 32},
                   {"low_freq_factor", 1},
                   {"high_freq_factor", 4},
                   {"original_max_position_embeddings", 4096}}}},
                {"8192"});
  Json mistral = llama;
  mistral.update({{"model_type", "mistral"},
                  {"architectures", Json::array({"MistralForCausalLM"})},
                  {"sliding_window", nullptr}});
  ExpectRefused(mistral, {{"sliding_window", 1}}, {"sliding_window: must be at least 2"});
  Json qwen = llama;
  qwen.update({{"model_type", "qwen2"},
               {"architectures", Json::array({"Qwen2ForCausalLM"})},
               {"sliding_window", 63},
               {"head_dim", 8}});
  ExpectRefused(qwen, {{"head_dim", 16}}, {"head_dim"});
  ExpectRefused(qwen, {{"use_sliding_window", true}}, {"sliding_window"});
  ExpectRefused(qwen, {{"num_key_value_heads", nullptr}}, {"num_key_value_heads: is missing"});
}

TEST(HfConfigTest, CodeBesideTheWeightsIsIgnoredWhereTheClassIsOneOfTransformers) {
  const Json code = {{"AutoModelForCausalLM", "modeling_own.OwnForCausalLM"}};
  for (const ModelOptions& model : {Gpt2(), Llama(), Bert()}) {
    Json config = ConfigOf(model);
    config["auto_map"] = code;
    const auto read = ParseHfConfig(config.dump());
    ASSERT_THAT(read, IsOk());
    ExpectSameModel(*read, model);
    ExpectRefused(
        config, {{"architectures", {"OwnForCausalLM"}}},
        {"architectures: must be [\"", "with auto_map another class is code of the model's own"});
    config.erase("architectures");
    EXPECT_THAT(ParseHfConfig(config.dump()), IsOk());
  }
  Json own = ConfigOf(Llama());
  own["architectures"] = {"OwnForCausalLM"};
  EXPECT_THAT(std::string(ParseHfConfig(own.dump()).status().message()),
              Not(HasSubstr("auto_map")));
}

TEST(HfConfigTest, MistralsWindowCountsThePositionItself) {
  Json mistral = ConfigOf(Llama());
  mistral.update({{"model_type", "mistral"},
                  {"architectures", Json::array({"MistralForCausalLM"})},
                  {"sliding_window", 32}});
  const auto window = [&] {
    const auto options = ParseHfConfig(mistral.dump());
    EXPECT_THAT(options, IsOk());
    return options->transformer.window_size;
  };
  EXPECT_EQ(window(), 31);
  const Json written = ConfigOf(*ParseHfConfig(mistral.dump()));
  EXPECT_EQ(written["model_type"], "mistral");
  EXPECT_EQ(written["sliding_window"], 32);
  mistral["sliding_window"] = 64;  // as many as there are positions
  EXPECT_EQ(window(), 0);
  mistral["sliding_window"] = nullptr;
  EXPECT_EQ(window(), 0);
  mistral.erase("sliding_window");  // 4096, more than there are positions
  EXPECT_EQ(window(), 0);
  mistral["max_position_embeddings"] = 8192;
  EXPECT_EQ(window(), 4095);
}

TEST(HfConfigTest, RefusesValuesOutOfRange) {
  const Json llama = ConfigOf(Llama());
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads", "max_position_embeddings"}) {
    for (const Json& value : std::vector<Json>{0, -1, 1.5, "8", nullptr, true, int64_t{1} << 40}) {
      ExpectRefused(llama, {{key, value}}, {key});
    }
  }
  ExpectRefused(llama, {{"rms_norm_eps", -1}, {"rope_theta", "x"}, {"tie_word_embeddings", 1}},
                {"rms_norm_eps", "rope_theta", "tie_word_embeddings"});
  ExpectRefused(llama, {{"hidden_act", 1}}, {"hidden_act"});
  ExpectRefused(llama, {{"head_dim", 1 << 21}}, {"head_dim"});
}

TEST(HfConfigTest, BrokenJsonIsNamedByItsPlace) {
  const auto expect = [](const std::string& text, const std::string& message) {
    EXPECT_THAT(ParseHfConfig(text), StatusIs(absl::StatusCode::kDataLoss, message)) << text;
  };
  expect("{\"a\": 1,\n \"b\": NaN}", "is no JSON: line 2, column 7: NaN is no number of JSON");
  expect("{\"a\": Infinity, \"b\": NaN}",
         "is no JSON: line 1, column 22: NaN is no number of JSON");
  expect("{\"a\":-Infinity}", "is no JSON: line 1, column 7: -Infinity is no number of JSON");
  expect("{\n\n}}", "is no JSON: line 3, column 2: '}' cannot stand here");
  expect("{\"a\": 1,}", "is no JSON: line 1, column 9: '}' cannot stand here");
  expect("{\"a\":\n", "is no JSON: line 2, column 1: the text ends too early");
  expect("", "is no JSON: line 1, column 1: the text ends too early");
  expect(std::string("{}\0}", 4), "is no JSON: line 1, column 3: '\\x00' cannot stand here");
  expect("[]", "is no JSON object");
}

TEST(HfConfigTest, RefusesWhatIsNoJsonObject) {
  std::string deep(100000, '[');
  for (const std::string& text :
       {std::string(), std::string("[]"), std::string("{"), std::string("{}\0}", 4), deep,
        std::string(R"({"model_type":"gpt2","model_type":"gpt2"})"),
        std::string(R"({"a":{"b":1,"b":1}})"), std::string((1 << 20) + 1, ' ')}) {
    EXPECT_THAT(ParseHfConfig(text), StatusIs(absl::StatusCode::kDataLoss)) << text.substr(0, 60);
  }
}

}  // namespace
}  // namespace megatron
