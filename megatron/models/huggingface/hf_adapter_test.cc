#include "megatron/models/huggingface/hf_adapter.h"

#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelOptions Gpt2(const std::vector<std::string>& modules) {
  ModelOptions options;
  TransformerOptions& layer = options.transformer;
  layer.num_layers = 1;
  layer.hidden_size = 32;
  layer.ffn_hidden_size = 80;
  layer.num_attention_heads = layer.num_query_groups = 4;
  layer.kv_channels = 8;
  layer.lora = {/*dim=*/4, /*alpha=*/8, modules};
  options.vocab_size = options.padded_vocab_size = 50;
  options.max_positions = 16;
  return options;
}

ModelOptions Llama(const std::vector<std::string>& modules) {
  ModelOptions options = Gpt2(modules);
  TransformerOptions& layer = options.transformer;
  layer.num_query_groups = 2;
  layer.norm.kind = ops::Norm::kRmsNorm;
  layer.gated = layer.rotary = true;
  layer.linear_bias = layer.qkv_bias = false;
  options.learned_positions = options.tied_embeddings = false;
  return options;
}

TEST(HfAdapterTest, EachLayerThereHasAnAAndAB) {
  const std::vector<HfAdapter> adapters = HfAdapters(Llama({"linear_qkv", "linear_fc2"}));
  ASSERT_EQ(adapters.size(), 4u);
  const std::string layer = "base_model.model.model.layers.0.";
  const HfAdapter &query = adapters[0], &value = adapters[2], &down = adapters[3];
  EXPECT_EQ(query.a.name, layer + "self_attn.q_proj.lora_A.weight");
  EXPECT_EQ(query.b.name, layer + "self_attn.q_proj.lora_B.weight");
  EXPECT_THAT(query.a.shape, ElementsAre(4, 32));
  EXPECT_THAT(query.b.shape, ElementsAre(32, 4));
  EXPECT_EQ(value.a.parameter, query.a.parameter);
  EXPECT_EQ(value.b.parameter,
            "decoder.layers.0.self_attention.linear_qkv.adapter.linear_out.weight");
  EXPECT_EQ(value.b.parameter_shape, Shape({2, 4, 8, 4}));
  EXPECT_THAT(value.b.shape, ElementsAre(16, 4));
  EXPECT_EQ(down.a.name, layer + "mlp.down_proj.lora_A.weight");
  EXPECT_THAT(down.a.shape, ElementsAre(4, 80));
  // The rows of values are those behind the queries and the key of their group.
  EXPECT_EQ(value.b.row(0), 3 * 8);
  EXPECT_EQ(value.b.row(8), (4 + 3) * 8);
  // GPT-2's linears are stored the other way round there, and their adapters are not.
  const std::vector<HfAdapter> gpt2 = HfAdapters(Gpt2({"linear_fc1"}));
  ASSERT_EQ(gpt2.size(), 1u);
  EXPECT_EQ(gpt2[0].b.name, "base_model.model.transformer.h.0.mlp.c_fc.lora_B.weight");
  EXPECT_THAT(gpt2[0].b.shape, ElementsAre(80, 4));
  EXPECT_FALSE(gpt2[0].b.transposed);
  ModelOptions none = Gpt2({"linear_fc1"});
  none.transformer.lora = {};
  EXPECT_TRUE(HfAdapters(none).empty());
}

TEST(HfAdapterTest, NamesAndRowsAreThoseOfTheFamily) {
  // Neighbouring channels rotate together, here and in an ernie4_5; in a llama halves do.
  ModelOptions options = Llama({"linear_qkv"});
  options.transformer.rotary_options.interleaved = true;
  const std::vector<HfAdapter> llama = HfAdapters(options), ernie = HfAdapters(options, "ernie4_5");
  ASSERT_EQ(ernie.size(), 3u);
  EXPECT_EQ(ernie[0].b.name, llama[0].b.name);
  EXPECT_EQ(ernie[0].b.row(1), 1);
  EXPECT_EQ(llama[0].b.row(1), 2);
  const std::vector<HfAdapter> phi3 = HfAdapters(Llama({"linear_qkv"}), "phi3");
  ASSERT_EQ(phi3.size(), 1u);
  EXPECT_EQ(phi3[0].b.name, "base_model.model.model.layers.0.self_attn.qkv_proj.lora_B.weight");
  EXPECT_THAT(HfAdapterConfigJson(Llama({"linear_qkv"}), "phi3"),
              HasSubstr("\"self_attn.qkv_proj\""));
  // A gpt_bigcode has the rows of a head one after the other, and its linears are not transposed.
  const std::vector<HfAdapter> gpt2 = HfAdapters(Gpt2({"linear_qkv"}));
  const std::vector<HfAdapter> bigcode = HfAdapters(Gpt2({"linear_qkv"}), "gpt_bigcode");
  ASSERT_EQ(bigcode.size(), 1u);
  EXPECT_EQ(bigcode[0].b.name, gpt2[0].b.name);
  EXPECT_EQ(bigcode[0].b.row(8), 8);
  EXPECT_EQ(gpt2[0].b.row(8), 3 * 8);
  EXPECT_THAT(HfAdapterConfigJson(Gpt2({"linear_qkv"}), "gpt_bigcode"),
              HasSubstr("\"fan_in_fan_out\": false"));
}

TEST(HfAdapterTest, TheConfigurationIsReadBack) {
  const std::string json = HfAdapterConfigJson(Llama({"linear_qkv", "linear_proj"}));
  for (const char* part :
       {"\"self_attn.q_proj\"", "\"self_attn.o_proj\"", "\"LORA\"", "\"fan_in_fan_out\": false"})
    EXPECT_THAT(json, HasSubstr(part));
  const auto config = ParseHfAdapterConfig(json);
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->rank, 4);
  EXPECT_EQ(config->alpha, 8);
  EXPECT_TRUE(config->is_of_all_layers);
}

TEST(HfAdapterTest, Gpt2AloneStoresItsLinearsTheOtherWayRound) {
  ModelOptions options = Gpt2({"linear_fc1"});
  EXPECT_THAT(HfAdapterConfigJson(options), HasSubstr("\"fan_in_fan_out\": true"));
  options.transformer.num_query_groups = 1;  // then it is a gpt_bigcode
  EXPECT_THAT(HfAdapterConfigJson(options), HasSubstr("\"fan_in_fan_out\": false"));
}

TEST(HfAdapterTest, WhatChoosesAmongLayersIsRead) {
  const auto of_all = [](const std::string& more) {
    const auto config = ParseHfAdapterConfig(
        absl::StrCat(R"({"peft_type": "LORA", "r": 8, "lora_alpha": 16)", more, "}"));
    EXPECT_THAT(config, IsOk());
    return config->is_of_all_layers;
  };
  EXPECT_TRUE(of_all(""));
  EXPECT_TRUE(of_all(R"(, "target_modules": ["q_proj", "mlp.up_proj"])"));
  EXPECT_TRUE(of_all(R"(, "layers_to_transform": null, "exclude_modules": null)"));
  EXPECT_FALSE(of_all(R"(, "target_modules": ["layers.11.self_attn.q_proj"])"));
  EXPECT_FALSE(of_all(R"(, "target_modules": ".*[13]\\.mlp.*")"));
  EXPECT_FALSE(of_all(R"(, "layers_to_transform": [0, 1])"));
  EXPECT_FALSE(of_all(R"(, "layers_to_transform": 1)"));
  EXPECT_FALSE(of_all(R"(, "exclude_modules": ["0.mlp"])"));
}

TEST(HfAdapterTest, OtherAdaptersAreRefusedByName) {
  const auto with = [](const std::string& more) {
    return ParseHfAdapterConfig(
        absl::StrCat(R"({"peft_type": "LORA", "r": 8, "lora_alpha": 16)", more, "}"));
  };
  EXPECT_THAT(with(R"(, "bias": "none", "use_dora": false, "rank_pattern": {},
                      "modules_to_save": null, "lora_dropout": 0.05)"),
              IsOk());
  for (const char* key : {"use_rslora", "use_dora"}) {
    EXPECT_THAT(with(absl::StrCat(", \"", key, "\": true")),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(key)));
  }
  EXPECT_THAT(with(R"(, "bias": "all")"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"bias\"")));
  EXPECT_THAT(with(R"(, "rank_pattern": {"q_proj": 4})"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank_pattern")));
  EXPECT_THAT(with(R"(, "modules_to_save": ["lm_head"])"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("modules_to_save")));
  EXPECT_THAT(with(R"(, "alora_invocation_tokens": [5, 6])"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("alora_invocation_tokens")));
  // Adapters of weights that PEFT changes while it loads them.
  for (const char* name : {"pissa", "pissa_niter_16", "OLoRA", "corda", "loftq", "lora_ga"}) {
    EXPECT_THAT(with(absl::StrCat(R"(, "init_lora_weights": ")", name, "\"")),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("init_lora_weights")))
        << name;
  }
  for (const char* plain : {"true", "false", "null", "\"gaussian\"", "\"eva\"", "\"orthogonal\""})
    EXPECT_THAT(with(absl::StrCat(", \"init_lora_weights\": ", plain)), IsOk()) << plain;
  // A key that is not known may ask for nothing.
  EXPECT_THAT(with(R"(, "use_something": true)"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("use_something")));
  EXPECT_THAT(with(R"(, "use_something": false, "something_config": null, "peft_version": "0.21.2",
                      "megatron_core": "megatron.core", "qalora_group_size": 16)"),
              IsOk());
  for (const char* wrong :
       {"", "[]", "{}", R"({"peft_type": "IA3", "r": 8, "lora_alpha": 16})",
        R"({"peft_type": "LORA", "r": 0, "lora_alpha": 16})",
        R"({"peft_type": "LORA", "r": "8", "lora_alpha": 16})", R"({"peft_type": "LORA", "r": 8})",
        R"({"peft_type": "LORA", "r": 8, "lora_alpha": -1})",
        R"({"peft_type": "LORA", "r": 1e300, "lora_alpha": 1})"}) {
    EXPECT_THAT(ParseHfAdapterConfig(wrong), StatusIs(absl::StatusCode::kInvalidArgument)) << wrong;
  }
}

}  // namespace
}  // namespace megatron
