// Compares our T5 with Hugging Face's T5 of the same weights, and with its config.json.

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/models/huggingface/hf_config.h"
#include "megatron/models/huggingface/hf_goldens.h"
#include "megatron/models/model_harness.h"

namespace megatron {
namespace {

HostBatch TheScriptsBatch() {
  const std::vector<int> decoder_lengths = {6, 8}, encoder_lengths = {23, 9};
  HostBatch batch = RandomBatch(decoder_lengths, 50, 1);
  batch.encoder_tokens.clear(), batch.encoder_positions.clear(), batch.encoder_samples.clear();
  batch.encoder_cu_seqlens = {0};
  size_t t = 0;
  float labels = 0;
  for (int s = 0; s < 2; ++s) {
    for (int i = 0; i < encoder_lengths[s]; ++i) {
      batch.encoder_tokens.push_back((7 * i + 13 * s + 3) % 50);
      batch.encoder_positions.push_back(i);
      batch.encoder_samples.push_back(s);
    }
    batch.encoder_cu_seqlens.push_back(static_cast<int32_t>(batch.encoder_tokens.size()));
    for (int i = 0; i < decoder_lengths[s]; ++i, ++t) {
      batch.tokens[t] = (11 * i + 5 * s + 1) % 50;
      batch.labels[t] = i % 4 == 1 ? -1 : (5 * i + s) % 50;
      batch.loss_weights[t] = i % 4 == 1 ? 0.0f : 1.0f;
      labels += batch.loss_weights[t];
    }
  }
  for (t = 0; t < batch.tokens.size(); ++t)
    batch.gradient_weights[t] = batch.loss_weights[t] / labels;
  return batch;
}

// config.json with the script's sizes.
std::string Config(const std::string& feed_forward, bool tied) {
  return R"({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"],
    "vocab_size": 50, "d_model": 32, "d_kv": 12, "d_ff": 48, "num_layers": 2,
    "num_decoder_layers": 3, "num_heads": 4, "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12, "dropout_rate": 0.0, "layer_norm_epsilon": 1e-6,
    "feed_forward_proj": ")" +
         feed_forward + R"(", "tie_word_embeddings": )" + (tied ? "true" : "false") + "}";
}

void ExpectEqualsHuggingFace(const std::string& config, const std::string& golden) {
  absl::StatusOr<ModelOptions> options = ParseHfConfig(config);
  ASSERT_TRUE(options.ok()) << options.status();
  options->padded_vocab_size = 64;
  ExpectComputesWhatHuggingFaceComputes(*options, TheScriptsBatch(), /*logits_of=*/6 + 4, golden);
}

TEST(HfT5Test, FirstVersionComputesWhatHuggingFaceComputes) {
  ExpectEqualsHuggingFace(Config("relu", /*tied=*/true), "t5");
}

TEST(HfT5Test, Version11ComputesWhatHuggingFaceComputes) {
  ExpectEqualsHuggingFace(Config("gated-gelu", /*tied=*/false), "t5_v1_1");
}

TEST(HfT5Test, ConfigurationsReadBackAsTheyWereWritten) {
  for (const char* feed_forward :
       {"relu", "gelu", "gelu_new", "silu", "gated-relu", "gated-gelu", "gated-silu"}) {
    for (bool tied : {true, false}) {
      absl::StatusOr<ModelOptions> options = ParseHfConfig(Config(feed_forward, tied));
      ASSERT_TRUE(options.ok()) << options.status();
      const absl::StatusOr<std::string> json = HfConfigJson(*options, {5, 6});
      ASSERT_TRUE(json.ok()) << json.status();
      absl::StatusOr<ModelOptions> again = ParseHfConfig(*json);
      ASSERT_TRUE(again.ok()) << again.status();
      EXPECT_EQ(*HfConfigJson(*again, {5, 6}), *json);
      EXPECT_EQ(again->kind, ModelKind::kT5);
      EXPECT_EQ(again->num_encoder_layers, 2);
      EXPECT_EQ(again->transformer.num_layers, 3);
      EXPECT_EQ(again->output_scale, options->output_scale);
    }
  }
}

TEST(HfT5Test, AnMt5IsAT5OfOtherDefaults) {
  // Of its kind of MLP and of the output matrix it says nothing.
  const absl::StatusOr<ModelOptions> options = ParseHfConfig(
      R"({"model_type": "mt5", "architectures": ["MT5ForConditionalGeneration"],
      "vocab_size": 50, "d_model": 32, "d_kv": 12, "d_ff": 48, "num_layers": 2,
      "num_decoder_layers": 3, "num_heads": 4, "relative_attention_num_buckets": 8,
      "relative_attention_max_distance": 12, "dropout_rate": 0.0})");
  ASSERT_TRUE(options.ok()) << options.status();
  const std::string t5 = *HfConfigJson(*ParseHfConfig(Config("gated-gelu", /*tied=*/false)), {});
  EXPECT_EQ(*HfConfigJson(*options, {}), t5);  // it is written as a T5 unless it is named
  const absl::StatusOr<std::string> named = HfConfigJson(*options, {}, "mt5");
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_THAT(*named, testing::HasSubstr("\"model_type\": \"mt5\""));
  EXPECT_THAT(*named, testing::HasSubstr("MT5ForConditionalGeneration"));
  EXPECT_EQ(*HfConfigJson(*ParseHfConfig(*named), {}), t5);
}

// Their T5 begins to write with a token that both files name, or refuses to.
TEST(HfT5Test, DecodersBeginWithBosElseWithPadding) {
  const ModelOptions model = SmallT5();
  const std::pair<HfTokens, const char*> cases[] = {{{5, 6, 7}, "\"decoder_start_token_id\": 5"},
                                                    {{-1, 6, 7}, "\"decoder_start_token_id\": 7"},
                                                    {{}, "\"decoder_start_token_id\": 0"}};
  for (const auto& [tokens, text] : cases) {
    EXPECT_THAT(*HfConfigJson(model, tokens), testing::HasSubstr(text));
    EXPECT_THAT(HfGenerationConfigJson(model, tokens), testing::HasSubstr(text));
  }
  EXPECT_THAT(HfGenerationConfigJson(SmallGpt2(), {5, 6, 7}),
              testing::Not(testing::HasSubstr("decoder_start")));
}

TEST(HfT5Test, FeaturesThatT5LacksAreRefusedWithAllReasons) {
  const absl::StatusOr<std::string> json = HfConfigJson(SmallMegatronT5(), {});
  EXPECT_THAT(json.status().message(),
              testing::AllOf(testing::HasSubstr("LayerNorm"), testing::HasSubstr("biases"),
                             testing::HasSubstr("positions are relative"),
                             testing::HasSubstr("softmax_scale")));
  ModelOptions decoder_alone = SmallT5();
  decoder_alone.kind = ModelKind::kGpt;
  decoder_alone.num_encoder_layers = 0;
  EXPECT_THAT(HfConfigJson(decoder_alone, {}).status().message(),
              testing::HasSubstr("position_embedding_type relative"));
}

TEST(HfT5Test, AnythingButAModelIsRefusedByName) {
  const std::string good = Config("relu", true);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    return text.replace(text.find(from), from.size(), to);
  };
  const std::pair<std::string, const char*> bad[] = {
      {with("relu", "swish"), "gated-silu, and is swish"},
      {with("\"d_kv\": 12", "\"dense_act_fn\": \"gelu\""), "dense_act_fn: must be relu"},
      {with("\"d_kv\": 12", "\"is_gated_act\": true"), "is_gated_act"},
      {with("_buckets\": 8", "_buckets\": 7"), "relative_attention_num_buckets"},
      {with("_distance\": 12", "_distance\": 4"), "relative_attention_max_distance"},
      {with("_distance\": 12", "_distance\": 1e9"), "relative_attention_max_distance"},
      {with("\"d_model\": 32", "\"d_model\": 0"), "d_model"},
      {with("\"d_kv\": 12", "\"is_encoder_decoder\": false"), "is_encoder_decoder"},
      {with("T5ForConditionalGeneration", "T5EncoderModel"), "architectures"},
  };
  for (const auto& [text, name] : bad)
    EXPECT_THAT(ParseHfConfig(text).status().message(), testing::HasSubstr(name)) << text;
}

}  // namespace
}  // namespace megatron
