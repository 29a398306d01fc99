#include "tools/torch_checkpoint/universal_weights.h"

#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

TEST(UniversalWeightsTest, NamesOfAModelWithoutStages) {
  EXPECT_THAT(UniversalNames({"language_model.embedding.word_embeddings.weight",
                              "language_model.encoder.layers.0.input_layernorm.weight",
                              "language_model.encoder.layers.1.self_attention.query_key_value.bias",
                              "module.language_model.encoder.final_layernorm.weight"}),
              IsOkAndHolds(UnorderedElementsAre(
                  Pair("language_model.embedding.word_embeddings.weight",
                       "embedding.word_embeddings.weight"),
                  Pair("language_model.encoder.layers.0.input_layernorm.weight",
                       "decoder.layers.0.self_attention.linear_qkv.layer_norm_weight"),
                  Pair("language_model.encoder.layers.1.self_attention.query_key_value.bias",
                       "decoder.layers.1.self_attention.linear_qkv.bias"),
                  Pair("module.language_model.encoder.final_layernorm.weight",
                       "decoder.final_layernorm.weight"))));
}

// The layers' numbers count all parts of the pipeline, of which the embedding is one.
TEST(UniversalWeightsTest, NamesOfAModelWithStages) {
  EXPECT_THAT(
      UniversalNames({"tied_modules.embed.word_embeddings.weight", "3.mlp.dense_h_to_4h.weight",
                      "12.mlp.dense_h_to_4h.weight", "14.weight", "14.bias", "15.lm_head.weight"}),
      IsOkAndHolds(UnorderedElementsAre(
          Pair("tied_modules.embed.word_embeddings.weight", "embedding.word_embeddings.weight"),
          Pair("3.mlp.dense_h_to_4h.weight", "decoder.layers.0.mlp.linear_fc1.weight"),
          Pair("12.mlp.dense_h_to_4h.weight", "decoder.layers.1.mlp.linear_fc1.weight"),
          Pair("14.weight", "decoder.final_layernorm.weight"),
          Pair("14.bias", "decoder.final_layernorm.bias"),
          Pair("15.lm_head.weight", "output_layer.weight"))));
}

TEST(UniversalWeightsTest, RefusesOtherNames) {
  EXPECT_THAT(UniversalNames({"3.mlp.gate.weight"}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("3.mlp.gate.weight")));
  EXPECT_THAT(UniversalNames({"14.weight", "13.weight"}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("both")));
}

}  // namespace
}  // namespace megatron
