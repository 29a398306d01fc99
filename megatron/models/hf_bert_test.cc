// What Hugging Face's BERT and MegatronBERT compute from the same weights: testdata/bert/
// make_goldens.py.

#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/models/gpt_harness.h"
#include "megatron/models/hf_weights.h"

namespace megatron {
namespace {

double Wave(int64_t i, double phase) { return std::sin(static_cast<double>(i) * 1.7 + phase); }

bool EndsWith(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

void FillAsTheScriptDoes(const std::vector<HfTensor>& tensors, GptHarness* model) {
  for (const HfTensor& tensor : tensors) {
    std::vector<float> theirs(static_cast<size_t>(tensor.rows * tensor.columns));
    const bool gain =
        EndsWith(tensor.name, "LayerNorm.weight") || EndsWith(tensor.name, ".ln.weight");
    for (size_t i = 0; i < theirs.size(); ++i) {
      const double wave = Wave(static_cast<int64_t>(i), static_cast<double>(tensor.name.size()));
      theirs[i] = static_cast<float>((gain ? 1 : 0) + 0.2 * wave);
    }
    CopyFromHf(tensor, sizeof(float), reinterpret_cast<const char*>(theirs.data()),
               static_cast<char*>(model->Find(tensor.parameter)->data.raw()));
  }
}

HostBatch TheScriptsBatch() {
  HostBatch batch = RandomBatch({11, 7}, 50, 1);
  const int lengths[] = {11, 7};
  double labels = 0;
  for (size_t t = 0, s = 0, i = 0; t < batch.tokens.size(); ++t) {
    batch.tokens[t] = static_cast<int32_t>((7 * i + 13 * s + 3) % 50);
    batch.labels[t] = i % 3 == 1 ? static_cast<int32_t>((5 * i + s) % 50) : -1;
    batch.loss_weights[t] = i % 3 == 1 ? 1.0f : 0.0f;
    labels += batch.loss_weights[t];
    if (++i == static_cast<size_t>(lengths[s])) ++s, i = 0;
  }
  for (size_t t = 0; t < batch.tokens.size(); ++t)
    batch.gradient_weights[t] = batch.loss_weights[t] / static_cast<float>(labels);
  return batch;
}

// Lines of a name and one or two numbers.
std::map<std::string, std::vector<double>> ReadGoldens(const std::string& name) {
  std::ifstream file("megatron/models/testdata/bert/" + name);
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

void ExpectGradient(const HfTensor& tensor, GptHarness* model, const std::vector<double>& want) {
  std::vector<float> theirs(static_cast<size_t>(tensor.rows * tensor.columns));
  CopyToHf(tensor, sizeof(float),
           static_cast<const char*>(model->Find(tensor.parameter)->grad.raw()),
           reinterpret_cast<char*>(theirs.data()));
  double squares = 0, product = 0;
  for (size_t i = 0; i < theirs.size(); ++i) {
    squares += double{theirs[i]} * theirs[i];
    product += theirs[i] * Wave(static_cast<int64_t>(i), 0.5);
  }
  ASSERT_EQ(want.size(), 2u) << tensor.name;
  // Gradients of key biases are zero but for rounding.
  const double tolerance = 1e-5 * std::max(want[0], 1.0);
  EXPECT_NEAR(std::sqrt(squares), want[0], tolerance) << tensor.name;
  EXPECT_NEAR(product, want[1], tolerance * std::sqrt(static_cast<double>(theirs.size())))
      << tensor.name;
}

void ExpectEqualsHuggingFace(GptOptions options, float epsilon, const std::string& name) {
  options.transformer.activation = ops::Activation::kGeluErf;
  options.transformer.norm.epsilon = epsilon;
  options.max_positions = 16;
  GptHarness model(options, ProcessGroup(), 1);
  const std::vector<HfTensor> tensors = HfTensors(options);
  FillAsTheScriptDoes(tensors, &model);
  const auto goldens = ReadGoldens(name);
  HostBatch batch = TheScriptsBatch();
  EXPECT_NEAR(model.LossAndGradients(&batch), goldens.at("loss")[0], 1e-5 * 8);
  EXPECT_NEAR(model.means().at("sop loss"), goldens.at("order_loss")[0], 1e-5);
  size_t gradients = 0;
  for (const HfTensor& tensor : tensors) {
    ASSERT_EQ(goldens.count("gradient." + tensor.name), 1u) << tensor.name;
    ExpectGradient(tensor, &model, goldens.at("gradient." + tensor.name));
    ++gradients;
  }
  const std::vector<float> logits = model.Logits(&batch, 11 + 4);
  size_t others = 2;
  for (int v = 0; v < 50; v += 7, ++others) {
    EXPECT_NEAR(logits[v], goldens.at("logit." + std::to_string(v))[0], 1e-5 * 2) << v;
  }
  EXPECT_EQ(gradients + others, goldens.size());
}

TEST(HfBertTest, PostNormModelsComputeWhatBertComputes) {
  ExpectEqualsHuggingFace(SmallPostNormBert(), 1e-12f, "bert.txt");
}

TEST(HfBertTest, PreNormModelsComputeWhatMegatronBertComputes) {
  ExpectEqualsHuggingFace(SmallBert(), 1e-5f, "megatron_bert.txt");
}

}  // namespace
}  // namespace megatron
