// Runs the program as a user does. data_tools_test looks at its text, this at its JSON.

#include <sys/wait.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/data/indexed/indexed_dataset_writer.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::testing::HasSubstr;
using Json = nlohmann::json;

class InspectDatasetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = JoinPath(::testing::TempDir(), "inspect_dataset_test");
    ASSERT_THAT(fs_.RemoveTree(directory_), IsOk());
    ASSERT_THAT(fs_.CreateDirs(directory_), IsOk());
    auto writer = IndexedDatasetWriter::Create(fs_, Prefix(), TokenType::kU16);
    ASSERT_THAT(writer, IsOk());
    ASSERT_THAT((*writer)->AddDocument(std::vector<int32_t>{72, 105, 33}), IsOk());
    ASSERT_THAT((*writer)->AddDocument(std::vector<int32_t>{200, 9, 9, 9, 9, 9, 9, 9, 9}), IsOk());
    ASSERT_THAT((*writer)->Finalize(), IsOk());
  }

  // Returns the exit code; output_ is the program's stdout, errors_ its stderr.
  int Run(const std::string& flags) {
    const std::string out = JoinPath(directory_, "out"), err = JoinPath(directory_, "err");
    const std::string command = absl::StrCat("tools/inspect_dataset ", flags, " '", Prefix(),
                                             "' > '", out, "' 2> '", err, "'");
    const int status = std::system(command.c_str());
    output_ = ReadFileToString(fs_, out).value_or("");
    errors_ = ReadFileToString(fs_, err).value_or("");
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  std::string Prefix() const { return JoinPath(directory_, "tokens"); }

  FileSystem& fs_ = PosixFileSystem();
  std::string directory_, output_, errors_;
};

TEST_F(InspectDatasetTest, PrintsOneJsonObjectAndNothingElse) {
  ASSERT_EQ(Run("--json --verify"), 0) << errors_;
  const Json json = Json::parse(output_, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(json.is_object()) << output_;
  EXPECT_EQ(json["dataset"], Prefix());
  EXPECT_EQ(json["tokens"], 12);
  EXPECT_EQ(json["documents"], 2);
  EXPECT_EQ(json["sequences"], 2);
  EXPECT_EQ(json["modes"], false);
  EXPECT_EQ(json["verified"], true);
  EXPECT_EQ(
      json["histograms"]["tokens in a document"],
      Json::parse(R"([{"from": 2, "to": 3, "count": 1}, {"from": 8, "to": 15, "count": 1}])"));
  ASSERT_EQ(json["shown"].size(), 2u);
  EXPECT_EQ(json["shown"][0]["ids"], Json::parse("[[72, 105, 33]]"));
}

TEST_F(InspectDatasetTest, DocumentsAreTextWithATokenizer) {
  // The bytes of the second document are no UTF-8.
  ASSERT_EQ(Run("--json --tokenizer_type=ByteLevel --max_tokens=1 --first=1"), 0) << errors_;
  const Json json = Json::parse(output_, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(json.is_object()) << output_;
  EXPECT_EQ(json["shown"][0]["tokens"], 9);
  EXPECT_EQ(json["shown"][0]["text"], Json::array({"\xEF\xBF\xBD"}));
  EXPECT_FALSE(json.contains("verified"));
}

TEST_F(InspectDatasetTest, NothingIsPrintedAfterAnError) {
  EXPECT_EQ(Run("--json --fingerprint=12345678"), 21);
  EXPECT_EQ(output_, "");
  EXPECT_THAT(errors_, HasSubstr("not 12345678"));
  EXPECT_EQ(Run("--json --verify --tokenizer_type=NullTokenizer --vocab_size=100"), 21);
  EXPECT_EQ(output_, "");
}

}  // namespace
}  // namespace megatron
