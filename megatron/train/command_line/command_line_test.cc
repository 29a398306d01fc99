#include "megatron/train/command_line/command_line.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/status_matchers.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Action = CommandLine::Action;

auto Refused(const std::string& why) {
  return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why));
}

TEST(ParseCommandLineTest, ReadsBothSpellingsOfAValue) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--config=a", "--set=x=1", "--set", "y={z: 2}", "--dry_run"},
        std::vector<std::string>{"--dry_run", "--config", "a", "--set", "x=1", "--set=y={z: 2}"}}) {
    const absl::StatusOr<CommandLine> line = ParseCommandLine(arguments);
    ASSERT_THAT(line, IsOk());
    EXPECT_EQ(line->action, Action::kRun);
    EXPECT_EQ(line->config, "a");
    EXPECT_THAT(line->overrides, ElementsAre("x=1", "y={z: 2}"));
    EXPECT_EQ(line->dry_run, DryRun::kScreen);
  }
}

TEST(ParseCommandLineTest, KnowsThreeKindsOfDryRun) {
  EXPECT_EQ(ParseCommandLine({"--config=a"})->dry_run, DryRun::kOff);
  EXPECT_EQ(ParseCommandLine({"--config=a", "--dry_run=full"})->dry_run, DryRun::kFull);
  EXPECT_EQ(ParseCommandLine({"--config=a", "--json", "--dry_run"})->dry_run, DryRun::kJson);
  EXPECT_THAT(ParseCommandLine({"--config=a", "--dry_run=all"}), Refused("--dry_run=full"));
  EXPECT_THAT(ParseCommandLine({"--config=a", "--json"}), Refused("without --dry_run"));
  EXPECT_THAT(ParseCommandLine({"--config=a", "--json", "--dry_run=full"}), Refused("--json"));
}

TEST(ParseCommandLineTest, ExplainsSeveralFields) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--explain", "a", "b", "c"},
        std::vector<std::string>{"--explain=a", "b", "--explain", "c"}}) {
    const absl::StatusOr<CommandLine> line = ParseCommandLine(arguments);
    ASSERT_THAT(line, IsOk());
    EXPECT_EQ(line->action, Action::kExplain);
    EXPECT_THAT(line->fields, ElementsAre("a", "b", "c"));
  }
}

TEST(ParseCommandLineTest, ProfileIsAnOverride) {
  EXPECT_THAT(ParseCommandLine({"--config=a", "--profile"})->overrides,
              ElementsAre("logging.profile=true"));
}

TEST(ParseCommandLineTest, HelpIsGivenWhateverElseIsWrong) {
  EXPECT_EQ(ParseCommandLine({"--confog", "--help"})->action, Action::kHelp);
  EXPECT_EQ(ParseCommandLine({"-h"})->action, Action::kHelp);
}

TEST(ParseCommandLineTest, RefusesWhatWouldHaveNoEffect) {
  EXPECT_THAT(ParseCommandLine({"--explain", "a", "--config=b"}),
              Refused("--config has no effect with --explain"));
  EXPECT_THAT(ParseCommandLine({"--list_configs", "--json"}), Refused("--json has no effect with"));
  EXPECT_THAT(ParseCommandLine({"--completion=bash", "--list_configs"}), Refused("has no effect"));
}

TEST(ParseCommandLineTest, ALaterConfigurationWins) {
  EXPECT_EQ(ParseCommandLine({"--config=a", "--config=b"})->config, "b");
}

TEST(ParseCommandLineTest, RefusesWhatItDoesNotKnow) {
  EXPECT_THAT(ParseCommandLine({}), Refused("--config is missing"));
  EXPECT_THAT(ParseCommandLine({"--config="}), Refused("--config is missing"));
  EXPECT_THAT(ParseCommandLine({"--set"}), Refused("--set needs a value"));
  EXPECT_THAT(ParseCommandLine({"--config", "--dry_run"}), Refused("--config needs a value"));
  EXPECT_THAT(ParseCommandLine({"--profile=1"}), Refused("--profile takes no value"));
  EXPECT_THAT(ParseCommandLine({"--dry-run"}), Refused("did you mean --dry_run?"));
  EXPECT_THAT(ParseCommandLine({"--confg=x"}), Refused("did you mean --config?"));
  EXPECT_THAT(ParseCommandLine({"gpt_demo"}), Refused("did you mean --config=gpt_demo?"));
  EXPECT_THAT(ParseCommandLine({"train.seed=2"}), Refused("did you mean --set train.seed=2?"));
  EXPECT_THAT(ParseCommandLine({"--config=a", "full"}), Refused("unknown argument full"));
}

TEST(UsageTest, NamesEveryFlagInLinesThatFit) {
  for (const size_t columns : {80, 100}) {
    const std::string usage = Usage({"pretrain_gpt", "GPT", "gpt_demo"}, columns);
    for (const CommandLineFlag& flag : CommandLineFlags())
      EXPECT_THAT(usage, HasSubstr(std::string(flag.name)));
    for (const absl::string_view line : absl::StrSplit(usage, '\n'))
      EXPECT_LE(line.size(), columns) << line;
    EXPECT_THAT(usage, AllOf(HasSubstr("--dry_run[=full]"), HasSubstr("--set FIELD=VALUE")));
  }
}

}  // namespace
}  // namespace megatron
