#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/validate/validation_errors.h"

namespace megatron {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kGood[] =
    "model { model_type: bert num_layers: 4 hidden_size: 64 num_attention_heads: 4 seq_length: 32 "
    "}\n"
    "optimizer { lr: 1e-3 }\n"
    "train { micro_batch_size: 2 train_iters: 10 }\n"
    "data { mock_data: true }\n";

TEST(BertRulesTest, AcceptsWhatWorks) {
  EXPECT_THAT(ErrorsOf(kGood, {}), IsEmpty());
  EXPECT_THAT(ErrorsOf(kGood, {"model.bert_binary_head=false"}), IsEmpty());
  EXPECT_THAT(ErrorsOf(kGood, {"model.bert_binary_head=false", "model.num_tokentypes=1"}),
              IsEmpty());
  EXPECT_THAT(ErrorsOf(kGood, {"parallel.context_parallel_size=2"}), IsEmpty());
}

TEST(BertRulesTest, RefusesEachBrokenRuleByName) {
  const std::vector<std::pair<ConfigOverrides, std::string>> cases = {
      {{"model.num_tokentypes=1"}, "must be at least 2 with model.bert_binary_head = true"},
      {{"model.seq_length=4"}, "model.seq_length = 4: must be at least 5 with model.model_type"},
      {{"generation={prompt: \"Once\"}"}, "generation.prompt = \"Once\": must hold a [MASK]"},
      {{"model.position_embedding_type=relative"}, "may be relative with model.model_type: t5"},
      {{"model.decoder_seq_length=16"}, "has no effect with model.model_type = bert"},
      {{"parallel.context_parallel_size=3"}, "must be divisible by 4 * parallel.context_parallel"},
  };
  ExpectEachIsRefused(kGood, cases);
}

TEST(BertRulesTest, OtherModelsHaveNoFieldsOfBert) {
  for (const char* field :
       {"model.bert_binary_head=false", "model.num_tokentypes=2", "model.openai_gelu=true"}) {
    EXPECT_THAT(ErrorsOf(kGood, {"model.model_type=gpt", field}),
                Contains(HasSubstr("has no effect with model.model_type = gpt")))
        << field;
  }
}

}  // namespace
}  // namespace megatron
