#include "megatron/data/io/text_input.h"

#include <sys/resource.h>

#include <atomic>
#include <string>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TextInputTest : public testing::Test {
 protected:
  TextInputTest() : folder_(testing::TempDir() + "/text_input") {
    EXPECT_THAT(PosixFileSystem().RemoveTree(folder_), IsOk());
    EXPECT_THAT(PosixFileSystem().CreateDirs(folder_), IsOk());
    for (const char* name : {"b.jsonl", "a.jsonl", "c.txt", "[x].jsonl"}) {
      EXPECT_THAT(WriteFileAtomically(PosixFileSystem(), Path(name), "12345"), IsOk());
    }
  }

  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }

  const std::string folder_;
};

TEST_F(TextInputTest, PatternsGiveFilesInTheOrderOfTheirNames) {
  const auto inputs = FindTextInputs({Path("c.txt"), Path("*.jsonl")});
  ASSERT_THAT(inputs, IsOk());
  EXPECT_THAT(inputs->paths,
              ElementsAre(Path("c.txt"), Path("[x].jsonl"), Path("a.jsonl"), Path("b.jsonl")));
  EXPECT_EQ(inputs->stored_bytes, 20);
}

TEST_F(TextInputTest, ThePathOfAnExistingFileIsNoPattern) {
  const auto inputs = FindTextInputs({Path("[x].jsonl")});
  ASSERT_THAT(inputs, IsOk());
  EXPECT_THAT(inputs->paths, ElementsAre(Path("[x].jsonl")));
}

TEST_F(TextInputTest, TheSizeOfStdinIsUnknown) {
  const auto inputs = FindTextInputs({Path("a.jsonl"), "-"});
  ASSERT_THAT(inputs, IsOk());
  EXPECT_EQ(inputs->stored_bytes, -1);
  EXPECT_THAT(FindTextInputs({"-", "-"}), StatusIs(absl::StatusCode::kInvalidArgument));
}

// No permission stops a test that runs as root, but a process that may open no more files lists no
// folder either.
TEST_F(TextInputTest, AFolderThatCannotBeListedIsAnError) {
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto inputs = FindTextInputs({Path("c.txt"), Path("*.jsonl")});
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_THAT(inputs.status().message(), HasSubstr(absl::StrCat("list '", folder_, "'")));
}

TEST_F(TextInputTest, PatternsThatMatchNothingAreErrors) {
  EXPECT_THAT(FindTextInputs({Path("a.jsonl"), Path("*.csv")}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("*.csv")));
  EXPECT_THAT(FindTextInputs({Path("d.jsonl")}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("d.jsonl")));
  EXPECT_THAT(FindTextInputs({}), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(TextInputTest, OpenedFilesGiveTheirContents) {
  const std::atomic<bool> never{false};
  const auto source = OpenTextInput(Path("a.jsonl"), &never);
  ASSERT_THAT(source, IsOk());
  std::string buffer(10, '\0');
  EXPECT_THAT((*source)->Read(absl::MakeSpan(buffer)), IsOkAndHolds(5u));
  EXPECT_EQ(buffer.substr(0, 5), "12345");
}

}  // namespace
}  // namespace megatron
