#include "megatron/train/preflight/open_data.h"

#include <memory>

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

}  // namespace
}  // namespace megatron
