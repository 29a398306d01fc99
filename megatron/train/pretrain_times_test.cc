// Reads back what pretrain_gpt prints and writes of where its time goes.
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/pretrain_harness.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using Json = nlohmann::json;

class PretrainTimesTest : public PretrainProgramTest {
 protected:
  // Returns the steps of a run's metrics.jsonl.
  std::vector<Json> Steps(const std::string& save) const {
    std::vector<Json> steps;
    for (const auto line : absl::StrSplit(ReadTextFile(Path(save + "/metrics.jsonl")), '\n')) {
      const Json object = Json::parse(std::string(line), nullptr, /*allow_exceptions=*/false);
      if (object.is_object() && object.contains("grad-norm")) steps.push_back(object);
    }
    return steps;
  }
};

// Returns the sum of the shares that are told apart.
double SumOfShares(const Json& step) {
  double sum = 0;
  for (const auto& [key, value] : step.items()) {
    const bool is_part =
        absl::StartsWith(key, "share/") && !absl::EndsWith(key, "-communication") &&
        !absl::StartsWith(key, "share/least-") && !absl::StartsWith(key, "share/most-");
    if (is_part) sum += value.get<double>();
  }
  return sum;
}

const Arguments& EightRanks() {
  static const auto* const arguments = new Arguments{
      "--set=train.micro_batch_size=1",         "--set=parallel.tensor_model_parallel_size=2",
      "--set=parallel.sequence_parallel=true",  "--set=parallel.pipeline_model_parallel_size=2",
      "--set=parallel.data_parallel_size=2",    "--set=parallel.use_distributed_optimizer=true",
      "--set=parallel.overlap_grad_reduce=true"};
  return *arguments;
}

TEST_F(PretrainTimesTest, ALogLineIsFollowedBySharesThatAddUp) {
  const Outcome outcome = Run(Joined({SaveTo("save")}, EightRanks()));
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  const int lines = CountOf(outcome.output, "elapsed time per iteration");
  EXPECT_EQ(lines, 6) << outcome.output;  // 1, 2, 3, 4, 8, 12
  for (const char* text : {"\n time (%): compute ", " | all communication "})
    EXPECT_EQ(CountOf(outcome.output, text), lines) << text << "\n" << outcome.output;
  EXPECT_GE(CountOf(outcome.output, "\n memory of a rank (MiB): held "), 1) << outcome.output;
  EXPECT_EQ(CountOf(outcome.output, "time across ranks"), 0) << outcome.output;
  const std::vector<Json> steps = Steps("save");
  ASSERT_EQ(steps.size(), 12u);
  double hidden = 0;
  for (const Json& step : steps) {
    const int64_t iteration = step["iteration"];
    const bool logged = iteration <= 3 || iteration % 4 == 0;
    EXPECT_NEAR(SumOfShares(step), logged ? 1 : 0, 1e-9) << step;
    for (const char* key :
         {"share/compute", "share/tp", "share/dp", "share/pp", "share/bubble", "share/optimizer",
          "share/data", "share/all-communication", "share/hidden-communication",
          "share/least-compute", "share/most-compute", "slowest-rank", "slowest-rank-excess"})
      EXPECT_EQ(step.contains(key), logged) << key << " " << step;
    if (logged) {
      EXPECT_LE(step["share/least-compute"], step["share/compute"]) << step;
      hidden += step["share/hidden-communication"].get<double>();
    }
    EXPECT_FALSE(step.contains("share/ep")) << step;
  }
  // Where 8 ranks share two busy cores, the ranks of a single line may have waited for everything.
  EXPECT_GT(hidden, 0);
  EXPECT_GT(steps[7]["share/evaluation"], 0);  // iteration 8 is the first line after it
}

// What a rank holds in host memory beside its device is planned too.
TEST_F(PretrainTimesTest, ARankHoldsWhatIsPlannedWithStatesInAFile) {
  const Outcome outcome = Run({"--set=optimizer.optimizer_cpu_offload=true",
                               "--set=optimizer.optimizer_offload_path=" + Path("states")});
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  int lines = 0;
  for (const auto line : absl::StrSplit(outcome.output, '\n')) {
    double held = 0, peak = 0, planned = 0;
    if (std::sscanf(std::string(line).c_str(),
                    " memory of a rank (MiB): held %lf | peak %lf | planned %lf", &held, &peak,
                    &planned) != 3)
      continue;
    ++lines;
    EXPECT_GT(held, 0) << line;
    EXPECT_LE(held, planned) << line;
    EXPECT_NEAR(peak, planned, 0.1) << line;
  }
  EXPECT_GE(lines, 1) << outcome.output;
}

TEST_F(PretrainTimesTest, AnAxisOfOneRankHasNoShareOfTime) {
  const Arguments two_stages = {"--set=train.micro_batch_size=1",
                                "--set=parallel.pipeline_model_parallel_size=2"};
  for (const Arguments& ranks : {Arguments(), two_stages}) {
    const Outcome outcome = Run(Joined({SaveTo(absl::StrCat("save", ranks.size()))}, ranks));
    ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
    const std::vector<Json> steps = Steps(absl::StrCat("save", ranks.size()));
    ASSERT_EQ(steps.size(), 12u);
    EXPECT_NEAR(SumOfShares(steps[0]), 1, 1e-9) << steps[0];
    EXPECT_EQ(steps[0].contains("share/pp"), !ranks.empty()) << steps[0];
    for (const char* axis : {"tp", "cp", "ep", "dp"}) {
      for (const char* kind : {"share/", "share/least-", "share/most-"})
        EXPECT_FALSE(steps[0].contains(absl::StrCat(kind, axis))) << steps[0];
    }
    EXPECT_EQ(CountOf(outcome.output, "| dp "), 0) << outcome.output;
  }
}

TEST_F(PretrainTimesTest, ARunOfSeveralRanksEndsWithTheTableOfItsCalls) {
  const Outcome outcome = Run(EightRanks());
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  EXPECT_EQ(CountOf(outcome.output, "# communication of the run"), 1) << outcome.output;
  std::map<std::string, std::vector<std::string>> rows;  // by group and operation
  for (const auto line : absl::StrSplit(outcome.output, '\n')) {
    const std::vector<std::string> cells = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (cells.size() == 10 && cells[1] == "2") rows[absl::StrCat(cells[0], " ", cells[2])] = cells;
  }
  for (const char* row :
       {"tp all-gather", "tp reduce-scatter", "tp-overlap all-gather", "tp-overlap reduce-scatter",
        "pp-overlap exchange", "dp-cp-overlap reduce-scatter", "dp-cp all-gather"})
    EXPECT_EQ(rows.count(row), 1) << row << "\n" << outcome.output;
  // Each of the 12 steps gathers as often as the others.
  EXPECT_EQ(std::stoi(rows["dp-cp all-gather"].at(3)) % 12, 0) << outcome.output;
}

TEST_F(PretrainTimesTest, ARunEndsWithWhatSlowRanksAndCallsCost) {
  const Outcome outcome = Run(Joined({SaveTo("save")}, EightRanks()));
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  EXPECT_EQ(CountOf(outcome.output, "\n# a step took "), 1) << outcome.output;
  const Json file = Json::parse(ReadTextFile(Path("save/metrics.ranks.json")));
  EXPECT_EQ(file["iteration"], 12);
  ASSERT_EQ(file["ranks"].size(), 8);
  for (int rank = 0; rank < 8; ++rank) EXPECT_EQ(file["ranks"][rank]["stage"], rank / 4);
  EXPECT_FALSE(file["communication"].empty());
  const Json& what_if = file["what_if"];
  EXPECT_EQ(what_if["steps"], 11);
  // Other programs may run beside this one: what a replay is worth is tested on a clock of its own.
  EXPECT_GT(what_if["measured"], 0);
  EXPECT_NEAR(what_if["replayed"].get<double>() / what_if["measured"].get<double>(), 1, 0.5);
}

TEST_F(PretrainTimesTest, TimersHaveMegatronsNamesAtTheirLevels) {
  for (const int level : {1, 2}) {
    const Outcome outcome = Run(Joined({SaveTo(absl::StrCat("level", level)),
                                        absl::StrCat("--set=logging.timing_log_level=", level)},
                                       EightRanks()));
    ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
    const int lines = CountOf(outcome.output, "elapsed time per iteration");
    EXPECT_EQ(CountOf(outcome.output, "\n(min, max) time across ranks (ms):\n"), lines);
    for (const char* timer : {"forward-backward", "all-grads-sync", "params-all-gather",
                              "optimizer-inner-step", "optimizer"}) {
      EXPECT_EQ(CountOf(outcome.output, absl::StrCat("\n    ", timer, " .")), lines)
          << timer << "\n"
          << outcome.output;
    }
    for (const char* timer : {"forward-compute", "backward-compute", "batch-generator",
                              "forward-recv", "backward-recv"}) {
      EXPECT_EQ(CountOf(outcome.output, absl::StrCat("\n    ", timer, " .")),
                level == 2 ? lines : 0)
          << timer << "\n"
          << outcome.output;
    }
  }
  ExpectEqualCheckpoints("level1", "level2");
}

TEST_F(PretrainTimesTest, HowOftenTimesAreGatheredChangesNoResult) {
  for (const char* interval : {"1", "1000"}) {
    const Outcome outcome = Run(Joined(
        {SaveTo(interval), absl::StrCat("--set=train.log_interval=", interval)}, EightRanks()));
    ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  }
  ExpectEqualCheckpoints("1", "1000");
}

TEST_F(PretrainTimesTest, AGpusTimesAreThoseOfItsStream) {
  Arguments command = Command({SaveTo("save"), "--set=logging.timing_log_level=2"});
  command[0] = ProgramPath("megatron/train/pretrain_gpt_emulated_cuda");
  const std::string log = Path("cuda.txt");
  const Outcome outcome = FinishProgram(StartProgram(command, log), log);
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  const int lines = CountOf(outcome.output, "elapsed time per iteration");
  for (const char* text : {"\n time (%): compute ", "\n    forward-compute .", "\n    optimizer ."})
    EXPECT_EQ(CountOf(outcome.output, text), lines) << text << "\n" << outcome.output;
  EXPECT_GE(CountOf(outcome.output, " | GPU of rank 0 on "), 1) << outcome.output;
  for (const Json& step : Steps("save")) {
    if (!step.contains("share/compute")) continue;
    EXPECT_NEAR(SumOfShares(step), 1, 1e-9) << step;
  }
}

}  // namespace
}  // namespace megatron
