#include "megatron/train/preflight/plan_pretraining.h"

#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/failure/exit_status.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

config::PretrainConfig Config(const std::string& name, const std::vector<std::string>& overrides) {
  const auto loaded = LoadConfig(name, overrides, ConfigPurpose::kDryRun);
  EXPECT_THAT(loaded, IsOk());
  return loaded->config;
}

TEST(PlanPretrainingTest, AProgramRefusesAnotherModel) {
  const config::PretrainConfig bert = Config("bert_demo", {});
  EXPECT_THAT(CheckModelType(bert, "bert_demo", "bert"), IsOk());
  EXPECT_THAT(CheckModelType(bert, "bert_demo", "gpt"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("bert_demo has model.model_type = bert, which pretrain_bert")));
}

TEST(PlanPretrainingTest, PlansEachPipelineStage) {
  const auto planned =
      PlanPretraining(Config("gpt_demo", {"parallel.pipeline_model_parallel_size=2"}));
  ASSERT_THAT(planned, IsOk());
  EXPECT_EQ(planned->plan.stages.size(), 2);
  EXPECT_EQ(planned->options.num_ranks(), 2);
  EXPECT_GT(planned->speed.flops_per_token, 0);
  EXPECT_GT(planned->speed.full_flops_per_token, planned->speed.flops_per_token);
  EXPECT_FALSE(planned->speed.peak_flops.has_value());
}

TEST(PlanPretrainingTest, ATokenizerThatIsNotThereIsAMistakeOfTheConfiguration) {
  config::PretrainConfig config = Config("gpt2_124m", {});
  config.mutable_data()->set_tokenizer_type(config::Tokenizer::GPT2BPETokenizer);
  config.mutable_data()->set_vocab_file("/nowhere/vocab.json");
  config.mutable_data()->set_merge_file("/nowhere/merges.txt");
  EXPECT_EQ(ExitCodeOf(PlanPretraining(config).status()), kExitConfig);
}

}  // namespace
}  // namespace megatron
