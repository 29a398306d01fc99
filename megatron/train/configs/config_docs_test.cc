// Tests that docs/configuration.md says about every field what the schema says, and docs/metrics.md
// about every metric what the table of metrics says, and that the settings of docs/models.md are
// accepted.

#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/config/config_reference.h"
#include "megatron/train/config/page_part.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/configs/config_shipped.h"
#include "megatron/train/metrics/metric_table.h"

namespace megatron {
namespace {

using ::testing::HasSubstr;

std::string Page(const std::string& path = "docs/configuration.md") {
  std::ifstream file(path);
  EXPECT_TRUE(file.is_open());
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(ConfigDocsTest, TheReferenceIsWhatTheSchemaSays) {
  const std::string page = Page();
  const absl::StatusOr<std::string> made = WithReference(page);
  ASSERT_THAT(made, absl_testing::IsOk());
  EXPECT_EQ(*made, page) << "write it anew with: bazel run //megatron/train/configs:update_docs";
}

TEST(ConfigDocsTest, TheMetricsAreThoseOfTheTable) {
  const std::string page = Page("docs/metrics.md");
  const absl::StatusOr<std::string> made = WithPart(page, "metrics", MetricReference());
  ASSERT_THAT(made, absl_testing::IsOk());
  EXPECT_EQ(*made, page) << "write it anew with: bazel run //megatron/train/configs:update_docs";
}

TEST(ConfigDocsTest, EveryShippedConfigIsThere) {
  const std::string page = Page();
  for (const ShippedConfig& shipped : ShippedConfigs()) {
    const std::pair<absl::string_view, absl::string_view> name = absl::StrSplit(shipped.name, '.');
    EXPECT_THAT(page, HasSubstr(absl::StrCat("| `", name.first, "` |")));
  }
}

// A block of settings is lines that begin with --set, and those that a backslash continues.
TEST(ConfigDocsTest, TheSettingsOfTheModelsPageGoWithGptDemo) {
  std::vector<std::vector<std::string>> blocks;
  bool continues = false;
  const std::string page = Page("docs/models.md");
  for (const absl::string_view line : absl::StrSplit(page, '\n')) {
    const bool begins = absl::StartsWith(line, "    --set ");
    if (begins && !continues) blocks.emplace_back();
    if (begins) {
      for (const absl::string_view word : absl::StrSplit(line, ' ')) {
        if (absl::StrContains(word, '=')) blocks.back().emplace_back(word);
      }
    }
    continues = begins && absl::EndsWith(line, "\\");
  }
  EXPECT_GE(blocks.size(), 8u);
  for (const std::vector<std::string>& settings : blocks) {
    EXPECT_THAT(LoadConfig("gpt_demo", settings, ConfigPurpose::kDryRun), absl_testing::IsOk())
        << absl::StrJoin(settings, " ");
  }
}

}  // namespace
}  // namespace megatron
