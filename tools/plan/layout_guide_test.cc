#include "tools/plan/layout_guide.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/plan/csv_table.h"
#include "megatron/plan/plan_facts.h"

namespace megatron {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

absl::StatusOr<std::string> Guide(const GuideOptions& options) {
  return LayoutGuide(*ParsePlanFacts(BuiltInPlanFacts()),
                     *MeasuredKernels::Parse(*ParseCsv(BuiltInMeasuredKernels())), options);
}

// docs/layout_guide.md has the same rows: where this fails, let plan --guide write it again.
TEST(LayoutGuideTest, ThePageHasTheRowsThatTheSearchFinds) {
  GuideOptions options;
  options.models = {"GPT-125M", "GPT-7.5B"};
  options.gpus = {"H100"};
  options.counts = {8};
  const auto guide = Guide(options);
  ASSERT_TRUE(guide.ok()) << guide.status();
  const auto page = ReadFileToString(PosixFileSystem(), "docs/layout_guide.md");
  ASSERT_TRUE(page.ok()) << page.status();
  const std::vector<std::string> lines = absl::StrSplit(*page, '\n');
  int rows = 0;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(*guide, '\n'))) {
    if (line.rfind("| GPT-", 0) != 0 || line.find("| 8 | ") == std::string::npos) continue;
    ++rows;
    EXPECT_THAT(lines, Contains(line));
  }
  EXPECT_EQ(rows, 2);
  EXPECT_THAT(*guide, HasSubstr("| tensor parallelism | 0 of 2 |"));
}

TEST(LayoutGuideTest, WhatFitsNowhereHasARowAndAnUnknownNameIsRefused) {
  GuideOptions options;
  options.models = {"GPT-39B"};
  options.gpus = {"A100"};
  options.counts = {1};
  const auto guide = Guide(options);
  ASSERT_TRUE(guide.ok()) << guide.status();
  EXPECT_THAT(*guide, HasSubstr("| GPT-39B | 1 | fits with no layout | | | |\n"));
  EXPECT_THAT(*guide, HasSubstr("| tensor parallelism | 0 of 0 |"));
  options.models = {"GPT-4"};
  EXPECT_EQ(Guide(options).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Guide(options).status().message(), HasSubstr("'GPT-4'; it has: GPT-125M, "));
}

}  // namespace
}  // namespace megatron
