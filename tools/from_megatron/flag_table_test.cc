#include "tools/from_megatron/flag_table.h"

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/config/config_paths.h"
#include "tools/from_megatron/from_megatron_harness.h"

namespace megatron {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(FlagTableTest, EveryRowNamesAFieldAndAValueThatItTakes) {
  for (const FlagRow& row : AllFlagRows()) {
    if (!row.path.empty()) {
      EXPECT_THAT(AllPaths(*config::PretrainConfig::descriptor()), Contains(row.path)) << row.flag;
    }
    EXPECT_TRUE(!row.path.empty() || !row.why.empty()) << row.flag;
    EXPECT_THAT(row.flag, Not(HasSubstr("_"))) << "underscores count as dashes";
  }
}

// A field that is added under the name of a flag in the table makes the row wrong.
TEST(FlagTableTest, NoRowHidesAFieldOfItsName) {
  const std::set<absl::string_view> code = {"data-parallel-sharding-strategy"};
  for (const FlagRow& row : AllFlagRows()) {
    if (!row.value.empty() || code.count(row.flag) > 0) continue;
    EXPECT_EQ(FindField(row.flag), "") << "remove the row of --" << row.flag;
  }
}

TEST(FlagTableTest, EveryFlagNamesOneField) {
  std::map<std::string, std::string> paths;
  for (const std::string& path : AllPaths(*config::PretrainConfig::descriptor())) {
    const size_t dot = path.rfind('.');
    if (dot == std::string::npos || IsOurOwnField(path)) continue;
    if (absl::StartsWith(path, "train.rampup_batch_size.")) continue;
    const auto [other, is_new] = paths.emplace(path.substr(dot + 1), path);
    EXPECT_TRUE(is_new) << path << " and " << other->second;
  }
}

// megatron_defaults.txt says for each field of a flag what Megatron does without the flag.
TEST(FlagTableTest, EveryDefaultThatDiffersIsInTheTable) {
  std::map<std::string, std::string> defaults;
  for (absl::string_view line : absl::StrSplit(ReadTestFile("megatron_defaults.txt"), '\n')) {
    line = line.substr(0, line.find('#'));
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.empty()) continue;
    ASSERT_EQ(words.size(), 2) << line;
    EXPECT_TRUE(defaults.emplace(words[0], words[1]).second) << line;
  }
  std::set<std::string> in_table = {"parallel.ddp_bucket_size",  // these two are read by code
                                    "parallel.data_parallel_sharding_strategy"};
  for (const DefaultRow& row : DefaultRows()) in_table.emplace(row.path);
  const config::PretrainConfig empty;
  for (const std::string& path : LeafPaths(*config::PretrainConfig::descriptor())) {
    if (IsOurOwnField(path)) {
      EXPECT_EQ(defaults.count(path), 0) << path << " is our own field";
      continue;
    }
    const auto known = defaults.find(path);
    ASSERT_TRUE(known != defaults.end())
        << path << " is new: write Megatron's default into testdata/megatron_defaults.txt, or the "
        << "field into kOurOwn of flag_table.cc";
    const FieldRef ref = Resolve(empty, path);
    const std::string ours = ref.field->has_default_value() ? ValueText(ref) : "none";
    const std::string& theirs = known->second;
    EXPECT_EQ(theirs != ours, in_table.count(path) > 0)
        << path << " is " << theirs << " in Megatron and " << ours
        << " here: DefaultRows() of flag_table.cc says it where it differs";
    defaults.erase(known);
  }
  for (const auto& [path, value] : defaults) ADD_FAILURE() << "there is no field " << path;
}

}  // namespace
}  // namespace megatron
