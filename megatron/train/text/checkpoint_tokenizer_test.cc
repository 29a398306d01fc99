#include "megatron/train/text/checkpoint_tokenizer.h"

#include <string>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;

class CheckpointTokenizerTest : public ::testing::Test {
 protected:
  CheckpointTokenizerTest() {
    EXPECT_THAT(fs_.RemoveTree(run_), IsOk());
    EXPECT_THAT(fs_.CreateDirs(run_ + "/iter_0000003"), IsOk());
    EXPECT_THAT(fs_.CreateDirs(run_ + "/tokenizer"), IsOk());
  }
  void Write(const std::string& name) {
    EXPECT_THAT(WriteFileAtomically(fs_, JoinPath(run_, name), "x"), IsOk());
  }

  FileSystem& fs_ = PosixFileSystem();
  const std::string run_ = ::testing::TempDir() + "/checkpoint_tokenizer";
  const std::string iteration_ = run_ + "/iter_0000003";
};

TEST_F(CheckpointTokenizerTest, FilesAreWhereTheConfigurationSays) {
  Write("elsewhere.json");
  Write("tokenizer/elsewhere.json");
  TokenizerOptions options;
  options.vocab_file = run_ + "/elsewhere.json";
  EXPECT_EQ(CheckpointTokenizer(fs_, options, iteration_).vocab_file, options.vocab_file);
}

TEST_F(CheckpointTokenizerTest, FilesThatAreGoneAreFoundBesideTheCheckpoint) {
  Write("tokenizer/vocab.json");
  Write("merges.txt");
  TokenizerOptions options;
  options.vocab_file = "/gone/vocab.json";
  options.merge_file = "merges of old/merges.txt";
  options.tokenizer_model = "/gone/tokenizer/";
  const TokenizerOptions found = CheckpointTokenizer(fs_, options, iteration_);
  for (const std::string& path : {found.vocab_file, found.merge_file, found.tokenizer_model})
    EXPECT_THAT(fs_.Stat(path), IsOk()) << path;
}

TEST_F(CheckpointTokenizerTest, AMissingFileKeepsItsPathForTheError) {
  TokenizerOptions options;
  options.vocab_file = "/gone/vocab.json";
  const TokenizerOptions found = CheckpointTokenizer(fs_, options, iteration_);
  EXPECT_EQ(found.vocab_file, "/gone/vocab.json");
  EXPECT_EQ(found.merge_file, "");
}

}  // namespace
}  // namespace megatron
