// Islands that are runs of their own, as real processes, with a real outer server: together, late,
// killed and started again.

#include <signal.h>
#include <sys/stat.h>

#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/comm/socket/job_secret.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/pretrain_harness.h"
#include "tools/islands_harness.h"

namespace megatron {
namespace {

class IslandsTest : public IslandsProgramTest {};

TEST_F(IslandsTest, TwoRunsAreTheTwoIslandsOfOneWorldBitForBit) {
  ASSERT_EQ(Run(Joined(kCommon,
                       {"--set=parallel.data_parallel_size=2",
                        "--set=parallel.use_distributed_optimizer=true",
                        "--set=parallel.num_distributed_optimizer_instances=2", SaveTo("world")}))
                .exit_code,
            kExitDone);
  StartServer({"--min_islands=2"});
  const pid_t a = StartIsland(0), b = StartIsland(1);
  ExpectEnd(a, 0);
  ExpectEnd(b, 1);
  const std::string log = ReadTextFile(LogOf(0));
  EXPECT_EQ(CountOf(log, ": islands 0, 1; "), 3) << log;
  EXPECT_EQ(WeightsOf("island0"), WeightsOf("world"));
  EXPECT_EQ(WeightsOf("island1"), WeightsOf("world"));
}

TEST_F(IslandsTest, IslandsMayHaveOtherLayouts) {
  StartServer({"--min_islands=2"});
  const pid_t a = StartIsland(
      0, {"--set=parallel.tensor_model_parallel_size=2", "--set=diloco.outer_gradient_dtype=int8"});
  const pid_t b = StartIsland(
      1, {"--set=parallel.data_parallel_size=2", "--set=parallel.pipeline_model_parallel_size=2",
          "--set=train.micro_batch_size=1", "--set=parallel.use_distributed_optimizer=true"});
  ExpectEnd(a, 0);
  ExpectEnd(b, 1);
  EXPECT_EQ(CountOf(ReadTextFile(LogOf(0)), ": islands 0, 1; "), 3) << ReadTextFile(LogOf(0));
  EXPECT_EQ(WeightsOf("island0"), WeightsOf("island1"));
}

TEST_F(IslandsTest, AKilledIslandComesBackAndEndsWithTheSameBits) {
  StartServer({"--min_islands=2"});
  pid_t a = StartIsland(0), b = StartIsland(1, {"--set=checkpoint.save_interval=1"});
  ExpectEnd(a, 0);
  ExpectEnd(b, 1);
  const auto whole = WeightsOf("island0");
  StopServer();
  ASSERT_TRUE(PosixFileSystem().Remove(Path("state")).ok());
  for (const char* name : {"island0", "island1"})
    ASSERT_TRUE(PosixFileSystem().RemoveTree(Path(name)).ok());
  StartServer({"--min_islands=2"});
  a = StartIsland(0);
  b = StartIsland(1, {"--set=checkpoint.save_interval=1", "--set=train.exit_interval=6"});
  ExpectEnd(b, 1);
  b = StartIsland(1, {"--set=checkpoint.save_interval=1"});
  WaitFor("joined the outer server at round 1, with this run's copy", LogOf(1));
  kill(b, SIGKILL);
  FinishProgram(b, LogOf(1));
  // The server is killed, too.
  StopServer(SIGKILL);
  StartServer({"--min_islands=2"}, address_);
  b = StartIsland(1, {"--set=checkpoint.save_interval=1"});
  ExpectEnd(a, 0);
  ExpectEnd(b, 1);
  EXPECT_EQ(WeightsOf("island0"), whole);
  EXPECT_EQ(WeightsOf("island1"), whole);
}

TEST_F(IslandsTest, ALateIslandBeginsFromTheCopyAndOthersGoOnWithoutOneThatIsLost) {
  StartServer({"--min_islands=1", "--round_timeout=60s"});
  const Arguments longer = {"--set=train.train_iters=40"};
  const pid_t a = StartIsland(0, longer);
  WaitFor("outer round 1: islands 0; ", LogOf(0));
  const pid_t b = StartIsland(1, {"--set=train.train_iters=4000"});
  WaitFor("from the global copy there", LogOf(1));
  kill(b, SIGKILL);
  FinishProgram(b, LogOf(1));
  ExpectEnd(a, 0);
  EXPECT_TRUE(absl::StrContains(ReadTextFile(LogOf(0)), "outer round 10: islands 0"))
      << ReadTextFile(LogOf(0));
}

TEST_F(IslandsTest, AnotherModelOrSecretIsRefusedByName) {
  StartServer({"--min_islands=1"});
  ExpectEnd(StartIsland(0), 0);
  Outcome outcome = FinishProgram(StartIsland(1, {"--set=train.seed=9"}), LogOf(1));
  EXPECT_EQ(outcome.exit_code, kExitConfig);
  EXPECT_TRUE(absl::StrContains(outcome.output, "seed: 9")) << outcome.output;
  EXPECT_TRUE(absl::StrContains(ReadTextFile(Path("server.txt")), "refused: island 1: the copy"))
      << ReadTextFile(Path("server.txt"));
  std::ofstream(Path("secret")) << JobSecret::Random().ToHex() << "\n";
  outcome = FinishProgram(StartIsland(1), LogOf(1));
  EXPECT_EQ(outcome.exit_code, kExitConfig) << outcome.output;
}

}  // namespace
}  // namespace megatron
