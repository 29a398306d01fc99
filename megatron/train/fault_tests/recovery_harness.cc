#include "megatron/train/fault_tests/recovery_harness.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

// The bound of train/layouts for losses of different layouts.
constexpr double kTolerance = 2e-6;

}  // namespace

Arguments RecoveryTest::Base(int data_size, int iterations) {
  return {absl::StrCat("--set=parallel.data_parallel_size=", data_size),
          absl::StrCat("--set=train.train_iters=", iterations),
          "--set=train.global_batch_size=8",
          "--set=train.micro_batch_size=1",
          "--set=train.log_interval=1",
          "--set=optimizer.optimizer=sgd",
          "--set=parallel.ranks_as=processes",
          "--set=parallel.in_process_recovery=true"};
}

Arguments RecoveryTest::WithShardCopies(const std::string& strategy) {
  return {"--set=parallel.use_distributed_optimizer=true",
          absl::StrCat("--set=parallel.data_parallel_sharding_strategy=", strategy),
          "--set=parallel.shard_copies=1"};
}

std::map<int, double> RecoveryTest::Losses(const std::string& run) const {
  std::map<int, double> losses;
  const std::string text = ReadTextFile(Path(run + "/metrics.jsonl"));
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const nlohmann::json step = nlohmann::json::parse(line);
    if (!step.contains("lm loss")) continue;
    const int iteration = step["iteration"];
    EXPECT_EQ(losses.count(iteration), 0u) << iteration;
    losses[iteration] = step["lm loss"];
  }
  return losses;
}

void RecoveryTest::ExpectSameCurve(const std::string& want, const std::string& got,
                                   size_t steps) const {
  const std::map<int, double> wanted = Losses(want), losses = Losses(got);
  EXPECT_EQ(wanted.size(), steps);
  EXPECT_EQ(losses.size(), steps);
  for (const auto& [iteration, loss] : wanted) {
    const auto found = losses.find(iteration);
    if (found == losses.end()) {
      ADD_FAILURE() << "step " << iteration << " is missing";
      continue;
    }
    EXPECT_NEAR(found->second, loss, kTolerance * loss) << "iteration " << iteration;
  }
}

int RecoveryTest::StepsOf(const std::string& run) const {
  return CountOf(ReadTextFile(Path(run + "/metrics.jsonl")), "\"lm loss\"");
}

void RecoveryTest::WaitForSteps(const std::string& run, int steps, const std::string& log) const {
  const int wanted = StepsOf(run) + steps;
  const absl::Time until = absl::Now() + absl::Seconds(60);
  while (StepsOf(run) < wanted) {
    ASSERT_LT(absl::Now(), until) << ReadTextFile(log);
    absl::SleepFor(absl::Milliseconds(5));
  }
}

}  // namespace megatron
