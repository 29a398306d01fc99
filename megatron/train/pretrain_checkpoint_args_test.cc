// Tests of runs that take their model from a checkpoint.
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
using ::testing::Not;

class PretrainCheckpointArgsTest : public PretrainProgramTest {
 protected:
  // Saves a model of another shape than that of the tests' configuration.
  void Train() const {
    const Outcome outcome =
        Run({SaveTo("first"), "--set=model.num_layers=3", "--set=model.swiglu=true",
             "--set=model.ffn_hidden_size=48", "--set=train.exit_interval=6"});
    ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  }
  Arguments From(const std::string& save) const {
    return {SaveTo(save), absl::StrCat("--set=checkpoint.load=", Path("first")),
            "--set=checkpoint.use_checkpoint_args=true"};
  }
};

TEST_F(PretrainCheckpointArgsTest, TheModelIsThatOfTheCheckpoint) {
  Train();
  const Arguments its_own = {"--set=model.num_layers=3", "--set=model.swiglu=true",
                             "--set=model.ffn_hidden_size=48"};
  ASSERT_EQ(Run(Joined(From("written"), Joined(its_own, {"--set=checkpoint.use_checkpoint_args="})))
                .exit_code,
            kExitDone);
  const Outcome taken = Run(From("taken"));
  ASSERT_EQ(taken.exit_code, kExitDone) << taken.output;
  ExpectEqualCheckpoints("taken", "written");
  // What the configuration says otherwise is told, and nothing else.
  EXPECT_THAT(taken.output, AllOf(HasSubstr(absl::StrCat("model: that of ", Path("first"))),
                                  HasSubstr("  model.num_layers is 3 and not 2 ("),
                                  Not(HasSubstr("model.hidden_size is"))));

  // The section may be missing. The same command continues what it has saved itself.
  for (int i = 0; i < 2; ++i) {
    const Outcome without =
        Run(Joined(From("without"), {"--set=model=", "--set=train.exit_interval=9"}));
    ASSERT_EQ(without.exit_code, kExitDone) << without.output;
    EXPECT_THAT(without.output, Not(HasSubstr("  model.")));
  }
  ExpectEqualCheckpoints("without", "written");
}

TEST_F(PretrainCheckpointArgsTest, RanksThatAreProcessesAndPlansTakeItToo) {
  Train();
  const Arguments two = {"--set=parallel.data_parallel_size=2"};
  const Outcome processes =
      Run(Joined(From("processes"), Joined(two, {"--set=parallel.ranks_as=processes"})));
  ASSERT_EQ(processes.exit_code, kExitDone) << processes.output;
  EXPECT_EQ(CountOf(processes.output, "model: that of "), 1) << processes.output;
  ASSERT_EQ(Run(Joined(From("threads"), two)).exit_code, kExitDone);
  ExpectEqualCheckpoints("processes", "threads");

  const Outcome plan = Run(Joined(From("plan"), {"--dry_run=full"}));
  ASSERT_EQ(plan.exit_code, kExitDone) << plan.output;
  EXPECT_THAT(plan.output, AllOf(HasSubstr("model: that of "), HasSubstr("ffn_hidden_size: 48")));
}

TEST_F(PretrainCheckpointArgsTest, WithoutACheckpointThereIsNoModel) {
  const Outcome none = Run({SaveTo("save"), "--set=checkpoint.use_checkpoint_args=true"});
  EXPECT_EQ(none.exit_code, kExitConfig) << none.output;
  EXPECT_THAT(none.output, HasSubstr("checkpoint.use_checkpoint_args: there is no checkpoint in"));
  const Outcome missing = Run(From("other"));
  EXPECT_EQ(missing.exit_code, kExitConfig) << missing.output;
  EXPECT_THAT(missing.output, HasSubstr("checkpoint.load = "));
}

}  // namespace
}  // namespace megatron
