// Runs the program as a user does.

#include <sys/wait.h>

#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/checkpoint/save_checkpoint.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

class InspectCheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = JoinPath(::testing::TempDir(), "inspect_checkpoint_test");
    ASSERT_THAT(fs_.RemoveTree(directory_), IsOk());
    SaveOptions options;
    options.directory = JoinPath(directory_, "run");
    CheckpointState state;
    state.run_id = "0123456789abcdef";
    state.iteration = 10;
    state.ints = {{"consumed_train_samples", 160}};
    state.tensors = {
        {"decoder.weight", Tensor(weight_.data(), DType::kFloat32, {2, 3}), {2, 3}, {0, 0}, 0},
        {"count", Tensor(&count_, DType::kInt64, Shape()), Shape(), Shape(), 0}};
    ASSERT_THAT(SaveCheckpoint(fs_, options, state), IsOk());
  }

  // Returns the exit code; output_ holds the program's output.
  int Run(const std::string& arguments) {
    const std::string log = JoinPath(directory_, "log");
    const std::string command =
        absl::StrCat("tools/inspect_checkpoint ", arguments, " > '", log, "' 2>&1");
    const int status = std::system(command.c_str());
    output_ = ReadFileToString(fs_, log).value_or("");
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  std::string RunDirectory() const { return JoinPath(directory_, "run"); }
  std::string Shard() const {
    return JoinPath(RunDirectory(), "iter_0000010/shard_00000_of_00001.bin");
  }

  FileSystem& fs_ = PosixFileSystem();
  std::string directory_;
  std::string output_;
  std::vector<float> weight_ = {3, -4, 0, 0, 0, std::numeric_limits<float>::infinity()};
  int64_t count_ = 42;
};

TEST_F(InspectCheckpointTest, ShowsTheNewestOfARun) {
  EXPECT_EQ(Run(RunDirectory()), 0);
  EXPECT_THAT(
      output_,
      AllOf(HasSubstr("iteration   10\n"), HasSubstr("run         0123456789abcdef\n"),
            HasSubstr("tensors     2, 7 elements\n"), HasSubstr("consumed_train_samples = 160\n"),
            ContainsRegex("decoder.weight +fp32 +\\[2, 3\\] +24 B\n")));
}

TEST_F(InspectCheckpointTest, ComputesStatistics) {
  EXPECT_EQ(Run("--stats " + JoinPath(RunDirectory(), "iter_0000010")), 0);
  EXPECT_THAT(output_,
              AllOf(ContainsRegex("decoder.weight.*norm 5 +mean -0.2 +least -4 +greatest 3 "
                                  "+not finite 1\n"),
                    ContainsRegex("count.*norm 42 ")));
}

TEST_F(InspectCheckpointTest, VerifiesAndEndsWith22WhereABitIsFlipped) {
  EXPECT_EQ(Run("--verify " + RunDirectory()), 0);
  EXPECT_THAT(output_, HasSubstr("verified"));

  std::string contents = *ReadFileToString(fs_, Shard());
  contents.back() ^= 1;
  ASSERT_THAT(WriteFileAtomically(fs_, Shard(), contents), IsOk());
  EXPECT_EQ(Run(RunDirectory()), 0);  // not read
  EXPECT_EQ(Run("--verify " + RunDirectory()), 22);
  EXPECT_THAT(output_, AllOf(HasSubstr(Shard()), HasSubstr("'decoder.weight'")));
  EXPECT_EQ(Run("--stats " + RunDirectory()), 22);
}

TEST_F(InspectCheckpointTest, PrintsOneJsonObjectAndNothingElse) {
  ASSERT_EQ(Run("--json --stats --verify " + RunDirectory()), 0) << output_;
  const Json json = Json::parse(output_, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(json.is_object()) << output_;
  EXPECT_EQ(json["run"], "0123456789abcdef");
  EXPECT_EQ(json["iteration"], 10);
  EXPECT_EQ(json["verified"], true);
  EXPECT_EQ(json["shards"].size(), 1u);
  EXPECT_EQ(json["values"]["consumed_train_samples"], 160);
  ASSERT_EQ(json["tensors"].size(), 2u);
  for (const Json& tensor : json["tensors"]) {
    if (tensor["name"] != "decoder.weight") continue;
    EXPECT_EQ(tensor["dtype"], "fp32");
    EXPECT_EQ(tensor["shape"], Json::array({2, 3}));
    EXPECT_EQ(tensor["bytes"], 24);
    EXPECT_EQ(tensor["stats"]["norm"], 5);
    EXPECT_EQ(tensor["stats"]["least"], -4);
    EXPECT_EQ(tensor["stats"]["not_finite"], 1);
  }
}

TEST_F(InspectCheckpointTest, ADamagedCheckpointHasNoJson) {
  std::string contents = *ReadFileToString(fs_, Shard());
  contents.back() ^= 1;
  ASSERT_THAT(WriteFileAtomically(fs_, Shard(), contents), IsOk());
  EXPECT_EQ(Run("--json --verify " + RunDirectory()), 22);
  EXPECT_THAT(output_, Not(HasSubstr("{")));
  EXPECT_EQ(Run("--json --stats " + RunDirectory()), 22);
  EXPECT_THAT(output_, Not(HasSubstr("{")));
}

TEST_F(InspectCheckpointTest, OtherFailuresHaveTheirCodes) {
  EXPECT_EQ(Run(""), 20);
  EXPECT_EQ(Run("--verfy x"), 20);
  EXPECT_EQ(Run(JoinPath(directory_, "nothing")), 20);
  EXPECT_THAT(output_, HasSubstr("nothing"));
  EXPECT_EQ(Run("--help"), 0);
  ASSERT_THAT(fs_.Remove(Shard()), IsOk());
  EXPECT_EQ(Run(RunDirectory()), 22);
  EXPECT_THAT(output_, HasSubstr(Shard()));
}

}  // namespace
}  // namespace megatron
