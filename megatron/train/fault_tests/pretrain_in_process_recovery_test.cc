// Runs whose ranks are killed or stopped and that go on in the processes that are left: the losses
// of all steps are those of the undisturbed run, and no step is missing. An argument is the number
// of kills at random moments; more than one makes a test of its own.

#include <poll.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
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

int random_kills = 3;

class PretrainInProcessRecoveryTest : public RecoveryTest {
 protected:
  static Arguments Replacements(int count) {
    return {absl::StrCat("--set=parallel.rank_replacements=", count)};
  }

  // The process that was launched as this rank; -1: there is none.
  static pid_t RankOf(pid_t launcher, int rank) {
    for (const pid_t child : ChildrenOf(launcher)) {
      const std::string environment = ReadTextFile(absl::StrCat("/proc/", child, "/environ"));
      const std::string variable = absl::StrCat("MEGATRON_RANK=", rank);
      for (absl::string_view text : absl::StrSplit(environment, '\0')) {
        if (text == variable) return child;
      }
    }
    return -1;
  }

  static void Signal(pid_t launcher, int rank, int signal) {
    const pid_t pid = RankOf(launcher, rank);
    ASSERT_GT(pid, 0) << "rank " << rank;
    kill(pid, signal);
  }

  // Runs with these ranks killed after some steps, all at once.
  Outcome RunAndKill(const Arguments& args, const std::vector<int>& ranks) {
    const std::string log = Path("log.txt");
    const pid_t pid = Start(Joined({SaveTo("recovered")}, args), log);
    WaitFor("first step done", log);
    WaitForSteps("recovered", 5, log);
    for (const int rank : ranks) Signal(pid, rank, SIGKILL);
    return FinishProgram(pid, log);
  }

  // Makes the directory in which a run's processes stand, and another one.
  void MakePlaces() const {
    for (const char* const directory : {"here", "elsewhere"})
      ASSERT_TRUE(PosixFileSystem().CreateDirs(Path(directory)).ok());
  }
  // Runs in one of these places. What is at the path of the program is another one when rank 1 is
  // started again, and goes to the other place first.
  void ExpectThatAReplacementElsewhereIsLostAlone(const Arguments& args,
                                                  const std::string& reason) {
    Arguments command = Command(
        Joined(Joined({SaveTo("recovered")}, args), Joined(Base(3, 1000000), Replacements(1))));
    const std::string installed = command[0], program = Path("program");
    ASSERT_TRUE(std::filesystem::copy_file(installed, program,
                                           std::filesystem::copy_options::overwrite_existing));
    command[0] = program;
    const std::string log = Path("log.txt");
    const pid_t pid = StartProgram(
        Joined({"/bin/sh", "-c", "cd \"$0\" && exec \"$@\"", Path("here")}, command), log);
    WaitFor("first step done", log);
    const std::string next = Path("next");
    ASSERT_TRUE(WriteFileAtomically(PosixFileSystem(), next,
                                    absl::StrCat("#!/bin/sh\ncd '", Path("elsewhere"),
                                                 "' && exec '", installed, "' \"$@\"\n"))
                    .ok());
    ASSERT_EQ(chmod(next.c_str(), 0700), 0);
    ASSERT_TRUE(PosixFileSystem().Rename(next, program).ok());
    Signal(pid, 1, SIGKILL);
    WaitFor("rank 1 ended with code 31", log);
    WaitForSteps("recovered", 5, log);
    kill(pid, SIGTERM);
    const Outcome outcome = FinishProgram(pid, log);
    EXPECT_EQ(outcome.exit_code, kExitSavedOnSignal) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(reason));
  }
};

TEST_F(PretrainInProcessRecoveryTest, TheOthersGoOnFromTheirMemoryAndShareTheBatchUnevenly) {
  const Arguments args = Joined(Base(4, 60), Replacements(0));
  ASSERT_EQ(Run(Joined({SaveTo("whole")}, args)).exit_code, kExitDone);
  const Outcome outcome = RunAndKill(args, {1});
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("rank 1 of world"));
  EXPECT_THAT(outcome.output, HasSubstr("training goes on after iteration "));
  EXPECT_THAT(outcome.output, HasSubstr("without rank 1: 3 ranks, parallel.data_parallel_size = 3, "
                                        "from the memory of ranks"));
  EXPECT_THAT(outcome.output, Not(HasSubstr("continuing from")));
  // The run goes on, and nobody needs to know what the ranks were at.
  EXPECT_THAT(outcome.output, Not(HasSubstr("what the ranks were at")));
  ExpectSameCurve("whole", "recovered", 60);
}

// Only the first rank reads the file of figures, and is stopped there while the others wait for it.
// Nobody has a plan of the run, or the directory of checkpoints, when rank 2 is lost.
TEST_F(PretrainInProcessRecoveryTest, ARankMayBeLostWhileAllPlanTheRun) {
  const std::string figures = Path("hardware.textproto");
  // The reader of the comment has a long way to go.
  ASSERT_TRUE(WriteFileAtomically(
                  PosixFileSystem(), figures,
                  absl::StrCat("hardware { name: 'mine' fp32_tflops: 0.1 bf16_tflops: 0.1 "
                               "memory_gib: 16 memory_gb_per_s: 20 link_gb_per_s: 8 domain: 64 "
                               "network_gb_per_s: 1 cores: 8 thread_efficiency: 0.9 }\n#",
                               std::string(size_t{16} << 20, ' '), "\n"))
                  .ok());
  const Arguments args = Joined(Joined(Base(3, 20), Replacements(0)),
                                {absl::StrCat("--set=system.hardware_file=\"", figures, "\"")});
  ASSERT_EQ(Run(Joined({SaveTo("whole")}, args)).exit_code, kExitDone);
  const int accesses = inotify_init1(IN_CLOEXEC);
  ASSERT_GE(accesses, 0);
  ASSERT_GE(inotify_add_watch(accesses, figures.c_str(), IN_OPEN | IN_CLOSE_NOWRITE), 0);
  const std::string log = Path("log.txt");
  const pid_t pid = Start(Joined({SaveTo("recovered")}, args), log);
  bool was_read = false;  // by the program, before it started the ranks
  pid_t first = -1;
  while (first <= 0) {
    pollfd readable = {accesses, POLLIN, 0};
    inotify_event event;
    if (poll(&readable, 1, 60000) != 1 || read(accesses, &event, sizeof(event)) != sizeof(event))
      break;
    if ((event.mask & IN_OPEN) != 0 && was_read) first = RankOf(pid, 0);
    was_read |= (event.mask & IN_CLOSE_NOWRITE) != 0;
  }
  close(accesses);
  ASSERT_GT(first, 0) << ReadTextFile(log);
  kill(first, SIGSTOP);
  Signal(pid, 2, SIGKILL);
  WaitFor("rank 2 was ended by signal 9", log);
  kill(first, SIGCONT);
  const Outcome outcome = FinishProgram(pid, log);
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  EXPECT_THAT(outcome.output,
              HasSubstr("training goes on after iteration 0 without rank 2: 2 ranks"));
  ExpectSameCurve("whole", "recovered", 20);
}

// The first rank led the others, and the last one wrote the metrics.
TEST_F(PretrainInProcessRecoveryTest, NoRankIsNeeded) {
  const Arguments args = Joined(Base(4, 60), Replacements(0));
  ASSERT_EQ(Run(Joined({SaveTo("whole")}, args)).exit_code, kExitDone);
  for (const std::vector<int>& ranks : {std::vector<int>{0}, {3}, {0, 3}}) {
    const Outcome outcome = RunAndKill(args, ranks);
    ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
    ExpectSameCurve("whole", "recovered", 60);
    ASSERT_TRUE(PosixFileSystem().RemoveTree(Path("recovered")).ok());
  }
}

TEST_F(PretrainInProcessRecoveryTest, AReplacedRankGetsItsStateFromAnother) {
  const Arguments args = Joined(Base(4, 400), {"--set=train.eval_interval=100"});
  ASSERT_EQ(Run(Joined({SaveTo("whole")}, args)).exit_code, kExitDone);
  const std::string log = Path("log.txt");
  const pid_t pid = Start(Joined({SaveTo("recovered")}, args), log);
  WaitFor("first step done", log);
  WaitForSteps("recovered", 5, log);
  Signal(pid, 2, SIGKILL);
  WaitFor("with 1 process that has come: 4 ranks", log);
  const Outcome outcome = FinishProgram(pid, log);
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  EXPECT_THAT(outcome.output,
              HasSubstr("rank 2 was ended by signal 9 (Killed); it is started again"));
  EXPECT_EQ(CountOf(outcome.output, "from the memory of ranks"), 2);
  ExpectSameCurve("whole", "recovered", 400);
}

// The edits are of what may change between two starts, of the size of what ranks keep, and of a
// file that can't be read.
TEST_F(PretrainInProcessRecoveryTest, TheConfigurationOfTheStartCountsWhateverComesOfItsFile) {
  const Arguments args = Joined(Base(3, 100), Replacements(0));
  ASSERT_EQ(Run(Joined({SaveTo("whole")}, args)).exit_code, kExitDone);
  const std::string file = Path("run.textproto"), begun = ReadTextFile(file);
  for (const std::string& edited :
       {absl::StrReplaceAll(begun, {{"lr: 3e-3", "lr: 3e-2"}}),
        absl::StrReplaceAll(begun, {{"hidden_size: 32", "hidden_size: 64"}}),
        std::string("model { num_"), std::string()}) {
    SCOPED_TRACE(edited);
    const std::string log = Path("log.txt");
    const pid_t pid = Start(Joined({SaveTo("recovered")}, args), log);
    WaitFor("first step done", log);
    WaitForSteps("recovered", 5, log);
    EXPECT_TRUE((edited.empty() ? PosixFileSystem().Remove(file)
                                : WriteFileAtomically(PosixFileSystem(), file, edited))
                    .ok());
    Signal(pid, 1, SIGKILL);
    const Outcome outcome = FinishProgram(pid, log);
    ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("without rank 1: 2 ranks"));
    ExpectSameCurve("whole", "recovered", 100);
    ASSERT_TRUE(PosixFileSystem().RemoveTree(Path("recovered")).ok());
    ASSERT_TRUE(WriteFileAtomically(PosixFileSystem(), file, begun).ok());
  }
}

// The last edit is one to which the number of processes does not fit.
TEST_F(PretrainInProcessRecoveryTest, AReplacementWithAnotherConfigurationEndsAlone) {
  const std::string file = Path("run.textproto"), begun = ReadTextFile(file);
  for (const auto& [edited, reason] :
       {std::make_pair(absl::StrReplaceAll(begun, {{"lr: 3e-3", "lr: 3e-2"}}),
                       "optimizer.lr is 0.03, on rank 0 0.003"),
        std::make_pair(std::string("model { num_"), "run.textproto:"),
        std::make_pair(begun + "parallel { tensor_model_parallel_size: 2 }\n",
                       "asks for 6 ranks")}) {
    SCOPED_TRACE(edited);
    const std::string log = Path("log.txt");
    const pid_t pid =
        Start(Joined({SaveTo("recovered")}, Joined(Base(3, 1000000), Replacements(1))), log);
    WaitFor("first step done", log);
    EXPECT_TRUE(WriteFileAtomically(PosixFileSystem(), file, edited).ok());
    Signal(pid, 1, SIGKILL);
    WaitFor("rank 1 ended with code 20", log);
    WaitForSteps("recovered", 5, log);
    kill(pid, SIGTERM);
    const Outcome outcome = FinishProgram(pid, log);
    EXPECT_EQ(outcome.exit_code, kExitSavedOnSignal) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(reason));
    EXPECT_THAT(outcome.output,
                HasSubstr("the others keep the configuration that the run began with"));
    ASSERT_TRUE(PosixFileSystem().RemoveTree(Path("recovered")).ok());
    ASSERT_TRUE(WriteFileAtomically(PosixFileSystem(), file, begun).ok());
  }
}

// Ranks have the file of a task; what is started in the place of one stands where it is not.
TEST_F(PretrainInProcessRecoveryTest, AReplacementThatLacksAFileOfTheOthersIsLostAlone) {
  MakePlaces();
  std::string text;
  for (int i = 0; i < 50; ++i) text += "Tom was happy and Ana was sad. ";
  ASSERT_TRUE(WriteFileAtomically(PosixFileSystem(), Path("here/text.txt"), text).ok());
  ExpectThatAReplacementElsewhereIsLostAlone(
      {"--set=train.eval_tasks=wikitext103=/proc/self/cwd/text.txt",
       "--set=train.eval_tasks_interval=6000000"},
      "for train.eval_tasks; the others go on without this process");
}

// No file can be made where it stands. It finds that out when the others wait for it.
TEST_F(PretrainInProcessRecoveryTest, AReplacementThatFailsBeforeItHasTheStateIsLostAlone) {
  MakePlaces();
  std::filesystem::create_directory_symlink("/proc/self/fdinfo", Path("elsewhere/states"));
  ExpectThatAReplacementElsewhereIsLostAlone(
      {"--set=optimizer.sgd_momentum=0.9", "--set=optimizer.optimizer_cpu_offload=true",
       "--set=optimizer.optimizer_offload_path=/proc/self/cwd/states",
       "--set=checkpoint.save_interval=5"},
      "; the others go on without this process");
}

// With a few more addresses a rank meets the others anew, and lacks those of a rank's usual need.
TEST_F(PretrainInProcessRecoveryTest, ARankWithoutMemoryIsLostAlone) {
  const Arguments args = Base(4, 200);
  ASSERT_EQ(Run(Joined({SaveTo("whole")}, args)).exit_code, kExitDone);
  for (const rlim_t more : {rlim_t{0}, rlim_t{4} << 20}) {
    const std::string log = Path("log.txt");
    const pid_t pid = Start(Joined({SaveTo("recovered")}, args), log);
    WaitFor("first step done", log);
    WaitForSteps("recovered", 5, log);
    const pid_t rank = RankOf(pid, 0);
    ASSERT_GT(rank, 0);
    const std::string sizes = ReadTextFile(absl::StrCat("/proc/", rank, "/statm"));
    int64_t pages = 0;
    ASSERT_TRUE(absl::SimpleAtoi(sizes.substr(0, sizes.find(' ')), &pages)) << sizes;
    rlimit limit;
    ASSERT_EQ(prlimit(rank, RLIMIT_AS, nullptr, &limit), 0);
    limit.rlim_cur = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE)) + more;
    ASSERT_EQ(prlimit(rank, RLIMIT_AS, &limit, nullptr), 0);
    Signal(pid, 2, SIGKILL);
    const Outcome outcome = FinishProgram(pid, log);
    ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
    ExpectSameCurve("whole", "recovered", 200);
    ASSERT_TRUE(PosixFileSystem().RemoveTree(Path("recovered")).ok());
  }
}

TEST_F(PretrainInProcessRecoveryTest, AReplicaOfSeveralRanksIsLeftOutAsAWhole) {
  for (const char* axis : {"tensor_model_parallel_size", "pipeline_model_parallel_size"}) {
    const Arguments args =
        Joined(Joined(Base(3, 60), Replacements(0)), {absl::StrCat("--set=parallel.", axis, "=2")});
    ASSERT_EQ(Run(Joined({SaveTo("whole")}, args)).exit_code, kExitDone);
    const Outcome outcome = RunAndKill(args, {3});
    ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("without rank 3: 4 ranks"));
    ExpectSameCurve("whole", "recovered", 60);
    for (const char* run : {"whole", "recovered"})
      ASSERT_TRUE(PosixFileSystem().RemoveTree(Path(run)).ok());
  }
}

// The checkpoint was saved by the ranks before, and what they go on from is none.
TEST_F(PretrainInProcessRecoveryTest, ASaveThatFailsAfterALossNamesTheNewestCheckpoint) {
  // Directories that no run of this program has made are not removed, and saves end there.
  for (int iteration = 8; iteration < 60; iteration += 4) {
    const std::string taken = Path(absl::StrFormat("recovered/iter_%07d.tmp", iteration));
    ASSERT_TRUE(PosixFileSystem().CreateDirs(taken).ok());
    ASSERT_TRUE(WriteFileAtomically(PosixFileSystem(), taken + "/notes.txt", "mine\n").ok());
  }
  const Outcome outcome =
      RunAndKill(Joined(Joined(Base(4, 60), Replacements(0)),
                        {"--set=checkpoint.save_interval=4", "--set=checkpoint.async_save=false"}),
                 {1});
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  const size_t goes_on = outcome.output.find("training goes on after iteration ");
  ASSERT_NE(goes_on, std::string::npos) << outcome.output;
  const std::string rest = outcome.output.substr(goes_on);
  EXPECT_THAT(rest, HasSubstr("from the memory of ranks"));
  EXPECT_THAT(rest, HasSubstr("and the newest checkpoint is of iteration 4\n"));
  EXPECT_THAT(rest, Not(HasSubstr("no checkpoint has been saved")));
}

// What is left of two replicas is a replica.
TEST_F(PretrainInProcessRecoveryTest, RanksTakeOtherPlaces) {
  const Arguments args =
      Joined(Joined(Base(3, 60), Replacements(0)), {"--set=parallel.tensor_model_parallel_size=2"});
  ASSERT_EQ(Run(Joined({SaveTo("whole")}, args)).exit_code, kExitDone);
  const Outcome outcome = RunAndKill(args, {3, 5});
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  ExpectSameCurve("whole", "recovered", 60);
}

// The shard of a rank that is lost is in the memory of the rank behind it.
TEST_F(PretrainInProcessRecoveryTest, ShardedStatesComeFromTheMemoryOfRanks) {
  for (const auto& [strategy, ranks] :
       {std::make_pair("optim", std::vector<int>{0}),
        std::make_pair("optim_grads", std::vector<int>{3}),
        std::make_pair("optim_grads_params", std::vector<int>{0, 2})}) {
    SCOPED_TRACE(strategy);
    const Arguments args = Joined(Joined(Base(4, 60), Replacements(0)), WithShardCopies(strategy));
    ASSERT_EQ(Run(Joined({SaveTo("whole")}, args)).exit_code, kExitDone);
    const Outcome outcome = RunAndKill(args, ranks);
    ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("from the memory of ranks"));
    EXPECT_THAT(outcome.output, Not(HasSubstr("continuing from")));
    ExpectSameCurve("whole", "recovered", 60);
    for (const char* run : {"whole", "recovered"})
      ASSERT_TRUE(PosixFileSystem().RemoveTree(Path(run)).ok());
  }
}

// A rank that has come gets a shard, and its copy goes to others, so that more may be lost.
TEST_F(PretrainInProcessRecoveryTest, ShardsHaveCopiesAgainAfterALoss) {
  const Arguments args = Joined(
      Base(4, 400), Joined(WithShardCopies("optim_grads"), {"--set=train.eval_interval=50"}));
  ASSERT_EQ(Run(Joined({SaveTo("whole")}, args)).exit_code, kExitDone);
  const std::string log = Path("log.txt");
  const pid_t pid = Start(Joined({SaveTo("recovered")}, args), log);
  WaitFor("first step done", log);
  WaitForSteps("recovered", 5, log);
  Signal(pid, 2, SIGKILL);
  WaitFor("with 1 process that has come: 4 ranks", log);
  Signal(pid, 1, SIGKILL);
  const Outcome outcome = FinishProgram(pid, log);
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  EXPECT_GE(CountOf(outcome.output, "from the memory of ranks"), 3) << outcome.output;
  EXPECT_THAT(outcome.output, Not(HasSubstr("from a checkpoint")));
  ExpectSameCurve("whole", "recovered", 400);
}

// Steps after the newest copies are made again.
TEST_F(PretrainInProcessRecoveryTest, CopiesMayBeSomeStepsOld) {
  const Arguments args =
      Joined(Joined(Base(4, 60), Replacements(0)),
             Joined(WithShardCopies("optim"),
                    {"--set=parallel.shard_copy_interval=7", "--set=train.eval_interval=4"}));
  ASSERT_EQ(Run(Joined({SaveTo("whole")}, args)).exit_code, kExitDone);
  const Outcome outcome = RunAndKill(args, {1});
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("from the memory of ranks"));
  ExpectSameCurve("whole", "recovered", 60);
}

// No memory has the shard of a rank that was lost.
TEST_F(PretrainInProcessRecoveryTest, ShardedStatesComeFromACheckpoint) {
  const Arguments args =
      Joined(Joined(Base(4, 60), Replacements(0)),
             {"--set=parallel.use_distributed_optimizer=true", "--set=checkpoint.save_interval=4"});
  ASSERT_EQ(Run(Joined({SaveTo("whole")}, args)).exit_code, kExitDone);
  const Outcome outcome = RunAndKill(args, {1});
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("continuing from"));
  EXPECT_THAT(outcome.output, HasSubstr("parallel.data_parallel_size = 3, from a checkpoint"));
  ExpectSameCurve("whole", "recovered", 60);
}

TEST_F(PretrainInProcessRecoveryTest, AStoppedRankIsLeftOutAndReplaced) {
  const Arguments args = Joined(Base(3, 60), {"--set=parallel.heartbeat_timeout_seconds=3"});
  ASSERT_EQ(Run(Joined({SaveTo("whole")}, args)).exit_code, kExitDone);
  const std::string log = Path("log.txt");
  const pid_t pid = Start(Joined({SaveTo("recovered")}, args), log);
  WaitFor("first step done", log);
  Signal(pid, 1, SIGSTOP);
  const Outcome outcome = FinishProgram(pid, log);
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("has given no sign of life for 3s"));
  EXPECT_THAT(outcome.output, HasSubstr("without rank 1: 2 ranks"));
  ExpectSameCurve("whole", "recovered", 60);
}

// The launcher has the store, which the first rank asks each second whether others have come.
TEST_F(PretrainInProcessRecoveryTest, RanksTrainWhileTheirLauncherIsStoppedAndOthersAreMissing) {
  const std::string log = Path("log.txt");
  const pid_t pid =
      Start(Joined({SaveTo("recovered")},
                   Joined(Joined(Base(3, 1000000), Replacements(0)),
                          {"--set=train.log_interval=1000000"})),  // nobody reads lines then
            log);
  WaitFor("first step done", log);
  Signal(pid, 1, SIGKILL);
  WaitFor("without rank 1: 2 ranks", log);
  kill(pid, SIGSTOP);
  absl::SleepFor(absl::Seconds(2));
  WaitForSteps("recovered", 5, log);
  kill(pid, SIGCONT);
  kill(pid, SIGTERM);
  const Outcome outcome = FinishProgram(pid, log);
  EXPECT_EQ(outcome.exit_code, kExitSavedOnSignal) << outcome.output;
  EXPECT_EQ(CountOf(outcome.output, "training goes on after"), 1) << outcome.output;
}

TEST_F(PretrainInProcessRecoveryTest, WhatCannotGoOnEndsAndIsStartedAgain) {
  const Arguments args = Joined(Joined(Base(2, 60), Replacements(0)),
                                {"--set=checkpoint.save_interval=4", "--set=parallel.restarts=2"});
  ASSERT_EQ(Run(Joined({SaveTo("whole")}, args)).exit_code, kExitDone);
  const Outcome outcome = RunAndKill(args, {1});
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("the 1 process that is left cannot go on without rank 1"));
  EXPECT_THAT(outcome.output, HasSubstr("what the ranks were at"));
  EXPECT_THAT(outcome.output, HasSubstr("continuing from"));
  ExpectSameCurve("whole", "recovered", 60);
}

// In each phase of a step the rank that is killed has sent what it has to, or has not.
TEST_F(PretrainInProcessRecoveryTest, AKillInEachPhaseLosesNoStep) {
  for (const Arguments& sharding : {Arguments(), WithShardCopies("optim")}) {
    const Arguments args = Joined(
        Joined(Base(3, 12), Replacements(0)),
        Joined(sharding, {"--set=checkpoint.save_interval=4", "--set=train.eval_interval=4"}));
    ASSERT_EQ(Run(Joined({SaveTo("whole")}, args)).exit_code, kExitDone);
    Arguments command = Command(Joined({SaveTo("recovered")}, args));
    command[0] = ProgramPath("megatron/train/fault_tests/pretrain_gpt_with_faults");
    const std::string log = Path("log.txt");
    for (const char* phase :
         {"data", "forward", "backward", "reduce", "save", "update", "evaluate"}) {
      for (const int rank : {0, 2}) {
        SCOPED_TRACE(absl::StrCat(phase, " of rank ", rank, sharding.empty() ? "" : ", sharded"));
        const pid_t pid = StartProgram(
            command, log, {{"MEGATRON_TEST_FAULT", absl::StrCat("kill ", phase, " ", rank, " 1")}});
        const Outcome outcome = FinishProgram(pid, log);
        ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
        EXPECT_THAT(outcome.output, HasSubstr("the fault begins"));
        EXPECT_THAT(outcome.output, HasSubstr(absl::StrCat("without rank ", rank, ": 2 ranks")));
        EXPECT_THAT(outcome.output, HasSubstr("from the memory of ranks"));
        ExpectSameCurve("whole", "recovered", 12);
        ASSERT_TRUE(PosixFileSystem().RemoveTree(Path("recovered")).ok());
      }
    }
    ASSERT_TRUE(PosixFileSystem().RemoveTree(Path("whole")).ok());
  }
}

TEST_F(PretrainInProcessRecoveryTest, KillsAtRandomMomentsLoseNoStep) {
  const int steps = 400 + 200 * random_kills;
  const Arguments args =
      Joined(Joined(Base(4, steps), Replacements(1000000)),
             {"--set=checkpoint.save_interval=20", "--set=train.eval_interval=50"});
  ASSERT_EQ(Run(Joined({SaveTo("whole")}, args)).exit_code, kExitDone);
  const std::string log = Path("log.txt");
  const pid_t pid = Start(Joined({SaveTo("recovered"), "--set=parallel.restarts=1000"}, args), log);
  WaitFor("first step done", log);
  std::mt19937 random(7);
  int kills = 0;
  while (kills < random_kills && !HasEnded(pid)) {
    absl::SleepFor(absl::Milliseconds(random() % 2000));
    const pid_t rank = RankOf(pid, static_cast<int>(random() % 4));
    if (rank <= 0) continue;
    kill(rank, SIGKILL);
    ++kills;
  }
  const Outcome outcome = FinishProgram(pid, log);
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  EXPECT_EQ(kills, random_kills) << "the run was over too soon";
  ExpectSameCurve("whole", "recovered", static_cast<size_t>(steps));
  RecordProperty("recoveries", CountOf(outcome.output, "training goes on after"));
  RecordProperty("restarts", CountOf(outcome.output, "restart "));
}

// Prints the time from a kill to the next step, beside docs/recovery.md's other rows.
TEST_F(PretrainInProcessRecoveryTest, DISABLED_RecoveryTimes) {
  for (const Arguments& sharding : {Arguments(), WithShardCopies("optim")}) {
    const Arguments args =
        Joined(Joined(Base(8, 2000), {"--set=model.num_layers=4", "--set=model.hidden_size=128"}),
               sharding);
    const std::string log = Path("log.txt");
    std::vector<double> seconds;
    for (int i = 0; i < 5; ++i) {
      const pid_t pid = Start(Joined({SaveTo("recovered")}, args), log);
      WaitFor("first step done", log);
      WaitForSteps("recovered", 20, log);
      const size_t before = Losses("recovered").size();
      Signal(pid, 3, SIGKILL);
      const absl::Time killed = absl::Now();
      WaitFor("training goes on after", log);
      const std::string file = Path("recovered/metrics.jsonl");
      const int begin = CountOf(ReadTextFile(file), "\"lm loss\"");
      while (CountOf(ReadTextFile(file), "\"lm loss\"") <= begin)
        absl::SleepFor(absl::Milliseconds(2));
      seconds.push_back(absl::ToDoubleSeconds(absl::Now() - killed));
      EXPECT_GT(Losses("recovered").size(), before);
      kill(pid, SIGTERM);
      FinishProgram(pid, log);
      ASSERT_TRUE(PosixFileSystem().RemoveTree(Path("recovered")).ok());
    }
    std::sort(seconds.begin(), seconds.end());
    for (const double time : seconds) {
      std::printf("%s: from the kill to the next step: %.2f s\n",
                  sharding.empty() ? "whole states" : "shard_copies", time);
    }
    EXPECT_LT(seconds.back(), 5);
  }
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc > 1) megatron::random_kills = std::atoi(argv[1]);
  return RUN_ALL_TESTS();
}
