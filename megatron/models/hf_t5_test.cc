// What Hugging Face's T5 computes from the same weights: testdata/t5/make_goldens.py.

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/models/gpt_harness.h"
#include "megatron/models/hf_config.h"
#include "megatron/models/hf_weights.h"

namespace megatron {
namespace {

double Wave(int64_t i, double phase) {
  const double x = static_cast<double>(i);
  return std::sin(x * x * 0.37 + x * 1.7 + phase);
}

// Theirs of ours, or of its gradient.
std::vector<float> ToTheirs(const HfTensor& tensor, const Tensor& ours) {
  std::vector<float> theirs(static_cast<size_t>(tensor.rows * tensor.columns));
  CopyToHf(tensor, sizeof(float), static_cast<const char*>(ours.raw()),
           reinterpret_cast<char*>(theirs.data()));
  return theirs;
}

void FillAsTheScriptDoes(const std::vector<HfTensor>& tensors, GptHarness* model) {
  for (const HfTensor& tensor : tensors) {
    std::vector<float> theirs(static_cast<size_t>(tensor.rows * tensor.columns));
    const bool gain = tensor.name.find("layer_norm.weight") != std::string::npos;
    for (size_t i = 0; i < theirs.size(); ++i) {
      const double wave = Wave(static_cast<int64_t>(i), static_cast<double>(tensor.name.size()));
      theirs[i] = static_cast<float>((gain ? 1 : 0) + 0.25 * wave);
    }
    CopyFromHf(tensor, sizeof(float), reinterpret_cast<const char*>(theirs.data()),
               static_cast<char*>(model->Find(tensor.parameter)->data.raw()));
    EXPECT_EQ(ToTheirs(tensor, model->Find(tensor.parameter)->data), theirs) << tensor.name;
  }
}

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

// Lines of a name and one or two numbers.
std::map<std::string, std::vector<double>> ReadGoldens(const std::string& name) {
  std::ifstream file("megatron/models/testdata/t5/" + name);
  EXPECT_TRUE(file.is_open()) << name;
  std::map<std::string, std::vector<double>> goldens;
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string key;
    words >> key;
    for (double value; words >> value;) goldens[key].push_back(value);
  }
  return goldens;
}

void ExpectGradient(const std::vector<float>& gradient, const std::vector<double>& want,
                    const std::string& name) {
  double squares = 0, product = 0;
  for (size_t i = 0; i < gradient.size(); ++i) {
    squares += double{gradient[i]} * gradient[i];
    product += gradient[i] * Wave(static_cast<int64_t>(i), 0.5);
  }
  ASSERT_EQ(want.size(), 2u) << name;
  const double tolerance = 1e-5 * std::max(want[0], 0.1);
  EXPECT_NEAR(std::sqrt(squares), want[0], tolerance) << name;
  EXPECT_NEAR(product, want[1], tolerance * std::sqrt(static_cast<double>(gradient.size())))
      << name;
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

void ExpectEqualsHuggingFace(const std::string& config, const std::string& name) {
  absl::StatusOr<GptOptions> options = ParseHfConfig(config);
  ASSERT_TRUE(options.ok()) << options.status();
  options->padded_vocab_size = 64;
  GptHarness model(*options, ProcessGroup(), 1);
  const std::vector<HfTensor> tensors = HfTensors(*options);
  FillAsTheScriptDoes(tensors, &model);
  const auto goldens = ReadGoldens(name);
  HostBatch batch = TheScriptsBatch();
  EXPECT_NEAR(model.LossAndGradients(&batch), goldens.at("loss")[0], 1e-5);
  size_t compared = 1;
  for (const HfTensor& tensor : tensors) {
    ASSERT_EQ(goldens.count("gradient." + tensor.name), 1u) << tensor.name;
    ExpectGradient(ToTheirs(tensor, model.Find(tensor.parameter)->grad),
                   goldens.at("gradient." + tensor.name), tensor.name);
    ++compared;
  }
  const std::vector<float> logits = model.Logits(&batch, 6 + 4);
  for (int v = 0; v < 50; v += 7, ++compared)
    EXPECT_NEAR(logits[v], goldens.at("logit." + std::to_string(v))[0], 1e-5) << v;
  EXPECT_EQ(compared, goldens.size());
}

TEST(HfT5Test, FirstVersionComputesWhatHuggingFaceComputes) {
  ExpectEqualsHuggingFace(Config("relu", /*tied=*/true), "t5.txt");
}

TEST(HfT5Test, Version11ComputesWhatHuggingFaceComputes) {
  ExpectEqualsHuggingFace(Config("gated-gelu", /*tied=*/false), "t5_v1_1.txt");
}

TEST(HfT5Test, ConfigurationsReadBackAsTheyWereWritten) {
  for (const char* feed_forward :
       {"relu", "gelu", "gelu_new", "silu", "gated-relu", "gated-gelu", "gated-silu"}) {
    for (bool tied : {true, false}) {
      absl::StatusOr<GptOptions> options = ParseHfConfig(Config(feed_forward, tied));
      ASSERT_TRUE(options.ok()) << options.status();
      const absl::StatusOr<std::string> json = HfConfigJson(*options, {5, 6});
      ASSERT_TRUE(json.ok()) << json.status();
      absl::StatusOr<GptOptions> again = ParseHfConfig(*json);
      ASSERT_TRUE(again.ok()) << again.status();
      EXPECT_EQ(*HfConfigJson(*again, {5, 6}), *json);
      EXPECT_EQ(again->num_encoder_layers, 2);
      EXPECT_EQ(again->transformer.num_layers, 3);
      EXPECT_EQ(again->output_scale, options->output_scale);
      EXPECT_NE(json->find("\"decoder_start_token_id\": 5"), std::string::npos);
    }
  }
}

TEST(HfT5Test, WhatT5DoesNotHaveIsRefusedWithAllReasons) {
  const absl::StatusOr<std::string> json = HfConfigJson(SmallMegatronT5(), {});
  EXPECT_THAT(json.status().message(),
              testing::AllOf(testing::HasSubstr("LayerNorm"), testing::HasSubstr("biases"),
                             testing::HasSubstr("positions are relative"),
                             testing::HasSubstr("softmax_scale")));
  GptOptions decoder_alone = SmallT5();
  decoder_alone.num_encoder_layers = 0;
  EXPECT_THAT(HfConfigJson(decoder_alone, {}).status().message(),
              testing::HasSubstr("position_embedding_type relative"));
}

TEST(HfT5Test, WhatIsNotAModelIsRefusedByName) {
  const std::string good = Config("relu", true);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    return text.replace(text.find(from), from.size(), to);
  };
  const std::pair<std::string, const char*> bad[] = {
      {with("relu", "swish"), "feed_forward_proj"},
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
