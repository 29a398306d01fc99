// Ranks that are processes: pretrain_gpt that starts them itself, and under launchers.

#include <signal.h>
#include <sys/stat.h>

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/comm/socket/job_secret.h"
#include "megatron/comm/socket/socket.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/pretrain_harness.h"

namespace megatron {
namespace {

const Arguments kTwoRanks = {"--set=parallel.tensor_model_parallel_size=2",
                             "--set=parallel.sequence_parallel=true"};
const Arguments kFourRanks = {
    "--set=train.micro_batch_size=1", "--set=parallel.pipeline_model_parallel_size=2",
    "--set=parallel.data_parallel_size=2", "--set=parallel.use_distributed_optimizer=true"};
const Arguments kProcesses = {"--set=parallel.ranks_as=processes"};

int FreePort() {
  const auto listener = ListenTcp({"127.0.0.1", 0});
  EXPECT_TRUE(listener.ok());
  return LocalEndpoint(*listener)->port;
}

// Returns what a process says of the launcher whose variables it reads.
std::map<std::string, std::string> NamesOfVariables() {
  return {{"explicit", "the MEGATRON_ variables"},
          {"torchrun", "torchrun's variables"},
          {"openmpi", "Open MPI's variables"},
          {"pmi", "PMI's variables"},
          {"slurm", "Slurm's variables"}};
}

// The variables that each launcher sets for rank `rank` of 2 on this machine.
std::map<std::string, Variables> LaunchersOfTwo(const std::string& rank) {
  return {
      {"explicit",
       {{"MEGATRON_RANK", rank},
        {"MEGATRON_WORLD_SIZE", "2"},
        {"MEGATRON_LOCAL_RANK", rank},
        {"MEGATRON_LOCAL_WORLD_SIZE", "2"}}},
      {"torchrun",
       {{"RANK", rank}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", rank}, {"LOCAL_WORLD_SIZE", "2"}}},
      {"openmpi",
       {{"OMPI_COMM_WORLD_RANK", rank},
        {"OMPI_COMM_WORLD_SIZE", "2"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", rank},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}},
      {"pmi",
       {{"PMI_RANK", rank},
        {"PMI_SIZE", "2"},
        {"MPI_LOCALRANKID", rank},
        {"MPI_LOCALNRANKS", "2"}}},
      {"slurm",
       {{"SLURM_PROCID", rank},
        {"SLURM_STEP_NUM_TASKS", "2"},
        {"SLURM_LOCALID", rank},
        {"SLURM_STEP_ID", "0"},
        {"SLURM_JOB_ID", "17"},
        {"SLURM_STEP_NODELIST", "here"},
        {"SLURM_STEP_TASKS_PER_NODE", "2"},
        {"SLURM_NODEID", "0"}}},
  };
}

class PretrainProcessesTest : public PretrainProgramTest {
 protected:
  // Ranks that train for ever, after their first steps.
  pid_t StartEndless(const Arguments& more, const std::string& log) {
    const pid_t pid = Start(Joined(more, {"--set=train.train_iters=100000",
                                          "--set=train.log_interval=1", kProcesses[0]}),
                            log);
    WaitFor("iteration        2/", log);
    return pid;
  }

  void WriteSecret(mode_t mode) {
    std::ofstream(Path("secret")) << JobSecret::Random().ToHex();
    EXPECT_EQ(chmod(Path("secret").c_str(), mode), 0);
  }

  // A rank of two, as the launcher would start it; its lines are in the file of its number.
  pid_t StartRankOfTwo(const std::string& launcher, const std::string& rank, int port,
                       const Arguments& args) {
    Variables variables = LaunchersOfTwo(rank).at(launcher);
    variables.insert(variables.end(), {{"MASTER_ADDR", "127.0.0.1"},
                                       {"MASTER_PORT", absl::StrCat(port)},
                                       {"MEGATRON_JOB_SECRET_FILE", Path("secret")}});
    return StartProgram(Command(args), Path(rank), variables);
  }

  // Two ranks, each started as the launcher would; `more` is for the second alone.
  std::vector<Outcome> RunBy(const std::string& launcher, const Arguments& args,
                             const Arguments& more = {}) {
    WriteSecret(0600);
    const int port = FreePort();
    const pid_t first = StartRankOfTwo(launcher, "0", port, args);
    const pid_t second = StartRankOfTwo(launcher, "1", port, Joined(args, more));
    return {FinishProgram(first, Path("0")), FinishProgram(second, Path("1"))};
  }

  // Ends within the time, and takes all ranks along.
  Outcome ExpectToEndWithin(absl::Duration limit, pid_t pid, const std::vector<pid_t>& ranks,
                            const std::string& log) {
    const absl::Time begin = absl::Now();
    const Outcome outcome = FinishProgram(pid, log);
    EXPECT_LT(absl::Now() - begin, limit) << outcome.output;
    for (const pid_t rank : ranks) EXPECT_TRUE(HasEnded(rank)) << rank;
    return outcome;
  }
};

TEST_F(PretrainProcessesTest, ProcessesTrainWhatThreadsTrainBitForBit) {
  for (const Arguments& layout : {kTwoRanks, kFourRanks}) {
    const std::string size = absl::StrCat(layout.size());
    const Outcome threads = Run(Joined({SaveTo("threads" + size)}, layout));
    ASSERT_EQ(threads.exit_code, kExitDone) << threads.output;
    const Outcome processes = Run(Joined(Joined({SaveTo("processes" + size)}, layout), kProcesses));
    ASSERT_EQ(processes.exit_code, kExitDone) << processes.output;
    ExpectEqualCheckpoints("threads" + size, "processes" + size);
    for (const char* once : {"ranks are processes; this is rank", "iteration       12/",
                             "validation loss at iteration 12", "saved checkpoint"}) {
      EXPECT_EQ(CountOf(processes.output, once), 1) << once << "\n" << processes.output;
    }
    for (const char* number : {"lm loss: ", "lm loss value: ", "grad norm: "}) {
      EXPECT_EQ(NumberAfter(threads.output, number), NumberAfter(processes.output, number));
    }
  }
}

TEST_F(PretrainProcessesTest, ProcessesRunUnderEveryLauncher) {
  const Arguments args = Joined({"--set=train.train_iters=4"}, kTwoRanks);
  ASSERT_EQ(Run(Joined({SaveTo("threads")}, args)).exit_code, kExitDone);
  for (const auto& [launcher, unused] : LaunchersOfTwo("0")) {
    const std::vector<Outcome> outcomes = RunBy(launcher, Joined({SaveTo(launcher)}, args));
    EXPECT_EQ(outcomes[0].exit_code, kExitDone) << launcher << "\n" << outcomes[0].output;
    EXPECT_EQ(outcomes[1].exit_code, kExitDone) << launcher << "\n" << outcomes[1].output;
    EXPECT_EQ(outcomes[0].output, "");
    const std::string told_by = absl::StrCat("from ", NamesOfVariables().at(launcher), "\n");
    EXPECT_TRUE(absl::StrContains(outcomes[1].output, told_by)) << outcomes[1].output;
    ExpectEqualCheckpoints("threads", launcher);
  }
}

// A rank in the place of a lost one is told when the run began.
TEST_F(PretrainProcessesTest, ARunCountsItsTimeFromWhenItWasLaunched) {
  const absl::Time launched = absl::Now() - absl::Hours(2);
  setenv("MEGATRON_LAUNCH_TIME", absl::StrCat(absl::ToUnixMillis(launched)).c_str(), 1);
  const std::vector<Outcome> outcomes =
      RunBy("explicit", Joined({"--set=train.train_iters=4"}, kTwoRanks));
  unsetenv("MEGATRON_LAUNCH_TIME");
  ASSERT_EQ(outcomes[1].exit_code, kExitDone) << outcomes[1].output;
  EXPECT_TRUE(absl::StrContains(outcomes[1].output, "finished at iteration 4 of 4, 2h"))
      << outcomes[1].output;
}

TEST_F(PretrainProcessesTest, ALaunchersWorldThatDoesNotFitIsRefusedOnce) {
  const std::vector<Outcome> outcomes = RunBy("torchrun", kFourRanks);
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.exit_code, kExitConfig);
  EXPECT_EQ(outcomes[0].output, "");
  EXPECT_TRUE(absl::StrContains(outcomes[1].output, "parallel.data_parallel_size = 1 would fit"))
      << outcomes[1].output;
  const std::string of_one_rank =
      RunBy("torchrun", {"--set=parallel.data_parallel_size=1"})[1].output;
  EXPECT_TRUE(absl::StrContains(of_one_rank, "parallel.data_parallel_size = 2 would fit"))
      << of_one_rank;
}

TEST_F(PretrainProcessesTest, ALaunchersWorldSaysHowManyDataParallelRanksThereAre) {
  const Arguments args = {"--set=train.train_iters=4", "--set=train.micro_batch_size=1"};
  ASSERT_EQ(Run(Joined({SaveTo("written"), "--set=parallel.data_parallel_size=2"}, args)).exit_code,
            kExitDone);
  const std::vector<Outcome> outcomes =
      RunBy("torchrun", Joined({SaveTo("derived"), "--set=parallel.restarts=2"}, args));
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  EXPECT_TRUE(absl::StrContains(outcomes[1].output, "x data 2")) << outcomes[1].output;
  EXPECT_TRUE(absl::StrContains(outcomes[1].output, "parallel.restarts does nothing"))
      << outcomes[1].output;
  ExpectEqualCheckpoints("written", "derived");
}

TEST_F(PretrainProcessesTest, AWorldThatDoesNotFitIsRefusedBeforeTheOthersHaveCome) {
  WriteSecret(0600);
  const pid_t last = StartRankOfTwo("torchrun", "1", FreePort(), kFourRanks);
  const Outcome outcome = FinishProgram(last, Path("1"));
  EXPECT_EQ(outcome.exit_code, kExitConfig) << outcome.output;
  EXPECT_TRUE(absl::StrContains(outcome.output, "would fit")) << outcome.output;
}

TEST_F(PretrainProcessesTest, ASecretThatOthersMayReadIsRefused) {
  WriteSecret(0644);
  const pid_t rank = StartRankOfTwo("torchrun", "0", FreePort(), kTwoRanks);
  const Outcome outcome = FinishProgram(rank, Path("0"));
  EXPECT_EQ(outcome.exit_code, kExitConfig) << outcome.output;
  EXPECT_TRUE(absl::StrContains(outcome.output, "others may read it")) << outcome.output;
}

TEST_F(PretrainProcessesTest, ARankOfAnotherConfigurationIsNamedWithTheField) {
  const std::vector<Outcome> outcomes =
      RunBy("torchrun", kTwoRanks, {"--set=optimizer.adam_beta2=0.5", "--set=train.seed=9"});
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.exit_code, kExitConfig);
  for (const char* text :
       {"rank 1: was started with another configuration than rank 0",
        "optimizer.adam_beta2 is 0.5, on rank 0 0.999", "train.seed is 9, on rank 0 1234"}) {
    EXPECT_TRUE(absl::StrContains(outcomes[1].output, text)) << text << "\n" << outcomes[1].output;
  }
}

TEST_F(PretrainProcessesTest, WithoutTheSecretNothingStarts) {
  const Outcome outcome = FinishProgram(
      StartProgram(Command(kTwoRanks), Path("log.txt"), LaunchersOfTwo("0").at("torchrun")),
      Path("log.txt"));
  EXPECT_EQ(outcome.exit_code, kExitConfig) << outcome.output;
  EXPECT_TRUE(absl::StrContains(outcome.output, "MEGATRON_JOB_SECRET_FILE")) << outcome.output;
}

TEST_F(PretrainProcessesTest, AKilledRankEndsTheOthersAndNothingStays) {
  const std::string log = Path("log.txt");
  const pid_t pid = StartEndless(Joined({SaveTo("save")}, kFourRanks), log);
  const std::vector<pid_t> ranks = ChildrenOf(pid);
  ASSERT_EQ(ranks.size(), 4u);
  kill(ranks[1], SIGKILL);
  const Outcome outcome = ExpectToEndWithin(absl::Seconds(5), pid, ranks, log);
  EXPECT_EQ(outcome.exit_code, kExitPeerLost) << outcome.output;
  EXPECT_TRUE(absl::StrContains(outcome.output, "rank 1 was ended by signal 9")) << outcome.output;
}

TEST_F(PretrainProcessesTest, AStoppedRankIsNamed) {
  const std::string log = Path("log.txt");
  const pid_t pid =
      StartEndless(Joined({"--set=parallel.heartbeat_timeout_seconds=1"}, kFourRanks), log);
  const std::vector<pid_t> ranks = ChildrenOf(pid);
  ASSERT_EQ(ranks.size(), 4u);
  kill(ranks[2], SIGSTOP);
  const Outcome outcome = ExpectToEndWithin(absl::Seconds(9), pid, ranks, log);
  EXPECT_EQ(outcome.exit_code, kExitHang) << outcome.output;
  EXPECT_TRUE(absl::StrContains(outcome.output, "rank 2 of world")) << outcome.output;
}

TEST_F(PretrainProcessesTest, RanksEndWithTheProcessThatStartedThem) {
  const std::string log = Path("log.txt");
  const pid_t pid = StartEndless(kFourRanks, log);
  const std::vector<pid_t> ranks = ChildrenOf(pid);
  kill(pid, SIGKILL);
  ExpectToEndWithin(absl::Seconds(5), pid, {}, log);
  for (const pid_t rank : ranks) {
    for (int i = 0; i < 500 && !HasEnded(rank); ++i) absl::SleepFor(absl::Milliseconds(10));
    EXPECT_TRUE(HasEnded(rank));
  }
}

TEST_F(PretrainProcessesTest, ASignalSavesOneStepEverywhere) {
  signal(SIGHUP, SIG_DFL);  // what ignores it hands that on to the programs that it starts
  for (const int signal_number : {SIGTERM, SIGHUP}) {
    const std::string log = Path("log.txt"), save = absl::StrCat("save", signal_number);
    const pid_t pid = StartEndless(Joined({SaveTo(save)}, kFourRanks), log);
    kill(pid, signal_number);
    const Outcome outcome = FinishProgram(pid, log);
    EXPECT_EQ(outcome.exit_code, kExitSavedOnSignal) << outcome.output;
    EXPECT_EQ(CountOf(outcome.output, "saved checkpoint"), 1) << outcome.output;
    EXPECT_EQ(Checkpoint(save).size(), 5u);  // a shard of each rank, and the manifest
  }
}

TEST_F(PretrainProcessesTest, AnErrorIsReportedOnceWithItsExitCode) {
  const auto expect = [this](const Arguments& args, int code, const std::string& text) {
    const Outcome outcome = Run(args);
    EXPECT_EQ(outcome.exit_code, code) << outcome.output;
    EXPECT_EQ(CountOf(outcome.output, "error: "), 1) << outcome.output;
    EXPECT_TRUE(absl::StrContains(outcome.output, text)) << outcome.output;
  };
  const Arguments four = Joined(kFourRanks, kProcesses);
  expect(Joined(four, {"--set=train.train_iters=x"}), kExitConfig, "train_iters");
  expect(Joined(four, {"--set=data.stories.num_bytes=100"}), kExitData, "data.split");
  ASSERT_EQ(Run(Joined({SaveTo("save")}, four)).exit_code, kExitDone);
  expect(Joined(four, {SaveTo("save"), "--set=train.seed=8"}), kExitConfig, "another run");
  // Its last bytes are moments of the last stage, which no other rank reads.
  const std::string shard = Path("save/iter_0000012/shard_00003_of_00004.bin");
  std::string bytes = ReadTextFile(shard);
  bytes[bytes.size() - 1] ^= 1;
  std::ofstream(shard, std::ios::binary) << bytes;
  expect(Joined(four, {SaveTo("save"), "--set=train.train_iters=20"}), kExitCorruptCheckpoint,
         "shard_00003_of_00004.bin");
}

}  // namespace
}  // namespace megatron
