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
    "model { model_type: t5 num_layers: 4 hidden_size: 64 num_attention_heads: 4 seq_length: 32\n"
    "  decoder_seq_length: 16 }\n"
    "optimizer { lr: 1e-3 }\n"
    "train { micro_batch_size: 2 train_iters: 10 }\n"
    "data { mock_data: true }\n";

std::vector<std::string> ErrorsWith(const ConfigOverrides& overrides) {
  return ErrorsOf(kGood, overrides);
}

TEST(T5RulesTest, AcceptsWhatWorks) {
  EXPECT_THAT(ErrorsWith({}), IsEmpty());
  EXPECT_THAT(
      ErrorsWith({"model.num_layers=", "model.encoder_num_layers=6", "model.decoder_num_layers=2",
                  "model.seq_length=", "model.encoder_seq_length=48"}),
      IsEmpty());
  EXPECT_THAT(ErrorsWith({"model.position_embedding_type=relative", "model.softmax_scale=1",
                          "model.activation_func=relu", "model.disable_bias_linear=true",
                          "model.normalization=RMSNorm", "model.output_scale=0.125",
                          "model.add_output_bias=false"}),
              IsEmpty());
  EXPECT_THAT(ErrorsWith({"parallel.pipeline_model_parallel_size=4",
                          "parallel.pipeline_model_parallel_split_rank=2"}),
              IsEmpty());
  EXPECT_THAT(ErrorsWith({"parallel.context_parallel_size=4", "parallel.cp_comm_type=a2a",
                          "model.seq_length=30", "model.decoder_seq_length=15"}),
              IsEmpty());
  EXPECT_THAT(
      ErrorsWith({"parallel.tensor_model_parallel_size=4", "parallel.sequence_parallel=true",
                  "model.seq_length=31", "model.decoder_seq_length=15"}),
      IsEmpty());
  EXPECT_THAT(ErrorsWith({"parallel.pipeline_model_parallel_size=3",
                          "parallel.pipeline_model_parallel_layout=\"Et|ttt|ttttL\""}),
              IsEmpty());
}

TEST(T5RulesTest, RefusesEachBrokenRuleByName) {
  const std::vector<std::pair<ConfigOverrides, std::string>> cases = {
      {{"model.decoder_seq_length="}, "model.decoder_seq_length: is required"},
      {{"model.decoder_seq_length=2"}, "must be at least 3"},
      {{"model.seq_length=3"}, "model.seq_length = 3: must be at least 4"},
      {{"model.encoder_num_layers=2"}, "contradicts model.num_layers = 4"},
      {{"model.encoder_seq_length=8"}, "contradicts model.seq_length = 32"},
      {{"model.max_position_embeddings=32", "model.decoder_seq_length=40"},
       "must be at least model.decoder_seq_length = 40"},
      {{"model.position_embedding_type=rope"}, "must be learned_absolute or relative"},
      {{"model.position_embedding_type=none"}, "must be learned_absolute or relative"},
      {{"model.relative_attention_num_buckets=16"},
       "model.relative_attention_num_buckets = 16: has no effect"},
      {{"model.position_embedding_type=relative", "model.relative_attention_num_buckets=7"},
       "must be even"},
      {{"model.position_embedding_type=relative", "model.relative_attention_max_distance=16"},
       "must be more than half of model.relative_attention_num_buckets = 32"},
      {{"model.post_norm=true"}, "model.post_norm = true: is not there"},
      {{"model.qk_layernorm=true"}, "model.qk_layernorm = true: is not there"},
      {{"model.group_query_attention=true", "model.num_query_groups=2"},
       "model.group_query_attention = true: is not there"},
      {{"model.num_experts=4"}, "model.num_experts = 4: is not there"},
      {{"parallel.context_parallel_size=3", "parallel.cp_comm_type=a2a"},
       "must be divisible by parallel.context_parallel_size = 3"},
      {{"generation={prompt: \"Once\"}"},
       "generation.prompt = \"Once\": must hold an <extra_id_0>"},
      {{"data.eod_mask_loss=true"}, "data.eod_mask_loss = true: has no effect"},
      {{"model.num_tokentypes=2"}, "model.num_tokentypes = 2: has no effect"},
      {{"parallel.pipeline_model_parallel_split_rank=1"},
       "has no effect with parallel.pipeline_model_parallel_size = 1"},
      {{"parallel.pipeline_model_parallel_size=2", "parallel.pipeline_model_parallel_split_rank=2"},
       "must be less than parallel.pipeline_model_parallel_size = 2"},
      {{"parallel.pipeline_model_parallel_size=4", "parallel.pipeline_model_parallel_split_rank=3"},
       "must be divisible by parallel.pipeline_model_parallel_split_rank = 3"},
      {{"parallel.pipeline_model_parallel_size=4", "parallel.pipeline_model_parallel_split_rank=1"},
       "leaves 3 ranks for model.decoder_num_layers = 4"},
      {{"parallel.pipeline_model_parallel_size=2", "parallel.decoder_first_pipeline_num_layers=1"},
       "has no effect with model.model_type: t5"},
      {{"parallel.pipeline_model_parallel_size=3"},
       "model.encoder_num_layers = 4 (computed) and model.decoder_num_layers = 4 (computed)"},
  };
  ExpectEachIsRefused(kGood, cases);
}

TEST(T5RulesTest, OtherModelsHaveNoFieldsOfT5) {
  for (const char* field :
       {"model.encoder_num_layers=4", "model.decoder_num_layers=4", "model.encoder_seq_length=32",
        "parallel.pipeline_model_parallel_split_rank=1"}) {
    EXPECT_THAT(ErrorsWith({"model.model_type=gpt", "model.decoder_seq_length=", field}),
                Contains(HasSubstr("has no effect with model.model_type = gpt")))
        << field;
  }
  EXPECT_THAT(ErrorsWith({"model.model_type=gpt",
                          "model.decoder_seq_length=", "model.position_embedding_type=relative"}),
              Contains(HasSubstr("with model.model_type: t5 alone")));
}

}  // namespace
}  // namespace megatron
