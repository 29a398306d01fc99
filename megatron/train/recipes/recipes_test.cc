#include "megatron/train/recipes/recipes.h"

#include <memory>
#include <string>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/data/tokenizer/byte_level_tokenizer.h"
#include "megatron/data/tokenizer/tokenizer.h"
#include "megatron/data/tokenizer/tokenizer_factory.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

std::unique_ptr<Tokenizer> StoryTokenizer(int64_t extra_ids) {
  TokenizerOptions options;
  options.type = "StoryWordPiece";
  options.vocab_extra_ids = extra_ids;
  return *CreateTokenizer(options);
}

config::ModelConfig Model() {
  config::ModelConfig model;
  model.set_encoder_num_layers(3);
  model.set_decoder_num_layers(2);
  model.set_num_tokentypes(2);
  return model;
}

TEST(RecipesTest, BertIsAnEncoderAndT5HasBothStacks) {
  ModelOptions bert, t5;
  RecipeOf(ModelKind::kBert).SetModelOptions(Model(), &bert);
  EXPECT_EQ(bert.transformer.name, "encoder");
  EXPECT_FALSE(bert.transformer.causal);
  EXPECT_EQ(bert.num_token_types, 2);
  RecipeOf(ModelKind::kT5).SetModelOptions(Model(), &t5);
  EXPECT_EQ(t5.transformer.name, "decoder");
  EXPECT_TRUE(t5.transformer.causal);
  EXPECT_EQ(t5.transformer.num_layers, 2);
  EXPECT_EQ(t5.num_encoder_layers, 3);
}

TEST(RecipesTest, GptHasABiasBehindItsOutputMatrixIfTheFieldSaysSo) {
  config::ModelConfig model;
  ModelOptions options;
  RecipeOf(ModelKind::kGpt).SetModelOptions(model, &options);
  EXPECT_FALSE(options.output_bias);
  model.set_add_output_bias(true);
  RecipeOf(ModelKind::kGpt).SetModelOptions(model, &options);
  EXPECT_TRUE(options.output_bias);
}

TEST(RecipesTest, BertAndT5ReadSentencesAndOnlyBertHasClasses) {
  for (const ModelKind kind : {ModelKind::kGpt, ModelKind::kBert, ModelKind::kT5}) {
    config::PretrainConfig config;
    DataOptions data;
    PackerOptions packing;
    RecipeOf(kind).SetData(config, &data);
    RecipeOf(kind).SetPacking(config.model(), &packing);
    EXPECT_EQ(data.sentences.has_value(), kind != ModelKind::kGpt);
    if (data.sentences.has_value()) {
      EXPECT_EQ(data.sentences->model, kind);
    }
    EXPECT_EQ(packing.has_classes, kind == ModelKind::kBert);
  }
}

TEST(RecipesTest, T5NeedsATokenizerWithSentinels) {
  const Recipe& recipe = RecipeOf(ModelKind::kT5);
  EXPECT_THAT(recipe.CheckTokenizer(*StoryTokenizer(20)), IsOk());
  EXPECT_THAT(recipe.CheckTokenizer(*StoryTokenizer(0)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("sentinels")));
  EXPECT_THAT(RecipeOf(ModelKind::kGpt).CheckTokenizer(*StoryTokenizer(0)), IsOk());
}

TEST(RecipesTest, BertNeedsAGapInItsPromptThatGptDoesNot) {
  const auto tokenizer = StoryTokenizer(0);
  const GeneratorLimits limits = {tokenizer->vocab_size(), /*max_context=*/16};
  EXPECT_THAT(RecipeOf(ModelKind::kGpt).CheckPrompt("the cat", *tokenizer, limits), IsOk());
  EXPECT_THAT(RecipeOf(ModelKind::kBert).CheckPrompt("the [MASK]", *tokenizer, limits), IsOk());
  EXPECT_THAT(RecipeOf(ModelKind::kBert).CheckPrompt("the cat", *tokenizer, limits),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

class TokenizerWithoutEnds : public ByteLevelTokenizer {
 public:
  const SpecialTokens& special() const override { return none_; }

 private:
  SpecialTokens none_;
};

TEST(RecipesTest, GptRefusesAPromptThatItCouldNotBegin) {
  const GeneratorLimits limits = {257, /*max_context=*/16};
  const Recipe& recipe = RecipeOf(ModelKind::kGpt);
  EXPECT_THAT(recipe.CheckPrompt("", ByteLevelTokenizer(), limits), IsOk());
  EXPECT_THAT(recipe.CheckPrompt("a", TokenizerWithoutEnds(), limits), IsOk());
  EXPECT_THAT(recipe.CheckPrompt("", TokenizerWithoutEnds(), limits),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("none that ends a document")));
}

}  // namespace
}  // namespace megatron
