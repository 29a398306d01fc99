// Runs on several hosts that lose ranks and whole hosts and go on: launch --hostfile
// --in_process_recovery. No step is missing, and the losses are the undisturbed run's. A script in
// place of ssh lets this machine stand for all hosts.

#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/fault_tests/recovery_harness.h"

namespace megatron {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kManySteps = 20000;  // more than a test waits for

class HostsRecoveryTest : public RecoveryTest {
 protected:
  HostsRecoveryTest() {
    // A host whose file says so cannot be reached. The shell on a host leads a session, in which
    // the host's agent is; the agent's ranks end with it. ssh ends with 255 when they are killed,
    // and setsid with the signal.
    std::ofstream(Path("ssh")) << "#!/bin/sh\n"
                               << "[ ! -e \"" << Path("") << "$1.gone\" ] || exit 255\n"
                               << "setsid --wait sh -c \"echo \\$\\$ > '" << Path("")
                               << "$1.pid'; $2; exit \\$?\"\n"
                               << "code=$?\n[ $code != 9 ] || exit 255\nexit $code\n";
    chmod(Path("ssh").c_str(), 0755);
  }

  void SetUp() override {
    for (const char* host : {"a", "b", "c", "spare"}) {
      std::remove(Path(absl::StrCat(host, ".pid")).c_str());
      std::remove(Path(absl::StrCat(host, ".gone")).c_str());
    }
  }

  // Starts a run that saves to "recovered" on hosts with so many slots each.
  pid_t StartOnHosts(const std::vector<std::string>& hosts, int slots, const Arguments& flags,
                     const Arguments& args) const {
    std::ofstream file(Path("hosts"));
    for (const std::string& host : hosts) file << host << " slots=" << slots << "\n";
    file.close();
    const Arguments launch = {ProgramPath("tools/launch"), "--hostfile=" + Path("hosts"),
                              "--ssh=" + Path("ssh"),      "--master_addr=127.0.0.1",
                              "--master_port=0",           "--in_process_recovery"};
    const std::string log = Path("log.txt");
    const pid_t pid = StartProgram(
        Joined(Joined(launch, flags), Joined({"--"}, Command(Joined({SaveTo("recovered")}, args)))),
        log);
    WaitFor("first step done", log);
    WaitForSteps("recovered", 5, log);
    return pid;
  }

  // All processes of a host end at once.
  void KillHost(const std::string& host) const {
    const pid_t session = std::atoi(ReadTextFile(Path(host + ".pid")).c_str());
    ASSERT_GT(session, 1) << host;
    kill(-session, SIGKILL);
  }

  // The process that is this rank, somewhere below another; -1: there is none.
  static pid_t RankBelow(pid_t pid, int rank) {
    for (const pid_t child : ChildrenOf(pid)) {
      const std::string variables = ReadTextFile(absl::StrCat("/proc/", child, "/environ"));
      if (absl::StrContains(variables, absl::StrCat(std::string(1, '\0'), "MEGATRON_RANK=", rank,
                                                    std::string(1, '\0'))))
        return child;
      const pid_t found = RankBelow(child, rank);
      if (found > 0) return found;
    }
    return -1;
  }

  void Signal(pid_t launcher, int rank, int signal) const {
    const pid_t pid = RankBelow(launcher, rank);
    ASSERT_GT(pid, 0) << "rank " << rank;
    kill(pid, signal);
  }

  // Waits until ranks have gone on so often, all of them together.
  void WaitForAll(int ranks, int times) const {
    const std::string log = Path("log.txt"), text = absl::StrCat(": ", ranks, " ranks, parallel");
    const absl::Time until = absl::Now() + absl::Seconds(60);
    while (CountOf(ReadTextFile(log), text) < times) {
      ASSERT_LT(absl::Now(), until) << ReadTextFile(log);
      absl::SleepFor(absl::Milliseconds(20));
    }
    WaitForSteps("recovered", 5, log);
  }

  // Lets a run save and leave, and compares it with one that nobody disturbs.
  Outcome EndAndCompare(pid_t pid, const Arguments& args) const {
    kill(pid, SIGTERM);
    const Outcome outcome = FinishProgram(pid, Path("log.txt"));
    EXPECT_EQ(outcome.exit_code, kExitSavedOnSignal) << outcome.output;
    EXPECT_THAT(outcome.output, Not(HasSubstr("from a checkpoint")));
    EXPECT_THAT(outcome.output, Not(HasSubstr("continuing from")));
    const int steps = StepsOf("recovered");
    Run(Joined({SaveTo("whole"), absl::StrCat("--set=train.exit_interval=", steps)}, args));
    ExpectSameCurve("whole", "recovered", static_cast<size_t>(steps));
    return outcome;
  }

  void Forget() const {
    for (const char* run : {"whole", "recovered"})
      ASSERT_TRUE(PosixFileSystem().RemoveTree(Path(run)).ok());
  }
};

TEST_F(HostsRecoveryTest, ALostRankIsStartedAgainOnItsHost) {
  const Arguments args = Base(4, kManySteps);
  const pid_t pid = StartOnHosts({"a", "b"}, 2, {}, args);
  Signal(pid, 3, SIGKILL);
  WaitForAll(4, 1);
  const Outcome outcome = EndAndCompare(pid, args);
  EXPECT_THAT(
      outcome.output,
      HasSubstr("launch: rank 3 was ended by signal 9 (Killed); it is started again in 1s"));
  EXPECT_EQ(CountOf(outcome.output, "started again"), 1) << outcome.output;  // not its host
}

// The first host has rank 0, and the last one writes the metrics. All shards of a host have their
// copies on the other one.
TEST_F(HostsRecoveryTest, TheOthersGoOnWithoutALostHost) {
  for (const char* host : {"a", "b"}) {
    SCOPED_TRACE(host);
    const Arguments args = Joined(Base(4, kManySteps), WithShardCopies("optim"));
    const pid_t pid = StartOnHosts({"a", "b"}, 2, {"--replacements=0"}, args);
    KillHost(host);
    WaitForAll(2, 1);
    const Outcome outcome = EndAndCompare(pid, args);
    EXPECT_THAT(outcome.output, HasSubstr(absl::StrCat("launch: host ", host, " ended with code")));
    EXPECT_THAT(outcome.output,
                HasSubstr(absl::StrCat("without ranks ", host[0] == 'a' ? "0, 1" : "2, 3")));
    Forget();
  }
}

// Then shards have copies again, and another host may be lost. The hosts are reached again at last.
TEST_F(HostsRecoveryTest, ASpareTakesThePlaceOfALostHost) {
  const Arguments args = Joined(Base(4, kManySteps), WithShardCopies("optim_grads"));
  const pid_t pid = StartOnHosts({"a", "b", "spare"}, 2, {"--num_nodes=2"}, args);
  std::ofstream(Path("a.gone")) << "\n";
  KillHost("a");
  WaitForAll(4, 1);
  std::ofstream(Path("b.gone")) << "\n";
  KillHost("b");
  WaitForAll(2, 2);
  WaitFor("host b ended with code 255; ", Path("log.txt"));
  for (const char* host : {"a", "b"}) std::remove(Path(absl::StrCat(host, ".gone")).c_str());
  WaitForAll(4, 2);
  const Outcome outcome = EndAndCompare(pid, args);
  EXPECT_THAT(outcome.output, HasSubstr("; host spare takes its place in 1s (1 of 10)"));
}

// Its host has no other rank.
TEST_F(HostsRecoveryTest, AStoppedRankIsLeftOutAndItsHostStartedAgain) {
  const Arguments args =
      Joined(Base(3, kManySteps), {"--set=parallel.heartbeat_timeout_seconds=3"});
  const pid_t pid = StartOnHosts({"a", "b", "c"}, 1, {"--stop_limit=4s"}, args);
  Signal(pid, 1, SIGSTOP);
  WaitForAll(3, 1);
  const Outcome outcome = EndAndCompare(pid, args);
  EXPECT_THAT(outcome.output, HasSubstr("has given no sign of life for 3s"));
  EXPECT_THAT(outcome.output, HasSubstr("without rank 1: 2 ranks"));
  EXPECT_THAT(outcome.output, HasSubstr("rank 1 was ended by signal 9 (Killed)"));
}

TEST_F(HostsRecoveryTest, WhatCannotGoOnIsStartedAgain) {
  const Arguments args = Joined(Base(2, 60), {"--set=checkpoint.save_interval=4"});
  ASSERT_EQ(Run(Joined({SaveTo("whole")}, args)).exit_code, kExitDone);
  const pid_t pid = StartOnHosts({"a", "b"}, 1, {"--replacements=0", "--restarts=2"}, args);
  KillHost("b");
  const Outcome outcome = FinishProgram(pid, Path("log.txt"));
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("the 1 process that is left cannot go on without rank 1"));
  EXPECT_THAT(outcome.output, HasSubstr("starting again in 1s (1 of 2)"));
  EXPECT_THAT(outcome.output, HasSubstr("continuing from"));
  ExpectSameCurve("whole", "recovered", 60);
}

// On one machine launch does the same as the program that starts its ranks.
TEST_F(HostsRecoveryTest, ALauncherOfOneMachineGoesOn) {
  const Arguments args = Base(3, kManySteps);
  const std::string log = Path("log.txt");
  const Arguments launch = {ProgramPath("tools/launch"), "--ranks=3", "--in_process_recovery",
                            "--"};
  const pid_t pid = StartProgram(Joined(launch, Command(Joined({SaveTo("recovered")}, args))), log);
  WaitFor("first step done", log);
  WaitForSteps("recovered", 5, log);
  Signal(pid, 0, SIGKILL);
  WaitForAll(3, 1);
  EndAndCompare(pid, args);
}

// Prints rows of docs/recovery.md's table.
TEST_F(HostsRecoveryTest, DISABLED_RecoveryTimes) {
  const Arguments args = Joined(
      Joined(Base(8, kManySteps), {"--set=model.num_layers=4", "--set=model.hidden_size=128"}),
      WithShardCopies("optim"));
  const std::string log = Path("log.txt");
  for (const bool whole_host : {false, true}) {
    std::vector<double> next_step, all_again;
    for (int i = 0; i < 5; ++i) {
      const pid_t pid = StartOnHosts({"a", "b"}, 4, {}, args);
      WaitForSteps("recovered", 15, log);
      const absl::Time killed = absl::Now();
      if (whole_host) {
        KillHost("b");
      } else {
        Signal(pid, 3, SIGKILL);
      }
      WaitFor("training goes on after", log);
      const int begin = StepsOf("recovered");
      while (StepsOf("recovered") <= begin) absl::SleepFor(absl::Milliseconds(2));
      next_step.push_back(absl::ToDoubleSeconds(absl::Now() - killed));
      WaitFor(": 8 ranks, parallel", log);
      all_again.push_back(absl::ToDoubleSeconds(absl::Now() - killed));
      kill(pid, SIGTERM);
      FinishProgram(pid, log);
      Forget();
    }
    std::sort(next_step.begin(), next_step.end());
    std::sort(all_again.begin(), all_again.end());
    for (size_t i = 0; i < next_step.size(); ++i) {
      std::printf("%s: from the kill to the next step %.2f s, until all ranks are there %.2f s\n",
                  whole_host ? "a host of two" : "a rank", next_step[i], all_again[i]);
    }
    EXPECT_LT(next_step.back(), 5);
  }
}

}  // namespace
}  // namespace megatron
