#include "megatron/train/list_configs.h"

#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/configs/config_shipped.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::SizeIs;

TEST(ListConfigsTest, ASummaryIsTheFirstSentenceOrWhatIsBeforeItsColon) {
  EXPECT_EQ(ConfigSummary("# A model of 1.5 parts. It learns.\n"), "A model of 1.5 parts");
  EXPECT_EQ(ConfigSummary("# A model, by\n# a recipe:\n#\n#   command\n"), "A model, by a recipe");
  EXPECT_EQ(ConfigSummary("# A model\n\nmodel {}\n"), "A model");
  EXPECT_THAT(ConfigSummary("model {}\n"), IsEmpty());
}

TEST(ListConfigsTest, EveryShippedConfigHasALineWithASummary) {
  const absl::StatusOr<std::string> table = ListConfigs();
  ASSERT_THAT(table, IsOk());
  const std::vector<std::string> lines = absl::StrSplit(*table, '\n', absl::SkipEmpty());
  ASSERT_THAT(lines, SizeIs(ShippedConfigs().size() + 1));
  for (size_t i = 0; i < ShippedConfigs().size(); ++i) {
    const ShippedConfig& shipped = ShippedConfigs()[i];
    EXPECT_TRUE(absl::StartsWith(lines[i + 1], absl::StripSuffix(shipped.name, ".textproto")));
    EXPECT_THAT(ConfigSummary(shipped.text), Not(IsEmpty())) << shipped.name;
    EXPECT_TRUE(absl::EndsWith(lines[i + 1], ConfigSummary(shipped.text))) << lines[i + 1];
  }
}

TEST(ListConfigsTest, KnowsTheConfigurationsOfAKindOfModel) {
  EXPECT_THAT(ConfigsOfModel("t5"), IsOkAndHolds(ElementsAre("t5_220m", "t5_770m", "t5_demo")));
  EXPECT_THAT(ConfigsOfModel("none"), IsOkAndHolds(IsEmpty()));
}

TEST(ListConfigsTest, ALineSaysKindParametersAndLayout) {
  const absl::StatusOr<std::string> table = ListConfigs();
  ASSERT_THAT(table, IsOk());
  std::string line;
  for (const std::string& candidate : std::vector<std::string>(absl::StrSplit(*table, '\n'))) {
    if (absl::StartsWith(candidate, "gpt3_857m ")) line = candidate;
  }
  EXPECT_THAT(line, MatchesRegex("gpt3_857m +gpt +355,919,872 +tensor 2 x pipeline 2 x data 1 +"
                                 "Megatron's example of a GPT-3 on four ranks"));
}

}  // namespace
}  // namespace megatron
