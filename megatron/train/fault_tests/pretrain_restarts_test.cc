// A run with parallel.restarts outlives its ranks: whatever is killed, one command ends with the
// bytes of the undisturbed run.

#include <signal.h>

#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/pretrain_harness.h"

namespace megatron {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const Arguments kTwoRanks = {"--set=parallel.ranks_as=processes",
                             "--set=parallel.data_parallel_size=2",
                             "--set=parallel.use_distributed_optimizer=true",
                             "--set=parallel.restarts=9",
                             "--set=checkpoint.save_interval=1",
                             "--set=checkpoint.keep_last=2",
                             "--set=train.micro_batch_size=1"};

class PretrainRestartsTest : public PretrainProgramTest {
 protected:
  // Kills one of the ranks that a program has started, when it has started any.
  static void KillARank(pid_t pid, std::mt19937* random) {
    std::vector<pid_t> ranks = ChildrenOf(pid);
    while (ranks.empty() && !HasEnded(pid)) {
      absl::SleepFor(absl::Milliseconds(5));
      ranks = ChildrenOf(pid);
    }
    if (!ranks.empty()) kill(ranks[(*random)() % ranks.size()], SIGKILL);
  }

  // Returns when the log has a step behind the text.
  static void WaitForSteps(const std::string& text, const std::string& log) {
    const absl::Time until = absl::Now() + absl::Seconds(60);
    while (absl::Now() < until) {
      const std::string printed = ReadTextFile(log);
      const size_t at = printed.find(text);
      if (at != std::string::npos && printed.find("iteration ", at) != std::string::npos) return;
      absl::SleepFor(absl::Milliseconds(10));
    }
    ADD_FAILURE() << "no step behind '" << text << "':\n" << ReadTextFile(log);
  }
};

TEST_F(PretrainRestartsTest, OneCommandOutlivesItsRanks) {
  const uint32_t seed = std::random_device()();
  std::mt19937 random(seed);
  const std::string log = Path("log.txt");
  const Arguments args = Joined(kTwoRanks, {"--set=train.train_iters=60"});
  const absl::Time begin = absl::Now();
  ASSERT_EQ(Run(Joined({SaveTo("whole")}, args)).exit_code, kExitDone);
  const double seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  const pid_t pid = Start(Joined({SaveTo("killed")}, args), log);
  // The first kill is early: where the first run was slow and this one is fast, others may be late.
  WaitForSteps("training: ", log);
  KillARank(pid, &random);
  for (int kills = 0; kills < 3; ++kills) {
    absl::SleepFor(absl::Seconds(seconds * std::uniform_real_distribution<>(0, 0.6)(random)));
    KillARank(pid, &random);
  }
  const Outcome outcome = FinishProgram(pid, log);
  ASSERT_EQ(outcome.exit_code, kExitDone) << "seed " << seed << "\n" << outcome.output;
  EXPECT_GE(CountOf(outcome.output, "; starting again in "), 1);
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("(1 of 9)"), HasSubstr("] restart ")));
  ExpectEqualCheckpoints("whole", "killed");
}

TEST_F(PretrainRestartsTest, ARequestToEndIsNoFailure) {
  const std::string log = Path("log.txt");
  const pid_t pid =
      Start(Joined({SaveTo("asked")}, Joined(kTwoRanks, {"--set=train.train_iters=1000000"})), log);
  WaitFor("iteration        1/", log);
  std::mt19937 random(1);
  KillARank(pid, &random);
  WaitForSteps("restart 1: rank ", log);
  kill(pid, SIGTERM);
  const Outcome outcome = FinishProgram(pid, log);
  EXPECT_EQ(outcome.exit_code, kExitSavedOnSignal) << outcome.output;
  EXPECT_THAT(outcome.output, Not(HasSubstr("(2 of 9)")));
}

// While a run waits to be started again, none of its ranks is there to keep its directory.
TEST_F(PretrainRestartsTest, AnotherRunDoesNotGetTheDirectoryMeanwhile) {
  const std::string log = Path("log.txt");
  const Arguments args =
      Joined({SaveTo("held")}, Joined(kTwoRanks, {"--set=train.train_iters=1000000"}));
  const pid_t pid = Start(args, log);
  for (int failures = 1; failures <= 3; ++failures) {  // the wait doubles each time
    WaitForSteps(failures == 1 ? "training: " : absl::StrCat("restart ", failures - 1, ": rank "),
                 log);
    for (const pid_t rank : ChildrenOf(pid)) kill(rank, SIGKILL);
    WaitFor(absl::StrCat("(", failures, " of 9)"), log);
  }
  const Outcome other = Run(args);
  EXPECT_EQ(other.exit_code, kExitConfig) << other.output;
  EXPECT_THAT(other.output, HasSubstr(absl::StrCat("that of pretrain_gpt (process ", pid, " on ")));
  WaitForSteps("restart 3: rank ", log);
  kill(pid, SIGTERM);
  const Outcome outcome = FinishProgram(pid, log);
  EXPECT_EQ(outcome.exit_code, kExitSavedOnSignal) << outcome.output;
}

// The run saves nothing that would make the directory anew.
TEST_F(PretrainRestartsTest, ARunWhoseDirectoryHasVanishedDoesNotBeginAnew) {
  const std::string log = Path("log.txt");
  const pid_t pid = Start(
      {SaveTo("here"), "--set=parallel.ranks_as=processes", "--set=parallel.data_parallel_size=2",
       "--set=parallel.restarts=9", "--set=train.train_iters=1000000"},
      log);
  WaitForSteps("training: ", log);
  EXPECT_EQ(std::rename(Path("here").c_str(), Path("elsewhere").c_str()), 0);
  std::mt19937 random(1);
  KillARank(pid, &random);
  const Outcome outcome = FinishProgram(pid, log);
  EXPECT_EQ(outcome.exit_code, kExitIo) << outcome.output;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("(1 of 9)"), Not(HasSubstr("(2 of 9)"))));
  EXPECT_THAT(outcome.output, HasSubstr(Path("here") + ": the directory that this run had"));
}

TEST_F(PretrainRestartsTest, AWrongConfigurationIsNotTriedAgain) {
  const Outcome outcome =
      Run(Joined({SaveTo("wrong")}, Joined(kTwoRanks, {"--set=checkpoint.load=\"nowhere\""})));
  EXPECT_EQ(outcome.exit_code, kExitConfig);
  EXPECT_THAT(outcome.output, Not(HasSubstr("starting again")));
}

TEST_F(PretrainRestartsTest, WithoutCheckpointsThereAreNoRestarts) {
  const Outcome outcome = Run({"--set=parallel.ranks_as=processes",
                               "--set=parallel.data_parallel_size=2", "--set=parallel.restarts=3"});
  EXPECT_EQ(outcome.exit_code, kExitConfig);
  EXPECT_THAT(outcome.output,
              HasSubstr("parallel.restarts = 3: has no effect without checkpoint.save"));
}

}  // namespace
}  // namespace megatron
