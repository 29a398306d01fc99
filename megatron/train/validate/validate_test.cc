#include "megatron/train/validate/validate.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/comm/nccl/nccl_api.h"
#include "megatron/train/config/config_defaults.h"
#include "megatron/train/config/config_parser.h"
#include "megatron/train/validate/validation_errors.h"

namespace megatron {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kSquare[] = "parallel.tensor_parallel_mode=2d";
constexpr char kFour[] = "parallel.tensor_model_parallel_size=4";
constexpr char kSquares[] = "parallel.tensor_parallel_mode=2.5d";
constexpr char kTwoLevels[] = "parallel.tensor_parallel_depth=2";
constexpr char kCube[] = "parallel.tensor_parallel_mode=3d";
constexpr char kEight[] = "parallel.tensor_model_parallel_size=8";

// Checks the valid configuration with these overrides.
std::vector<std::string> ErrorsWith(const ConfigOverrides& overrides,
                                    ConfigPurpose purpose = ConfigPurpose::kDryRun) {
  return ErrorsOf(kGoodConfig, overrides, purpose);
}

TEST(ValidateTest, AcceptsAGoodConfig) {
  EXPECT_THAT(ErrorsWith({}), IsEmpty());
  EXPECT_THAT(ErrorsWith({}, ConfigPurpose::kRun), IsEmpty());
}

TEST(ValidateTest, AcceptsGridsOfTensorParallelRanks) {
  EXPECT_THAT(ErrorsWith({kSquare, kFour}), IsEmpty());
  EXPECT_THAT(ErrorsWith({kSquares, kTwoLevels, kEight, "train.micro_batch_size=4"}), IsEmpty());
  EXPECT_THAT(ErrorsWith({kCube, kEight, "train.micro_batch_size=4"}), IsEmpty());
  EXPECT_THAT(ErrorsWith({kSquare, kFour, "data.random_ltd={min_value: 8 require_steps: 5}"}),
              IsEmpty());
}

TEST(ValidateTest, AcceptsWhatItCompletedItself) {
  ParsedConfig parsed = ParseConfig(
      kGoodConfig, "x", {"checkpoint.save=d", "recompute.recompute_granularity=selective"});
  ResolveDefaults(&parsed.config);
  EXPECT_THAT(Validate(parsed.config, parsed.locations), IsEmpty());
}

TEST(ValidateTest, AsksForWhatIsRequired) {
  const ParsedConfig parsed = ParseConfig("model { num_layers: 1 }", "x");
  std::vector<std::string> texts;
  for (const ConfigError& error : Validate(parsed.config, parsed.locations))
    texts.push_back(ToString(error));
  EXPECT_THAT(
      texts,
      ElementsAre("x:1:1: model.hidden_size: is required: an integer from 1 to 1048576",
                  "x:1:1: model.num_attention_heads: is required: an integer from 1 to 65536",
                  "x:1:1: model.seq_length: is required: an integer from 1 to 16777216",
                  "x: optimizer.lr: is required: a number from 0 to 1000",
                  "x: train.micro_batch_size: is required: an integer from 1 to 1048576",
                  "x: train.train_iters: is required, or train.train_samples: an integer from 1 to "
                  "1000000000000",
                  "x: data.data_path: there is no data: set data.data_path, data.stories or "
                  "data.mock_data"));
}

TEST(ValidateTest, NamesBothFieldsAndBothPlacesWhereTwoDisagree) {
  EXPECT_THAT(
      ErrorsWith({"model.num_attention_heads=6"}),
      ElementsAre(
          "x:1:23: model.hidden_size = 64: must be divisible by model.num_attention_heads = 6 "
          "(--set model.num_attention_heads=6), or model.kv_channels be set"));
  EXPECT_THAT(ErrorsWith({"model.num_attention_heads=6", "model.kv_channels=16"}), IsEmpty());
}

TEST(ValidateTest, DoesNotJudgeByAFieldThatIsWrongItself) {
  EXPECT_THAT(ErrorsWith({"model.num_attention_heads=0"}),
              ElementsAre("--set model.num_attention_heads=0: model.num_attention_heads = 0: "
                          "expects an integer from 1 to 65536"));
  const ParsedConfig parsed = ParseConfig(kGoodConfig, "x", {"model.num_attention_heads=many"});
  EXPECT_EQ(parsed.errors.size(), 1);
  EXPECT_THAT(Validate(parsed.config, parsed.locations), IsEmpty());
}

TEST(ValidateTest, ComputesNothingFromAFieldThatIsOutOfRange) {
  constexpr char kLargest[] = "9223372036854775807";
  EXPECT_EQ(ErrorsWith({absl::StrCat("model.hidden_size=", kLargest),
                        absl::StrCat("train.micro_batch_size=", kLargest),
                        absl::StrCat("parallel.data_parallel_size=", kLargest)})
                .size(),
            3);
}

TEST(ValidateTest, SaysHowToRemoveAFieldWithoutEffectThatIsInTheFile) {
  const std::string config = std::string(kGoodConfig) + "checkpoint { async_save: true }\n";
  EXPECT_THAT(ErrorsOf(config, {}, ConfigPurpose::kDryRun),
              ElementsAre("x:5:14: checkpoint.async_save = true: has no effect without "
                          "checkpoint.save; --set checkpoint.async_save= removes it"));
  EXPECT_THAT(ErrorsOf(config, {"checkpoint.async_save="}, ConfigPurpose::kDryRun), IsEmpty());
  EXPECT_THAT(ErrorsOf(config, {"checkpoint.async_save=true"}, ConfigPurpose::kDryRun),
              ElementsAre("--set checkpoint.async_save=true: checkpoint.async_save = true: has no "
                          "effect without checkpoint.save"));
}

// With one rank, work, gradients and weights cannot be divided.
TEST(ValidateTest, RefusesFieldsThatNeedSeveralRanks) {
  EXPECT_THAT(
      ErrorsWith({"parallel.sequence_parallel=true"}),
      ElementsAre("--set parallel.sequence_parallel=true: parallel.sequence_parallel = true: "
                  "has no effect with parallel.tensor_model_parallel_size = 1 (default)"));
  for (const std::string field :
       {"use_distributed_optimizer=true", "overlap_grad_reduce=true", "ddp_bucket_size=1000"}) {
    const std::string setting = absl::StrCat("parallel.", field);
    EXPECT_THAT(ErrorsWith({setting, "parallel.tensor_model_parallel_size=2"}),
                ElementsAre(HasSubstr(
                    "has no effect with parallel.data_parallel_size = 1 (default), with "
                    "parallel.context_parallel_size = 1 (default) and without model.num_experts")));
    EXPECT_THAT(ErrorsWith({setting, "parallel.data_parallel_size=2"}), IsEmpty());
    EXPECT_THAT(ErrorsWith({setting, "parallel.context_parallel_size=2"}), IsEmpty());
    const std::vector<std::string> experts = {setting, "model.num_experts=4",
                                              "model.disable_bias_linear=true"};
    EXPECT_THAT(ErrorsWith(experts), ElementsAre(HasSubstr("no weight has copies on other ranks")));
    std::vector<std::string> copied = experts;
    copied.push_back("parallel.tensor_model_parallel_size=2");
    EXPECT_THAT(ErrorsWith(copied), ElementsAre(HasSubstr("no weight has copies on other ranks")));
    copied.push_back("parallel.expert_tensor_parallel_size=1");
    EXPECT_THAT(ErrorsWith(copied), IsEmpty());
  }
}

TEST(ValidateTest, RefusesHowRanksRunWhereThereIsOne) {
  for (const std::string field : {"ranks_as=processes", "distributed_timeout_minutes=5",
                                  "distributed_timeout_seconds_after_init=5",
                                  "heartbeat_timeout_seconds=5", "stuck_rank_timeout_seconds=5"}) {
    const std::string setting = absl::StrCat("parallel.", field);
    EXPECT_THAT(ErrorsWith({setting}),
                ElementsAre(HasSubstr(
                    "has no effect with parallel.tensor_model_parallel_size = 1 (default), with "
                    "parallel.context_parallel_size = 1 (default), with "
                    "parallel.pipeline_model_parallel_size = 1 (default) and with "
                    "parallel.data_parallel_size = 1 (default)")));
    for (const std::string axis : {"tensor_model", "context", "pipeline_model", "data"}) {
      EXPECT_THAT(ErrorsWith({setting, absl::StrCat("parallel.", axis, "_parallel_size=2")}),
                  IsEmpty());
    }
  }
}

TEST(ValidateTest, AConditionAboutABrokenFieldRefusesNothing) {
  EXPECT_THAT(ErrorsWith({"model.num_experts=1", "model.moe_router_topk=1",
                          "model.disable_bias_linear=true", "model.moe_router_pre_softmax=true"}),
              ElementsAre(HasSubstr("expects an integer from 2 to 1024")));
}

TEST(ValidateTest, TellsAllErrorsAtOnce) {
  EXPECT_EQ(ErrorsWith({"precision.fp16=true", "precision.bf16=true", "optimizer.min_lr=1",
                        "model.hidden_dropout=2", "train.global_batch_size=3"})
                .size(),
            4);
}

TEST(ValidateTest, RefusesNcclInAProgramWithoutIt) {
  const std::vector<std::string> nccl = {"parallel.distributed_backend=nccl"};
  EXPECT_THAT(ErrorsWith(nccl, ConfigPurpose::kDryRun), IsEmpty());
  if (NcclLibrary() != nullptr) return;
  EXPECT_THAT(ErrorsWith(nccl, ConfigPurpose::kRun),
              ElementsAre(HasSubstr("has no effect with system.device = cpu (computed)"),
                          HasSubstr("this program was built without NCCL")));
}

TEST(ValidateTest, RefusesToRunWhatCanOnlyBePlanned) {
  const std::vector<std::string> too_much = {"parallel.data_parallel_size=300",
                                             "system.device=cuda"};
  EXPECT_THAT(ErrorsWith(too_much, ConfigPurpose::kDryRun), IsEmpty());
  EXPECT_THAT(ErrorsWith(too_much, ConfigPurpose::kRun),
              ElementsAre(HasSubstr("makes 300 ranks"),
                          HasSubstr("system.device = cuda: there is no GPU here")));
  EXPECT_THAT(
      ErrorsWith({"parallel.tensor_model_parallel_size=2",
                  "parallel.pipeline_model_parallel_size=2", "parallel.data_parallel_size=2"},
                 ConfigPurpose::kRun),
      IsEmpty());
}

TEST(ResolveDefaultsTest, ComputesWhatMegatronComputes) {
  config::PretrainConfig config =
      ParseConfig(kGoodConfig, "x", {"parallel.data_parallel_size=3", "checkpoint.save=run/"})
          .config;
  ResolveDefaults(&config);
  EXPECT_EQ(config.model().ffn_hidden_size(), 256);
  EXPECT_EQ(config.model().kv_channels(), 16);
  EXPECT_EQ(config.model().num_query_groups(), 4);
  EXPECT_EQ(config.model().max_position_embeddings(), 32);
  EXPECT_EQ(config.model().embedding_init_method_std(), 0.02);
  EXPECT_EQ(config.optimizer().lr_decay_iters(), 10);
  EXPECT_EQ(config.optimizer().end_weight_decay(), 0.01);
  EXPECT_EQ(config.train().global_batch_size(), 6);
  EXPECT_EQ(config.checkpoint().load(), "run/");
  EXPECT_EQ(config.logging().metrics_file(), "run/metrics.jsonl");
  EXPECT_EQ(config.logging().tensorboard_dir(), "run/tensorboard");
}

TEST(ResolveDefaultsTest, DecoupledRateFallsToMinLrWhereItIsGivenNoEndOfItsOwn) {
  const auto least = [](ConfigOverrides overrides) {
    overrides.push_back("optimizer.min_lr=1.5e-4");
    overrides.push_back("optimizer.decoupled_lr=1e-2");
    config::PretrainConfig config = ParseConfig(kGoodConfig, "x", overrides).config;
    ResolveDefaults(&config);
    return config.optimizer().decoupled_min_lr();
  };
  EXPECT_EQ(least({}), 1.5e-4);
  EXPECT_EQ(least({"optimizer.decoupled_min_lr=0"}), 0);
  EXPECT_EQ(least({"optimizer.decoupled_min_lr=1e-3"}), 1e-3);
}

TEST(ResolveDefaultsTest, KnowsTheFfnSizeOfLlama) {
  EXPECT_EQ(DefaultFfnHiddenSize(4096, /*swiglu=*/true), 10880);  // int(16384 * 2/3 / 64) * 64
  EXPECT_EQ(DefaultFfnHiddenSize(768, /*swiglu=*/true), 2048);
  EXPECT_EQ(DefaultFfnHiddenSize(8, /*swiglu=*/true), 64);
  EXPECT_EQ(DefaultFfnHiddenSize(768, /*swiglu=*/false), 3072);
}

}  // namespace
}  // namespace megatron
