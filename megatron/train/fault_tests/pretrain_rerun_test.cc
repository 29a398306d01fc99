// Runs in which a rank computes something wrong, and steps are computed again: the rank is named,
// and training goes on as if nothing had been, or ends.

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/pretrain_harness.h"

namespace megatron {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class PretrainRerunTest : public PretrainProgramTest {
 protected:
  static Arguments Base(int data_size) {
    return {absl::StrCat("--set=parallel.data_parallel_size=", data_size),
            "--set=train.global_batch_size=6", "--set=train.micro_batch_size=1",
            "--set=train.train_iters=8", "--set=train.log_interval=1"};
  }

  // Runs with a fault, and steps computed again.
  Outcome RunWithFault(const std::string& fault, const Arguments& args) {
    Arguments command =
        Command(Joined({SaveTo("faulty"), "--set=train.rerun_mode=validate_results"}, args));
    command[0] = ProgramPath("megatron/train/fault_tests/pretrain_gpt_with_faults");
    const std::string log = Path("log.txt");
    return FinishProgram(StartProgram(command, log, {{"MEGATRON_TEST_FAULT", fault}}), log);
  }
};

TEST_F(PretrainRerunTest, OneFlippedBitIsNamedAndChangesNothing) {
  for (const int data_size : {1, 3}) {
    SCOPED_TRACE(data_size);
    const std::string whole = absl::StrCat("whole", data_size);
    ASSERT_EQ(Run(Joined({SaveTo(whole)}, Base(data_size))).exit_code, kExitDone);
    const std::string rank = absl::StrCat(data_size - 1);
    // Steps 2, 4, 6 and 8 are computed again: twice on one rank, and four times on three.
    const Outcome outcome = RunWithFault(absl::StrCat("flip reduce ", rank, " 1"),
                                         Joined(Base(data_size), {"--set=train.rerun_interval=2"}));
    ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("the fault begins"));
    EXPECT_THAT(outcome.output, HasSubstr("WARNING: iteration 2: the step had other results once"));
    EXPECT_THAT(outcome.output, HasSubstr(absl::StrCat("rank ", rank, " on ")));
    ExpectEqualCheckpoints(whole, "faulty");
    ASSERT_EQ(std::system(absl::StrCat("rm -r ", Path("faulty")).c_str()), 0);
  }
}

TEST_F(PretrainRerunTest, OneNanIsNamedAndNoStepIsSkipped) {
  ASSERT_EQ(Run(Joined({SaveTo("whole")}, Base(3))).exit_code, kExitDone);
  const Outcome outcome = RunWithFault("nan reduce 1 4", Base(3));
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("WARNING: iteration 5: the step had other results once"));
  EXPECT_THAT(outcome.output, HasSubstr("rank 1 on "));
  EXPECT_THAT(outcome.output, Not(HasSubstr("changed no weight")));
  ExpectEqualCheckpoints("whole", "faulty");
}

TEST_F(PretrainRerunTest, ARankThatAlwaysErrsEndsTheRun) {
  const Outcome outcome =
      RunWithFault("flip_always reduce 2 0", Joined(Base(3), {"--set=train.rerun_interval=4"}));
  EXPECT_EQ(outcome.exit_code, kExitValidationFailed) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("iteration 4: of the same samples rank 2 on "));
  EXPECT_THAT(outcome.output, HasSubstr("(a persistent error)"));
}

TEST_F(PretrainRerunTest, StatisticsAreReported) {
  const Outcome outcome =
      RunWithFault("flip reduce 1 6", Joined(Base(2), {"--set=train.rerun_mode=report_stats"}));
  EXPECT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  EXPECT_THAT(outcome.output,
              HasSubstr("iteration 4: the step has other results when it is computed again"));
  EXPECT_THAT(outcome.output, HasSubstr("1 of 8 iterations had other results when they were "
                                        "computed again"));
}

}  // namespace
}  // namespace megatron
