// Runs that go on with fewer or more data-parallel ranks: the global batch, the samples and so the
// losses are those of the undisturbed run.

#include <signal.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/checkpoint/checkpoint_reader.h"
#include "megatron/checkpoint/find_checkpoint.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/pretrain_harness.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// The bound of train/layouts for losses of different layouts.
constexpr double kTolerance = 2e-6;

Arguments DataSize(int size) { return {absl::StrCat("--set=parallel.data_parallel_size=", size)}; }

class PretrainElasticTest : public PretrainProgramTest {
 protected:
  // The losses of all steps of a run, by iteration.
  std::map<int, double> Losses(const std::string& run) const {
    std::map<int, double> losses;
    for (absl::string_view line :
         absl::StrSplit(ReadTextFile(Path(run + "/metrics.jsonl")), '\n', absl::SkipEmpty())) {
      const nlohmann::json step = nlohmann::json::parse(line);
      if (step.contains("lm loss")) losses[step["iteration"]] = step["lm loss"];
    }
    return losses;
  }

  int64_t ConsumedSamples(const std::string& run) const {
    const auto found = FindLatestCheckpoint(PosixFileSystem(), Path(run));
    EXPECT_TRUE(found.ok()) << found.status();
    const auto reader = CheckpointReader::Open(PosixFileSystem(), found->directory);
    EXPECT_TRUE(reader.ok()) << reader.status();
    return reader->Int("consumed_train_samples").value_or(-1);
  }

  void ExpectSameCurve(const std::string& want, const std::string& got, size_t steps) const {
    const std::map<int, double> wanted = Losses(want), losses = Losses(got);
    EXPECT_EQ(wanted.size(), steps);
    EXPECT_EQ(losses.size(), steps);
    for (const auto& [iteration, loss] : wanted) {
      const auto found = losses.find(iteration);
      ASSERT_NE(found, losses.end()) << iteration;
      EXPECT_NEAR(found->second, loss, kTolerance * loss) << "iteration " << iteration;
    }
    EXPECT_EQ(ConsumedSamples(got), ConsumedSamples(want));
  }

  // Kills rank 1 of a program that has started its ranks, once it has made a step behind the text.
  static void KillRankOne(pid_t pid, const std::string& text, const std::string& log) {
    const absl::Time until = absl::Now() + absl::Seconds(60);
    while (absl::Now() < until) {
      const std::string printed = ReadTextFile(log);
      const size_t at = printed.find(text);
      if (at != std::string::npos && printed.find("iteration ", at) != std::string::npos) break;
      absl::SleepFor(absl::Milliseconds(10));
    }
    const std::vector<pid_t> ranks = ChildrenOf(pid);
    ASSERT_GT(ranks.size(), 1u) << ReadTextFile(log);
    kill(ranks[1], SIGKILL);
  }
};

TEST_F(PretrainElasticTest, EightRanksThenFourThenEightTrainTheSameCurve) {
  const Arguments args = {"--set=train.global_batch_size=8", "--set=train.micro_batch_size=1",
                          "--set=train.train_iters=12", "--set=parallel.ranks_as=processes",
                          "--set=parallel.use_distributed_optimizer=true"};
  ASSERT_EQ(Run(Joined(Joined({SaveTo("whole")}, DataSize(8)), args)).exit_code, kExitDone);
  const Arguments elastic = Joined({SaveTo("elastic"), "--set=train.exit_interval=4"}, args);
  for (const int size : {8, 4, 8}) {
    const Outcome outcome = Run(Joined(DataSize(size), elastic));
    ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(absl::StrCat("x data ", size)));
  }
  ExpectSameCurve("whole", "elastic", 12);
}

// A batch of 12 cannot be shared by 5 ranks; which can is said.
TEST_F(PretrainElasticTest, TheElasticBatchIsSharedByTheRanksThatThereAre) {
  const Arguments args = {"--set=train.train_iters=9", "--set=elasticity.enabled=true",
                          "--set=elasticity.max_train_batch_size=12",
                          "--set=elasticity.micro_batch_sizes=[1, 3]",
                          "--set=elasticity.ignore_non_elastic_batch_info=true"};
  ASSERT_EQ(Run(Joined(Joined({SaveTo("whole")}, DataSize(4)), args)).exit_code, kExitDone);
  const Arguments elastic = Joined({SaveTo("elastic"), "--set=train.exit_interval=3"}, args);
  for (const int size : {4, 2, 3}) {
    const Outcome outcome = Run(Joined(DataSize(size), elastic));
    ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  }
  ExpectSameCurve("whole", "elastic", 9);
  EXPECT_EQ(ConsumedSamples("elastic"), 9 * 12);
  const Outcome refused = Run(Joined(DataSize(5), elastic));
  EXPECT_EQ(refused.exit_code, kExitConfig);
  EXPECT_THAT(refused.output, HasSubstr("possible are 1-4, 6, 12"));
}

TEST_F(PretrainElasticTest, AfterTwoFailuresOfARankTheRunGoesOnWithoutItsPlace) {
  // SGD, whose rounding differences do not grow over many steps.
  const Arguments args = {
      "--set=train.global_batch_size=8",     "--set=train.micro_batch_size=1",
      "--set=train.train_iters=80",          "--set=train.log_interval=1",
      "--set=optimizer.optimizer=sgd",       "--set=parallel.ranks_as=processes",
      "--set=parallel.data_parallel_size=4", "--set=checkpoint.save_interval=2",
      "--set=checkpoint.keep_last=2"};
  ASSERT_EQ(Run(Joined({SaveTo("whole")}, args)).exit_code, kExitDone);
  const std::string log = Path("log.txt");
  const pid_t pid = Start(Joined({SaveTo("elastic"), "--set=parallel.restarts=9",
                                  "--set=parallel.min_data_parallel_size=2"},
                                 args),
                          log);
  KillRankOne(pid, "training", log);
  KillRankOne(pid, "restart 1: ", log);
  const Outcome outcome = FinishProgram(pid, log);
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  // Three places are left, and 3 ranks cannot share 8 samples.
  EXPECT_THAT(outcome.output,
              HasSubstr("going on with parallel.data_parallel_size = 2 of 4, without the places"));
  EXPECT_THAT(outcome.output, Not(HasSubstr("(3 of 9)")));
  ExpectSameCurve("whole", "elastic", 80);
}

}  // namespace
}  // namespace megatron
