// train.auto_layout in whole runs: ranks that are threads, processes that the program starts, and
// those of a launcher; and runs that go on.

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/comm/socket/job_secret.h"
#include "megatron/comm/socket/socket.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/pretrain_harness.h"

namespace megatron {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

int FreePort() {
  const auto listener = ListenTcp({"127.0.0.1", 0});
  EXPECT_TRUE(listener.ok());
  return LocalEndpoint(*listener)->port;
}

class PretrainAutoLayoutTest : public PretrainProgramTest {
 protected:
  PretrainAutoLayoutTest() {
    std::ofstream(Path("hardware.textproto"))
        << "hardware { name: 'mine' fp32_tflops: 0.1 bf16_tflops: 0.1 memory_gib: 16 "
           "memory_gb_per_s: 20 link_gb_per_s: 8 domain: 64 network_gb_per_s: 1 cores: 8 "
           "thread_efficiency: 0.9 }";
  }

  Arguments Auto(const Arguments& more) const {
    return Joined({"--set=train.auto_layout=true", "--set=train.global_batch_size=8",
                   absl::StrCat("--set=system.hardware_file=\"", Path("hardware.textproto"), "\"")},
                  more);
  }
};

TEST_F(PretrainAutoLayoutTest, RanksThatAreThreadsTrainInTheLayout) {
  const Outcome run = Run(Auto({"--set=train.auto_layout_ranks=4"}));
  EXPECT_EQ(run.exit_code, kExitDone) << run.output;
  EXPECT_THAT(run.output, AllOf(HasSubstr("4 ranks = "), HasSubstr("layout: "),
                                HasSubstr("layouts on 4 ranks, predicted")));
}

TEST_F(PretrainAutoLayoutTest, EightProcessesTakeTheSameLayoutAndKeepIt) {
  const Arguments eight =
      Auto({"--set=train.auto_layout_ranks=8", "--set=parallel.ranks_as=processes", SaveTo("run")});
  const Outcome first = Run(Joined(eight, {"--set=train.exit_interval=2"}));
  EXPECT_EQ(first.exit_code, kExitDone) << first.output;
  EXPECT_THAT(first.output, AllOf(HasSubstr("8 ranks = "), HasSubstr("predicted to take")));
  const std::string saved = ReadTextFile(Path("run/auto_layout.textproto"));
  EXPECT_THAT(saved, HasSubstr("ranks: 8"));

  const Outcome again = Run(eight);
  EXPECT_EQ(again.exit_code, kExitDone) << again.output;
  EXPECT_THAT(again.output, AllOf(HasSubstr("kept, as "), Not(HasSubstr("predicted to take"))));
  EXPECT_EQ(ReadTextFile(Path("run/auto_layout.textproto")), saved);
}

TEST_F(PretrainAutoLayoutTest, OnFewerRanksTheRunGoesOnInAnotherLayout) {
  const Outcome first =
      Run(Auto({"--set=train.auto_layout_ranks=4", SaveTo("run"), "--set=train.exit_interval=2"}));
  EXPECT_EQ(first.exit_code, kExitDone) << first.output;
  const Outcome fewer = Run(Auto({"--set=train.auto_layout_ranks=2", SaveTo("run")}));
  EXPECT_EQ(fewer.exit_code, kExitDone) << fewer.output;
  EXPECT_THAT(fewer.output, AllOf(HasSubstr("it is for 4 ranks"), HasSubstr("2 ranks = ")));
  EXPECT_THAT(fewer.output, Not(HasSubstr("iteration        1/")));
  EXPECT_THAT(ReadTextFile(Path("run/auto_layout.textproto")), HasSubstr("ranks: 2"));
}

TEST_F(PretrainAutoLayoutTest, TheWorldOfALauncherIsDivided) {
  const std::string port = absl::StrCat(FreePort());
  const std::string secret = JobSecret::Random().ToHex();
  std::vector<pid_t> processes;
  for (const std::string rank : {"0", "1"}) {
    processes.push_back(StartProgram(Command(Auto({})), Path("log" + rank),
                                     {{"RANK", rank},
                                      {"WORLD_SIZE", "2"},
                                      {"LOCAL_RANK", rank},
                                      {"LOCAL_WORLD_SIZE", "2"},
                                      {"MASTER_ADDR", "127.0.0.1"},
                                      {"MASTER_PORT", port},
                                      {"MEGATRON_JOB_SECRET", secret}}));
  }
  std::string output;
  for (int rank = 0; rank < 2; ++rank) {
    const Outcome outcome = FinishProgram(processes[rank], Path(absl::StrCat("log", rank)));
    EXPECT_EQ(outcome.exit_code, kExitDone) << outcome.output;
    output += outcome.output;
  }
  EXPECT_THAT(output, AllOf(HasSubstr("torchrun's variables"), HasSubstr("layouts on 2 ranks")));
}

TEST_F(PretrainAutoLayoutTest, AMistakeIsReportedOnceByAllProcesses) {
  const Outcome run =
      Run(Auto({"--set=train.auto_layout_ranks=2", "--set=parallel.ranks_as=processes",
                "--set=parallel.tensor_model_parallel_size=3"}));
  EXPECT_EQ(run.exit_code, kExitConfig);
  EXPECT_EQ(CountOf(run.output, "no layout of 2 ranks has all that is written"), 1) << run.output;
}

TEST_F(PretrainAutoLayoutTest, AfterTwentyStepsARunComparesItselfWithItsPrediction) {
  const Arguments steps = {"--set=train.train_iters=24", "--set=optimizer.lr_decay_iters=24"};
  const Outcome run = Run(Joined(
      Auto({"--set=train.auto_layout_ranks=2", "--set=parallel.ranks_as=processes", SaveTo("run"),
            absl::StrCat("--set=logging.on_event=\"cat >> ", Path("events"), "\"")}),
      steps));
  EXPECT_EQ(run.exit_code, kExitDone) << run.output;
  EXPECT_EQ(CountOf(run.output, "prediction: a step takes "), 1) << run.output;
  EXPECT_THAT(ReadTextFile(Path("run/prediction.textproto")),
              AllOf(HasSubstr("steps: 20"), HasSubstr("name: \"compute\"")));

  const std::string metrics = ReadTextFile(Path("run/metrics.jsonl"));
  EXPECT_EQ(CountOf(metrics, "\"prediction-excess\":"), 1);
  EXPECT_THAT(metrics, ContainsRegex("\"iteration\":23,[^\n]*\"prediction-excess\":"));
  const std::string events = ReadTextFile(Path("events"));
  EXPECT_EQ(CountOf(events,
                    "\"event\":\"predicted\",\"iteration\":23,"
                    "\"message\":\"prediction: a step takes "),
            1)
      << events;

  // The hardware alone suffices; without it nothing is predicted.
  const std::string file =
      absl::StrCat("--set=system.hardware_file=\"", Path("hardware.textproto"), "\"");
  EXPECT_EQ(CountOf(Run(Joined({file}, steps)).output, "prediction: a step takes "), 1);
  EXPECT_EQ(CountOf(Run(steps).output, "prediction: a step takes "), 0);
}

TEST_F(PretrainAutoLayoutTest, StepsOfARampUpAreNotCompared) {
  const Outcome run =
      Run(Auto({"--set=train.train_iters=26", "--set=optimizer.lr_decay_iters=26",
                "--set=train.rampup_batch_size={start: 4 increment: 4 samples: 24}"}));
  EXPECT_EQ(run.exit_code, kExitDone) << run.output;
  EXPECT_EQ(CountOf(run.output, "prediction: a step takes "), 0) << run.output;
}

TEST_F(PretrainAutoLayoutTest, AWrongHardwareFileEndsARunThatOnlyComparesItselfAndADryRun) {
  std::ofstream(Path("wrong.textproto")) << "hardware { name: 'mine' bf16_tflops: -1 }";
  std::ofstream(Path("garbled.textproto")) << "hardware { nonsense: 1 }";
  for (const char* program : {"megatron/train/pretrain_gpt", "megatron/train/pretrain_t5"}) {
    const bool is_t5 = program != std::string("megatron/train/pretrain_gpt");
    for (const char* dry_run : {"", "--dry_run", "--dry_run=full"}) {
      for (const auto& [name, mistake] : {std::pair("none.textproto", "No such file"),
                                          std::pair("wrong.textproto", "bf16_tflops"),
                                          std::pair("garbled.textproto", "nonsense")}) {
        Arguments command = Command(
            {SaveTo("untouched"), absl::StrCat("--set=system.hardware_file=\"", Path(name), "\"")});
        command[0] = ProgramPath(program);
        if (is_t5) {
          command =
              Joined(command,
                     {"--set=model.model_type=t5", "--set=model.decoder_seq_length=24",
                      "--set=data.tokenizer_type=StoryWordPiece", "--set=data.vocab_extra_ids=10"});
        }
        if (*dry_run != 0) command.push_back(dry_run);
        const Outcome run = FinishProgram(StartProgram(command, Path("log")), Path("log"));
        EXPECT_EQ(run.exit_code, kExitConfig) << program << dry_run << name << run.output;
        EXPECT_THAT(
            run.output,
            AllOf(HasSubstr(absl::StrCat("error: system.hardware_file = ", Path(name), ": ")),
                  HasSubstr(mistake)));
        EXPECT_FALSE(std::ifstream(Path("untouched/.lock")).good());
      }
    }
  }
}

TEST_F(PretrainAutoLayoutTest, ADryRunShowsTheLayout) {
  const Outcome plan = Run(Auto({"--set=train.auto_layout_ranks=8", "--dry_run=full"}));
  EXPECT_EQ(plan.exit_code, kExitDone) << plan.output;
  EXPECT_THAT(plan.output, AllOf(HasSubstr("layouts on 8 ranks, predicted"),
                                 HasSubstr("  # train.auto_layout")));
}

}  // namespace
}  // namespace megatron
