// Compares our BERT with Hugging Face's BERT and MegatronBERT of the same weights.

#include "gtest/gtest.h"
#include "megatron/models/huggingface/hf_goldens.h"
#include "megatron/models/model_harness.h"

namespace megatron {
namespace {

HostBatch TheScriptsBatch() {
  HostBatch batch = RandomBatch({11, 7}, 50, 1);
  const int lengths[] = {11, 7};
  float labels = 0;
  for (size_t t = 0, s = 0, i = 0; t < batch.tokens.size(); ++t) {
    batch.tokens[t] = static_cast<int32_t>((7 * i + 13 * s + 3) % 50);
    batch.labels[t] = i % 3 == 1 ? static_cast<int32_t>((5 * i + s) % 50) : -1;
    batch.loss_weights[t] = i % 3 == 1 ? 1.0f : 0.0f;
    labels += batch.loss_weights[t];
    if (++i == static_cast<size_t>(lengths[s])) ++s, i = 0;
  }
  for (size_t t = 0; t < batch.tokens.size(); ++t)
    batch.gradient_weights[t] = batch.loss_weights[t] / labels;
  return batch;
}

void ExpectEqualsHuggingFace(ModelOptions options, float epsilon, const std::string& golden) {
  options.transformer.activation = ops::Activation::kGeluErf;
  options.transformer.norm.epsilon = epsilon;
  options.max_positions = 16;
  ExpectComputesWhatHuggingFaceComputes(options, TheScriptsBatch(), /*logits_of=*/11 + 4, golden);
}

TEST(HfBertTest, PostNormModelsComputeWhatBertComputes) {
  ExpectEqualsHuggingFace(SmallPostNormBert(), 1e-12f, "bert");
}

TEST(HfBertTest, PreNormModelsComputeWhatMegatronBertComputes) {
  ExpectEqualsHuggingFace(SmallBert(), 1e-5f, "megatron_bert");
}

}  // namespace
}  // namespace megatron
