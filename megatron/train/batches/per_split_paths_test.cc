#include "megatron/train/batches/per_split_paths.h"

#include <string>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(PerSplitPathsTest, ReadsListsStringsAndNull) {
  const auto paths = ParsePerSplitPaths(
      R"({"train": ["0.25", "a b", 0.75, "c"], "valid": " d\t e ", "test": null})");
  ASSERT_THAT(paths, IsOk());
  EXPECT_THAT(paths->train, ElementsAre("0.25", "a b", "0.75", "c"));
  EXPECT_THAT(paths->valid, ElementsAre("d", "e"));
  EXPECT_THAT(paths->test, IsEmpty());
  EXPECT_THAT(ParsePerSplitPaths(R"({"train": ["a"]})"), IsOk());
}

TEST(PerSplitPathsTest, ErrorsAreNamed) {
  const auto is_wrong = [](const std::string& what) {
    return StatusIs(absl::StatusCode::kDataLoss, HasSubstr(what));
  };
  EXPECT_THAT(ParsePerSplitPaths(""), is_wrong("no JSON object"));
  EXPECT_THAT(ParsePerSplitPaths("[1]"), is_wrong("no JSON object"));
  EXPECT_THAT(ParsePerSplitPaths(R"({"train": ["a"]} x)"), is_wrong("no JSON object"));
  EXPECT_THAT(ParsePerSplitPaths("{}"), is_wrong("\"train\" names nothing"));
  EXPECT_THAT(ParsePerSplitPaths(R"({"train": " "})"), is_wrong("\"train\" names nothing"));
  EXPECT_THAT(ParsePerSplitPaths(R"({"train": ["a"], "tset": ["b"]})"),
              is_wrong("\"tset\" is none"));
  EXPECT_THAT(ParsePerSplitPaths(R"({"train": 3})"), is_wrong("neither a list"));
  EXPECT_THAT(ParsePerSplitPaths(R"({"train": [["a"]]})"), is_wrong("something else"));
  EXPECT_THAT(ParsePerSplitPaths(R"({"train": ["a", ""]})"), is_wrong("empty prefix"));
  const std::string deep(100000, '[');
  EXPECT_THAT(ParsePerSplitPaths(absl::StrCat("{\"train\": ", deep)), is_wrong("no JSON object"));
}

}  // namespace
}  // namespace megatron
