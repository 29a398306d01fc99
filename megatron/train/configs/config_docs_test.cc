// docs/configuration.md says of every field what the schema says.

#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/config/config_paths.h"
#include "megatron/train/configs/config_shipped.h"

namespace megatron {
namespace {

using ::testing::AnyOf;
using ::testing::Eq;
using ::testing::HasSubstr;

std::string Page() {
  std::ifstream file("docs/configuration.md");
  EXPECT_TRUE(file.is_open());
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The table under "### section".
absl::string_view Section(absl::string_view page, absl::string_view section) {
  const size_t begin = page.find(absl::StrCat("### ", section, "\n"));
  EXPECT_NE(begin, absl::string_view::npos) << "no section " << section;
  if (begin == absl::string_view::npos) return "";
  return page.substr(begin, page.find("\n#", begin + 1) - begin);
}

TEST(ConfigDocsTest, EveryFieldIsThereWithItsDefault) {
  const std::string page = Page();
  const config::PretrainConfig empty;
  for (const std::string& path : LeafPaths(*config::PretrainConfig::descriptor())) {
    const std::pair<absl::string_view, absl::string_view> name =
        absl::StrSplit(path, absl::MaxSplits('.', 1));
    const absl::string_view section = Section(page, name.first);
    const std::string row = absl::StrCat("| `", name.second, "` | ");
    const size_t begin = section.find(row);
    ASSERT_NE(begin, absl::string_view::npos) << path << " has no row";
    const absl::string_view rest = section.substr(begin + row.size());
    const std::string value(rest.substr(0, rest.find(" |")));
    const FieldRef ref = Resolve(empty, path);
    if (ref.field->has_default_value()) {
      EXPECT_EQ(value, ValueText(ref)) << path;
    } else {
      EXPECT_THAT(value, AnyOf(Eq("required"), Eq("computed"), Eq("unset"))) << path;
    }
  }
}

TEST(ConfigDocsTest, EveryShippedConfigIsThere) {
  const std::string page = Page();
  for (const ShippedConfig& shipped : ShippedConfigs()) {
    const std::pair<absl::string_view, absl::string_view> name = absl::StrSplit(shipped.name, '.');
    EXPECT_THAT(page, HasSubstr(absl::StrCat("| `", name.first, "` |")));
  }
}

}  // namespace
}  // namespace megatron
