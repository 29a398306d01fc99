#include "megatron/train/preflight/open_data.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gtest/gtest.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/failure/exit_status.h"
#include "megatron/train/trainer/run_options.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;

class OpenDataTest : public ::testing::Test {
 protected:
  OpenDataTest() {
    const auto loaded = LoadConfig("gpt_demo", {}, ConfigPurpose::kDryRun);
    EXPECT_THAT(loaded, IsOk());
    auto tokenizer = CreateTokenizer(ToTokenizerOptions(loaded->config.data()));
    EXPECT_THAT(tokenizer, IsOk());
    tokenizer_ = *std::move(tokenizer);
    options_ = ToRunOptions(loaded->config, tokenizer_->vocab_size()).data;
  }

  FileSystem& fs_ = PosixFileSystem();
  std::unique_ptr<Tokenizer> tokenizer_;
  DataOptions options_;
};

TEST_F(OpenDataTest, OpensWhatTheDemoTrainsOn) {
  const auto data = OpenData(fs_, options_, *tokenizer_);
  ASSERT_THAT(data, IsOk());
  EXPECT_NE(data->train, nullptr);
  EXPECT_FALSE(data->fingerprint.empty());
}

TEST_F(OpenDataTest, MissingFilesMeanTheCodeOfData) {
  options_.stories = false;
  options_.data_path = {"0.5", "/nowhere/tokens"};
  EXPECT_EQ(ExitCodeOf(OpenData(fs_, options_, *tokenizer_).status()), kExitData);
  options_.data_path.clear();
  options_.per_split_data_args_path = "/nowhere/paths.json";
  EXPECT_EQ(ExitCodeOf(OpenData(fs_, options_, *tokenizer_).status()), kExitData);
}

TEST_F(OpenDataTest, SourcesMayStandInAList) {
  RunOptions run;
  run.data.run.eval_interval = 0;
  run.data.data_args_path = ::testing::TempDir() + "/list.txt";
  run.data.per_split_data_args_path = "";
  ReadListedSources(fs_, &run);  // the list is not there
  EXPECT_TRUE(run.sources.empty());
  ASSERT_THAT(WriteFileAtomically(fs_, run.data.data_args_path, "0.5 /x/news 0.5 /x/books\n"),
              IsOk());
  ReadListedSources(fs_, &run);
  EXPECT_EQ(run.sources, (std::vector<std::string>{"news", "books"}));
  EXPECT_EQ(run.trainer.num_sources, 2);
  run.data.data_args_path = "";
  run.data.per_split_data_args_path = ::testing::TempDir() + "/lists.json";
  ASSERT_THAT(WriteFileAtomically(fs_, run.data.per_split_data_args_path,
                                  R"({"train": ["a", "b", "c"], "valid": null, "test": null})"),
              IsOk());
  ReadListedSources(fs_, &run);
  EXPECT_EQ(run.sources, (std::vector<std::string>{"a", "b", "c"}));
}

}  // namespace
}  // namespace megatron
