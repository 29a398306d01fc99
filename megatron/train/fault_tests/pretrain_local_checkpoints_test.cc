// Runs that lose all processes of one of two machines, and what these had on their own disk:
// started again they take the newest local checkpoint, and end with the bytes of the undisturbed
// run.

#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/checkpoint/names.h"
#include "megatron/comm/socket/job_secret.h"
#include "megatron/comm/socket/socket.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/pretrain_harness.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr int kIterations = 40;

// Steps take a moment, so that the kill comes between two of them.
const Arguments kRun = {"--set=train.global_batch_size=8",
                        "--set=train.micro_batch_size=1",
                        absl::StrCat("--set=train.train_iters=", kIterations),
                        "--set=train.log_interval=1",
                        "--set=checkpoint.save_interval=30",
                        "--set=parallel.use_distributed_optimizer=true"};

int FreePort() {
  const auto listener = ListenTcp({"127.0.0.1", 0});
  EXPECT_TRUE(listener.ok());
  return LocalEndpoint(*listener)->port;
}

class PretrainLocalCheckpointsTest : public PretrainProgramTest {
 protected:
  Arguments Local(const Arguments& more) const {
    return Joined({SaveTo("run"), "--set=checkpoint.local_save=\"$LOCAL_DISK/run\"",
                   "--set=checkpoint.local_save_interval=2"},
                  Joined(kRun, more));
  }

  std::string Disk(int machine) const { return Path(absl::StrCat("disk", machine)); }
  std::string Log(int rank) const { return Path(absl::StrCat("log", rank)); }

  // Starts so many ranks, as a launcher does; half of them on each machine, or all on the first.
  std::vector<pid_t> StartRanks(int ranks, int machines, const Arguments& args) const {
    const int port = FreePort();
    const std::string secret = JobSecret::Random().ToHex();
    const int here = ranks / machines;
    std::vector<pid_t> pids;
    for (int rank = 0; rank < ranks; ++rank) {
      const int machine = rank / here;
      EXPECT_TRUE(PosixFileSystem().CreateDirs(Disk(machine)).ok());
      pids.push_back(StartProgram(Command(args), Log(rank),
                                  {{"MEGATRON_RANK", absl::StrCat(rank)},
                                   {"MEGATRON_WORLD_SIZE", absl::StrCat(ranks)},
                                   {"MEGATRON_LOCAL_RANK", absl::StrCat(rank % here)},
                                   {"MEGATRON_LOCAL_WORLD_SIZE", absl::StrCat(here)},
                                   {"MASTER_ADDR", "127.0.0.1"},
                                   {"MASTER_PORT", absl::StrCat(port)},
                                   {kJobSecretVariable, secret},
                                   {"LOCAL_DISK", Disk(machine)}}));
    }
    return pids;
  }

  // Returns the output of the rank that prints, when all have ended with the code.
  std::string Finish(const std::vector<pid_t>& pids, int code) const {
    std::string output;
    for (size_t rank = 0; rank < pids.size(); ++rank) {
      const Outcome outcome = FinishProgram(pids[rank], Log(static_cast<int>(rank)));
      EXPECT_EQ(outcome.exit_code, code) << outcome.output;
      output = outcome.output;
    }
    return output;
  }

  // Trains on two machines of two ranks each, kills all ranks of one when the iteration is done,
  // and removes what that has.
  void LoseAMachine(int machine, int iteration, const Arguments& args) const {
    std::vector<pid_t> pids = StartRanks(4, 2, args);
    WaitFor(absl::StrCat("iteration ", absl::Dec(iteration, absl::kSpacePad8), "/"), Log(3));
    for (int rank = 2 * machine; rank < 2 * machine + 2; ++rank)
      kill(pids[static_cast<size_t>(rank)], SIGKILL);
    for (int rank = 0; rank < 4; ++rank) {
      const Outcome outcome = FinishProgram(pids[static_cast<size_t>(rank)], Log(rank));
      const bool killed = rank / 2 == machine;
      EXPECT_EQ(outcome.exit_code, killed ? -SIGKILL : kExitPeerLost) << outcome.output;
    }
    std::filesystem::remove_all(Disk(machine));
  }

  // The iteration that a run has continued from. Its closing lines have others.
  static int ContinuedFrom(const std::string& output) {
    const size_t begin = output.find("continuing from ");
    EXPECT_NE(begin, std::string::npos) << output;
    if (begin == std::string::npos) return -1;
    const std::string line = output.substr(begin, output.find('\n', begin) - begin);
    return static_cast<int>(NumberAfter(line, " at iteration "));
  }

  // The newest checkpoint in the directory that is whole. The one before it may be half removed.
  static std::string NewestWhole(const std::string& directory) {
    int64_t newest = 0;
    const std::vector<std::string> names = *PosixFileSystem().List(directory);
    for (const std::string& name : names) {
      IterationDirectory parsed;
      if (ParseDirectoryName(name, &parsed) && parsed.kind == DirectoryKind::kFinal)
        newest = std::max(newest, parsed.iteration);
    }
    return absl::StrCat(directory, "/", DirectoryName(newest, DirectoryKind::kFinal));
  }
};

TEST_F(PretrainLocalCheckpointsTest, ALostMachineCostsNoStepThatItsPeerHas) {
  ASSERT_EQ(Run(Joined({SaveTo("whole"), "--set=parallel.data_parallel_size=4"}, kRun)).exit_code,
            kExitDone);
  const Arguments args = Local({"--set=checkpoint.peer_copies=1"});
  for (int machine = 0; machine < 2; ++machine) {
    SCOPED_TRACE(machine);
    std::filesystem::remove_all(Path("run"));
    LoseAMachine(machine, 15, args);
    const std::string output = Finish(StartRanks(4, 2, args), kExitDone);
    EXPECT_THAT(output,
                AllOf(ContainsRegex("taking the local checkpoint .LOCAL_DISK/run/[0-9a-f]+/iter_"),
                      HasSubstr("4 shards on several machines: "), HasSubstr("has none"),
                      ContainsRegex("continuing from .LOCAL_DISK")));
    EXPECT_GE(ContinuedFrom(output), 14);
    ExpectEqualCheckpoints("whole", "run");
    // What the run no longer needs is gone.
    for (int disk = 0; disk < 2; ++disk)
      EXPECT_TRUE(std::filesystem::is_empty(Disk(disk) + "/run")) << disk;
  }
}

TEST_F(PretrainLocalCheckpointsTest, WithoutCopiesTheDurableOneIsTaken) {
  const Arguments args = Local({"--set=checkpoint.save_interval=10"});
  LoseAMachine(1, 15, args);
  const std::string output = Finish(StartRanks(4, 2, args), kExitDone);
  EXPECT_THAT(output, AllOf(HasSubstr("WARNING: the local checkpoint of iteration "),
                            HasSubstr(" is not taken: 2 of its 4 shards are there and sound"),
                            HasSubstr("run/iter_0000010 at iteration 10")));
}

// Half of the machines go on.
TEST_F(PretrainLocalCheckpointsTest, TheMachineThatIsLeftGoesOnAlone) {
  const Arguments args = Local({"--set=checkpoint.peer_copies=1"});
  LoseAMachine(1, 15, args);
  const std::string output = Finish(StartRanks(2, 1, args), kExitDone);
  EXPECT_THAT(output, AllOf(HasSubstr("4 shards: "), HasSubstr("x data 2"),
                            HasSubstr("so that there are no copies")));
  EXPECT_GE(ContinuedFrom(output), 14);
}

// --dry_run says how large a rank's shard is.
TEST_F(PretrainLocalCheckpointsTest, AShardIsAsLargeAsPlanned) {
  const Arguments args =
      Joined({SaveTo("run"), "--set=parallel.data_parallel_size=2",
              "--set=parallel.ranks_as=processes", "--set=checkpoint.local_save_interval=1",
              absl::StrCat("--set=checkpoint.local_save=\"", Path("local"), "\"")},
             Joined(kRun, {"--set=train.train_iters=1000000"}));
  const Outcome plan = Run(Joined(args, {"--dry_run", "--json"}));
  ASSERT_EQ(plan.exit_code, kExitDone) << plan.output;
  const nlohmann::json stage = nlohmann::json::parse(plan.output)["memory"]["stages"][0];
  const std::string log = Path("log.txt");
  const pid_t pid = Start(args, log);
  WaitFor("iteration       30/", log);
  kill(pid, SIGKILL);
  FinishProgram(pid, log);
  const std::vector<std::string> runs = *PosixFileSystem().List(Path("local"));
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(
      stage["local_checkpoint_bytes"],
      ReadTextFile(NewestWhole(Path("local/" + runs[0])) + "/shard_00000_of_00002.bin").size());
}

// Prints the time from a kill to the next step, and to the step at which the run was killed.
TEST_F(PretrainLocalCheckpointsTest, DISABLED_RecoveryTimes) {
  // So long after a local checkpoint, it is whole, and the next one has not begun.
  constexpr int kKilledAt = 93;
  const Arguments common = {"--set=model.num_layers=4", "--set=model.hidden_size=128",
                            "--set=train.train_iters=100"};
  struct Way {
    const char* name;
    int lost_machine;  // -1: all processes die, and no machine
    Arguments arguments;
  };
  for (const Way& way : std::vector<Way>{
           {"checkpoint.save every 50 steps", -1, {"--set=checkpoint.save_interval=50"}},
           {"local every 5 steps", -1, {"--set=checkpoint.local_save_interval=5"}},
           {"local every 5 steps, a machine lost",
            1,
            {"--set=checkpoint.local_save_interval=5", "--set=checkpoint.peer_copies=1"}}}) {
    std::filesystem::remove_all(Path("run"));
    const bool is_local = way.arguments[0].find("local") != std::string::npos;
    const Arguments args =
        is_local ? Local(Joined(common, way.arguments))
                 : Joined({SaveTo("run")}, Joined(kRun, Joined(common, way.arguments)));
    std::vector<pid_t> pids = StartRanks(8, 2, args);
    WaitFor(absl::StrCat("iteration ", absl::Dec(kKilledAt, absl::kSpacePad8), "/"), Log(7));
    const absl::Time killed = absl::Now();
    for (int rank = 0; rank < 8; ++rank) {
      if (way.lost_machine < 0 || rank / 4 == way.lost_machine)
        kill(pids[static_cast<size_t>(rank)], SIGKILL);
    }
    for (int rank = 0; rank < 8; ++rank) FinishProgram(pids[static_cast<size_t>(rank)], Log(rank));
    if (way.lost_machine >= 0) std::filesystem::remove_all(Disk(way.lost_machine));
    pids = StartRanks(8, 2, args);
    WaitFor("first step done", Log(7));
    const absl::Time stepped = absl::Now();
    WaitFor(absl::StrCat("iteration ", absl::Dec(kKilledAt, absl::kSpacePad8), "/"), Log(7));
    const absl::Time caught_up = absl::Now();
    const int from = ContinuedFrom(Finish(pids, kExitDone));
    std::printf("%-40s next step after %.1f s, from iteration %d; at iteration %d after %.1f s\n",
                way.name, absl::ToDoubleSeconds(stepped - killed), from, kKilledAt,
                absl::ToDoubleSeconds(caught_up - killed));
  }
}

// Ranks of one machine that all die, threads or processes, continue from its memory.
TEST_F(PretrainLocalCheckpointsTest, ARunOnOneMachineContinuesFromItsOwnDirectory) {
  ASSERT_EQ(Run(Joined({SaveTo("whole"), "--set=parallel.data_parallel_size=2"}, kRun)).exit_code,
            kExitDone);
  const Arguments args =
      Joined({SaveTo("run"), "--set=parallel.data_parallel_size=2",
              "--set=checkpoint.local_save_interval=2", "--set=checkpoint.async_save=true",
              absl::StrCat("--set=checkpoint.local_save=\"", Path("local"), "\"")},
             kRun);
  const std::string log = Path("log.txt");
  const pid_t pid = Start(args, log);
  WaitFor("iteration       15/", log);
  kill(pid, SIGKILL);
  EXPECT_EQ(FinishProgram(pid, log).exit_code, -SIGKILL);
  const Outcome outcome = Run(args);
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("taking the local checkpoint "));
  EXPECT_GE(ContinuedFrom(outcome.output), 12);
  ExpectEqualCheckpoints("whole", "run");
}

}  // namespace
}  // namespace megatron
