#include "megatron/train/configs/config_loader.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "megatron/train/config/config_text.h"
#include "megatron/train/configs/config_shipped.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::google::protobuf::util::MessageDifferencer;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

constexpr char kGood[] =
    "model { num_layers: 4 hidden_size: 64 num_attention_heads: 4 seq_length: 32 }\n"
    "optimizer { lr: 1e-3 }\n"
    "train { micro_batch_size: 2 train_iters: 10 }\n"
    "data { mock_data: true }\n";

class ConfigLoaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::path(::testing::TempDir()) / "config_loader_test";
    std::filesystem::create_directories(directory_);
    setenv("BUILD_WORKING_DIRECTORY", directory_.c_str(), /*overwrite=*/1);
  }
  void TearDown() override {
    std::filesystem::remove_all(directory_);
    unsetenv("BUILD_WORKING_DIRECTORY");
  }

  void Write(const std::string& name, const std::string& text) {
    std::ofstream(directory_ / name) << text;
  }

  std::filesystem::path directory_;
};

TEST_F(ConfigLoaderTest, ASavedConfigurationMayHaveASectionOfAnotherProgram) {
  const std::string text = absl::StrCat(kGood, "stranger { field: 1 }\n");
  EXPECT_THAT(LoadSavedConfig(text, "iter_0000010"), IsOk());
  EXPECT_THAT(LoadConfigFromString(text, "iter_0000010", {}, ConfigPurpose::kDryRun),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("stranger: no such field")));
  EXPECT_THAT(LoadSavedConfig(absl::StrCat(kGood, "stranger: 1\n"), "iter_0000010"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("stranger: no such field")));
}

TEST_F(ConfigLoaderTest, ASavedConfigurationNeedNotBeOneThatARunGoesOnWith) {
  const std::string fresh = absl::StrCat(
      kGood, "checkpoint { save: \"run\" load: \"run\" no_load_optim: true save_interval: 5 }\n");
  const std::string sharded = absl::StrCat(
      absl::StrReplaceAll(kGood, {{"mock_data: true",
                                   "mock_data: true dataloader_type: cyclic data_sharding: true"},
                                  {"micro_batch_size: 2", ""}}),
      "elasticity { enabled: true max_train_batch_size: 12 micro_batch_sizes: [1, 3] }\n");
  for (const std::string& text : {fresh, sharded}) {
    EXPECT_THAT(LoadSavedConfig(text, "iter_0000010"), IsOk());
    EXPECT_THAT(LoadConfigFromString(text, "mine", {}, ConfigPurpose::kDryRun),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AnyOf(HasSubstr("would lose the optimizer's state"),
                               HasSubstr("contradicts data.data_sharding"))));
  }
}

TEST_F(ConfigLoaderTest, FindsAFileWhereTheUserStands) {
  Write("mine.textproto", kGood);
  const auto loaded = LoadConfig("mine.textproto", {}, ConfigPurpose::kRun);
  ASSERT_THAT(loaded, IsOk());
  EXPECT_EQ(loaded->locations.Where("model.num_layers"), "mine.textproto:1:9");
  EXPECT_EQ(loaded->config.model().ffn_hidden_size(), 256);
}

TEST_F(ConfigLoaderTest, TakesAnAbsolutePathAsItIs) {
  Write("mine.textproto", kGood);
  EXPECT_THAT(LoadConfig((directory_ / "mine.textproto").string(), {}, ConfigPurpose::kRun),
              IsOk());
}

TEST_F(ConfigLoaderTest, FindsShippedConfigsByName) {
  EXPECT_THAT(LoadConfig("gpt_demo.textproto", {}, ConfigPurpose::kRun), IsOk());
  EXPECT_THAT(LoadConfig("gpt_demo", {}, ConfigPurpose::kRun), IsOk());
}

TEST_F(ConfigLoaderTest, PrefersTheUsersFileToAShippedOne) {
  Write("gpt_demo.textproto", kGood);
  EXPECT_EQ(FindConfig("gpt_demo.textproto")->text, kGood);
}

TEST_F(ConfigLoaderTest, TellsWhereItLookedAndWhatWasMeant) {
  EXPECT_THAT(FindConfig("gpt_demos.textproto").status(),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr((directory_ / "gpt_demos.textproto").string()),
                             HasSubstr("did you mean gpt_demo.textproto?"))));
  EXPECT_THAT(FindConfig("lama_tiny").status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("did you mean llama_tiny?")));
  EXPECT_THAT(FindConfig("no/such.textproto").status(), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(FindConfig("").status(), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(FindConfig(directory_.string()).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is a directory")));
  Write("big", std::string(2 << 20, 'x'));
  EXPECT_THAT(FindConfig("big").status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("2097152 bytes")));
}

TEST_F(ConfigLoaderTest, RefusesABinaryFileWithOneError) {
  Write("model.bin", absl::StrCat("PK\n\xe9\xff", std::string(1000, '\0')));
  EXPECT_THAT(FindConfig("model.bin").status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       EndsWith("model.bin is no text: line 2 holds the byte 0x00; a "
                                "configuration is written in protobuf's text format")));
  Write("windows.textproto", absl::StrReplaceAll(kGood, {{"\n", "\t\r\n"}}));
  EXPECT_THAT(LoadConfig("windows.textproto", {}, ConfigPurpose::kRun), IsOk());
}

TEST(LoadConfigFromStringTest, CountsErrorsThatAreTooManyToShow) {
  std::string text = kGood;
  for (int i = 0; i < 60; ++i) absl::StrAppend(&text, "field_", i, ": 1\n");
  const std::string message(
      LoadConfigFromString(text, "x", {}, ConfigPurpose::kRun).status().message());
  EXPECT_THAT(message, AllOf(HasSubstr("has 60 errors:"), HasSubstr("field_49"),
                             Not(HasSubstr("field_50")), EndsWith("\n  and 10 more")));
}

TEST(LoadConfigFromStringTest, TellsErrorsOfTextTypesAndValuesTogether) {
  const absl::Status status =
      LoadConfigFromString(
          absl::StrCat(kGood, "logging { log_throughputs: true }\n"), "x",
          {"model.num_attention_heads=five", "optimizer.min_lr=1", "train.global_batch_size=3"},
          ConfigPurpose::kRun)
          .status();
  EXPECT_EQ(status,
            absl::InvalidArgumentError(
                "the configuration has 4 errors:\n"
                "  x:5:11: logging.log_throughputs: no such field; did you mean log_throughput?\n"
                "  --set model.num_attention_heads=five: model.num_attention_heads = five: expects "
                "an integer from 1 to 65536\n"
                "  --set optimizer.min_lr=1: optimizer.min_lr = 1: must be at most optimizer.lr = "
                "0.001 (x:2:13)\n"
                "  --set train.global_batch_size=3: train.global_batch_size = 3: must be "
                "divisible by "
                "train.micro_batch_size = 2 (x:3:9) times parallel.data_parallel_size = 1 "
                "(default)"));
}

// Plans and tools that read a checkpoint's configuration know no device.
TEST(LoadConfigFromStringTest, WhatNeedsProcessorsIsReadWithoutADevice) {
  const std::vector<std::string> overrides = {
      "parallel.ranks_as=processes", "parallel.data_parallel_size=2", "train.global_batch_size=4",
      "parallel.in_process_recovery=true"};
  EXPECT_THAT(LoadConfigFromString(kGood, "x", overrides, ConfigPurpose::kDryRun), IsOk());
}

TEST(ShippedConfigsTest, EachLoadsAsAPlanAndMeansTheSameWrittenOut) {
  EXPECT_THAT(ShippedConfigs(), SizeIs(18));
  for (const ShippedConfig& shipped : ShippedConfigs()) {
    const auto loaded =
        LoadConfigFromString(shipped.text, shipped.name, {}, ConfigPurpose::kDryRun);
    ASSERT_THAT(loaded, IsOk());
    const auto again = LoadConfigFromString(EffectiveConfigText(loaded->config, loaded->locations),
                                            "effective", {}, ConfigPurpose::kDryRun);
    ASSERT_THAT(again, IsOk());
    EXPECT_EQ(EffectiveConfigText(again->config), EffectiveConfigText(loaded->config))
        << shipped.name;
  }
}

TEST(ShippedConfigsTest, EachRuns) {
  for (const ShippedConfig& shipped : ShippedConfigs()) {
    EXPECT_THAT(LoadConfigFromString(shipped.text, shipped.name, {}, ConfigPurpose::kRun), IsOk())
        << shipped.name;
  }
  EXPECT_THAT(LoadConfig("gpt3_857m",
                         {"parallel.tensor_model_parallel_size=1",
                          "parallel.pipeline_model_parallel_size=1"},
                         ConfigPurpose::kRun),
              IsOk());
}

TEST(EffectiveConfigTextTest, SaysWhereEachValueComesFrom) {
  const auto loaded = LoadConfigFromString(kGood, "x", {"optimizer.lr=2e-3"}, ConfigPurpose::kRun);
  ASSERT_THAT(loaded, IsOk());
  const std::string text = EffectiveConfigText(loaded->config, loaded->locations);
  EXPECT_THAT(text, HasSubstr("model {\n  num_layers: 4  # x:1:9\n  hidden_size: 64  # x:1:23\n  "
                              "ffn_hidden_size: 256  # computed\n"));
  EXPECT_THAT(text, HasSubstr("  lr: 0.002  # --set optimizer.lr=2e-3\n  min_lr: 0  # default\n"));
  EXPECT_THAT(text, Not(HasSubstr("generation")));
}

}  // namespace
}  // namespace megatron
