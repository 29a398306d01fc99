// Runs the example as a user does.

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/pretrain_harness.h"

namespace megatron {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class OwnSectionTest : public PretrainProgramTest {
 protected:
  Outcome RunProgram(const Arguments& arguments) {
    const Arguments program = {ProgramPath("megatron/train/examples/pretrain_gpt_with_heartbeat")};
    const std::string log = Path("log.txt");
    return FinishProgram(StartProgram(Joined(program, arguments), log), log);
  }
  Outcome Train(const Arguments& arguments) {
    return RunProgram(Joined({absl::StrCat("--config=", Path("run.textproto"))}, arguments));
  }
  std::string File() const { return Path("alive"); }
};

TEST_F(OwnSectionTest, TheProgramDoesWhatItsSectionSays) {
  const Outcome outcome = Train({"--set=heartbeat.file=" + File(), "--set=heartbeat.interval=5"});
  EXPECT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  EXPECT_EQ(ReadTextFile(File()), "10\n");  // the run has 12 iterations
}

TEST_F(OwnSectionTest, RanksThatAreProcessesHaveTheSectionToo) {
  const Outcome outcome =
      Train({"--set=heartbeat={file: \"" + File() + "\" interval: 6}",
             "--set=parallel.data_parallel_size=2", "--set=parallel.ranks_as=processes"});
  EXPECT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  EXPECT_EQ(ReadTextFile(File()), "12\n");
}

TEST_F(OwnSectionTest, WithoutTheSectionItIsPretrainGpt) {
  EXPECT_EQ(Train({}).exit_code, kExitDone);
  EXPECT_EQ(ReadTextFile(File()), "");
}

TEST_F(OwnSectionTest, MistakesInTheSectionAreThoseOfTheConfiguration) {
  const Outcome range = Train({"--set=heartbeat.interval=0"});
  EXPECT_EQ(range.exit_code, kExitConfig);
  EXPECT_THAT(range.output, AllOf(HasSubstr("heartbeat.interval = 0: expects an integer from 1"),
                                  HasSubstr("heartbeat.file: is required by heartbeat")));
  const Outcome own = Train({"--set=heartbeat.file=here/", "--dry_run"});
  EXPECT_EQ(own.exit_code, kExitConfig);
  EXPECT_THAT(own.output, HasSubstr("error: heartbeat.file = here/ is a directory"));
}

TEST_F(OwnSectionTest, TheSectionIsExplainedPlannedAndCompleted) {
  EXPECT_THAT(RunProgram({"--explain", "heartbeat", "interval"}).output,
              AllOf(HasSubstr("heartbeat\n\nA file that shows to a cluster's scheduler"),
                    HasSubstr("heartbeat.interval\n  takes an integer from 1"),
                    HasSubstr("How often the file is written.")));
  EXPECT_THAT(Train({"--set=heartbeat.file=" + File(), "--dry_run=full"}).output,
              HasSubstr("heartbeat {\n  file: "));
  EXPECT_THAT(Train({"--set=heartbeat={file: \"x\" interval: 3}", "--dry_run"}).output,
              HasSubstr("\nheartbeat    interval=3\n"));
  EXPECT_THAT(RunProgram({"--completion=bash"}).output,
              AllOf(HasSubstr(" heartbeat.interval="),
                    HasSubstr("complete -F _pretrain_gpt_with_heartbeat ")));
}

TEST_F(OwnSectionTest, PretrainGptContinuesARunOfTheProgram) {
  ASSERT_EQ(Train({SaveTo("save"), "--set=heartbeat.file=" + File()}).exit_code, kExitDone);
  EXPECT_THAT(Checkpoint("save").at("manifest.json"), HasSubstr("heartbeat"));
  // pretrain_gpt, which lacks the section, continues the run.
  const Outcome longer = Run({SaveTo("save"), "--set=train.train_iters=14"});
  EXPECT_EQ(longer.exit_code, kExitDone) << longer.output;
  EXPECT_THAT(longer.output, HasSubstr("at iteration 12\n"));
}

}  // namespace
}  // namespace megatron
