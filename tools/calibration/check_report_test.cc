#include "tools/calibration/check_report.h"

#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/plan/plan_facts.h"
#include "tools/calibration/calibrated_facts.h"
#include "tools/calibration/check_layouts.h"

namespace megatron {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(CheckReportTest, CountsRowsWithinTenPercent) {
  const std::string text =
      CheckReport({{"gpt", "a", {1, 2, 3}, 2.1}, {"gpt", "b", {4, 4, 4}, 5}, {"gpt", "c", {}, 5}});
  EXPECT_THAT(text, HasSubstr("1 of 2 layouts (50 %) within 10 %; mean 15.0 %"));
  EXPECT_THAT(text, HasSubstr("chosen a, fastest a, regret 0.0 %\n"));
  EXPECT_EQ(CheckReport({}), "No layout has run.\n");
}

TEST(CheckReportTest, RegretIsWhatTheChosenLayoutLoses) {
  EXPECT_THAT(CheckReport({{"gpt", "a", {2, 2.2, 2.4}, 1}, {"gpt", "b", {1, 1, 1}, 3}}),
              HasSubstr("chosen a, fastest b, regret 120.0 %\n"));
  EXPECT_THAT(CheckReport({{"gpt", "a", {2, 2.2, 2.4}, 1}, {"gpt", "b", {1.9, 2.1, 2.3}, 3}}),
              HasSubstr("regret 4.8 %, a tie\n"));
}

TEST(CheckReportTest, DisturbedRunsCountOnlyWhereThereAreNoOthers) {
  EXPECT_THAT(RunsThatCount({{1, 0.5, 0}, {2, 0.01, 0.05}, {3, 0, 0.3}, {4, 0.04, 0.1}}),
              ElementsAre(2, 4));
  EXPECT_THAT(RunsThatCount({{1, 0.5, 0}, {3, 0, 0.3}}), ElementsAre(3));
  EXPECT_THAT(RunsThatCount({}), IsEmpty());
  // A share that isn't known is no undisturbed one.
  EXPECT_TRUE((CheckedRun{1, NAN, 0}).is_disturbed());
  EXPECT_THAT(CheckReport({{"gpt", "a", {2}, 1, true}}), HasSubstr(" -50.0 %  disturbed\n"));
}

TEST(CheckReportTest, RunsAreTakenToTheSpeedOfTheCalibration) {
  // Cores at 0.9 of their speed in both have lost a tenth, and faster ones less than nothing.
  EXPECT_NEAR(LostSpeed(0.9, 0.9), 0.1, 1e-12);
  EXPECT_NEAR(LostSpeed(1, 1), 0, 1e-12);
  EXPECT_LT(LostSpeed(1.1, 1.2), -0.1);
  // Where memory alone has half of its rate, a quarter of the mix takes twice as long.
  EXPECT_NEAR(LostSpeed(1, 0.5), 0.2, 1e-12);
  // The same layout on a machine that drifts: the times agree, and the disturbed run is left out.
  const std::vector<double> seconds =
      AtCalibratedSpeed({{1 / 0.95, 0, 0.05}, {1 / 1.08, 0.01, -0.08}, {2, 0.5, 0}, {9, 0, 0.3}});
  ASSERT_EQ(seconds.size(), 2);
  EXPECT_NEAR(seconds[0], 1, 1e-12);
  EXPECT_NEAR(seconds[1], 1, 1e-12);
  // What nothing else is there of is scaled, too.
  EXPECT_NEAR(AtCalibratedSpeed({{2, 0, 0.5}})[0], 1, 1e-12);
  EXPECT_THAT(AtCalibratedSpeed({}), IsEmpty());
}

// Candidate 5 of 12 is the fastest, and the first one, which was chosen, takes 10 % longer.
TEST(CheckReportTest, TheFasterHalfOfCandidatesRunsAgain) {
  std::vector<std::vector<CheckedRun>> runs(12);
  const auto seconds = [](size_t i) {
    return i == 5 ? 1.0 : i == 0 ? 1.1 : 1.2 + 0.01 * double(i);
  };
  std::vector<std::string> names;
  for (size_t i = 0; i < runs.size(); ++i) names.push_back("layout " + std::to_string(i));
  int count = 0;
  while (const auto next = NextToRun(runs, 3)) {
    // Every third run is disturbed, and takes far less than it would.
    const bool is_disturbed = ++count % 3 == 0;
    runs[*next].push_back({is_disturbed ? 0.1 : seconds(*next), is_disturbed ? 0.5 : 0, 0});
  }
  EXPECT_EQ(Undisturbed(runs[0]), 3);
  EXPECT_EQ(Undisturbed(runs[5]), 3);
  EXPECT_EQ(Undisturbed(runs[11]), 1);
  EXPECT_THAT(ChoiceReport("gpt", names, runs),
              HasSubstr("gpt: chosen layout 0, fastest layout 5, regret 10.0 %\n"));
  EXPECT_FALSE(NextToRun(runs, 3).has_value());
  // Where everything is disturbed, it ends all the same.
  runs.assign(3, {});
  count = 0;
  while (const auto next = NextToRun(runs, 2)) {
    runs[*next].push_back({seconds(*next), 1, 0});
    ASSERT_LT(++count, 100);
  }
  EXPECT_THAT(ChoiceReport("gpt", names, runs), HasSubstr("disturbed"));
}

TEST(CheckReportTest, RefitFindsTheConstantsThatRowsWereMadeFrom) {
  const auto predict = [](const Implementation& program, int row) {
    return 0.1 * (row + 1) / program.measured_efficiency() + program.step_seconds();
  };
  Implementation truth;
  truth.set_measured_efficiency(0.8);
  truth.set_step_seconds(0.012);
  std::vector<CheckedRow> rows;
  for (int i = 0; i < 12; ++i) rows.push_back({"gpt", "a", {predict(truth, i)}, 0});
  Implementation found;
  found.set_measured_efficiency(1);
  found = RefitProgram(found, rows, predict);
  EXPECT_NEAR(found.measured_efficiency(), 0.8, 1e-6);
  EXPECT_NEAR(found.step_seconds(), 0.012, 1e-6);
}

TEST(CheckLayoutsTest, ThereAreFortyOfThreeModels) {
  EXPECT_EQ(CheckedModels().size(), 3);
  EXPECT_EQ(CheckedLayouts().size(), 40);
}

// What calibrate writes, the planner reads.
TEST(CalibratedFactsTest, TheyAreFactsThatThePlannerTakes) {
  MeasuredMachine machine;
  machine.name = "mine";
  machine.cores = 4;
  machine.memory_gib = 16;
  machine.core.peak_flops_per_s = 1e11;
  machine.core.bf16_products = 0.5;
  machine.core.thread_efficiency = 0.9;
  machine.core.thread_meeting_seconds = 3e-6;
  machine.core.memory_bytes_per_s = 1e10;
  machine.core.far_memory_efficiency = 0.5;
  machine.core.memory_efficiency = 1.5;
  machine.core.gated_memory_efficiency = 1.2;
  machine.core.layer_overhead_seconds = 2e-5;
  machine.core.optimizer_efficiency = 0.9;
  machine.core.routing_score_seconds = 4e-9;
  machine.core.permutation_efficiency = 0.6;
  machine.core.kernels = {{{"product", "forward", 512, 256, 128}, 8e10},
                          {{"attention", "forward", 512, 4, 64}, 9e10}};
  machine.threads = {1e10, 10, 1};
  machine.processes = {1e9, 40, 0};
  const PlanFacts built_in = *ParsePlanFacts(BuiltInPlanFacts());
  const PlanFacts facts = CalibratedFacts(machine, **FindImplementation(built_in, "megatron_cc"));
  const auto read = ParsePlanFacts(facts.DebugString());
  ASSERT_TRUE(read.ok()) << read.status();
  const Hardware* hardware = *FindHardware(*read, "mine");
  EXPECT_EQ(hardware->cores(), 4);
  EXPECT_NEAR(hardware->bf16_tflops(), 0.05, 1e-9);
  EXPECT_EQ(read->implementation(0).gated_memory_efficiency(), 1.2);
  EXPECT_EQ(read->implementation(0).layer_overhead_seconds(), 2e-5);
  EXPECT_EQ(read->implementation(0).routing_score_seconds(), 4e-9);
  EXPECT_EQ(read->implementation(0).permutation_efficiency(), 0.6);
  EXPECT_NEAR(hardware->thread_meeting_us(), 3, 1e-9);
  EXPECT_EQ(hardware->far_memory_efficiency(), 0.5);
  const auto kernels = MeasuredKernels::Parse(CalibratedKernels(machine));
  ASSERT_TRUE(kernels.ok()) << kernels.status();
  EXPECT_NEAR(*kernels->ShareOfPeak("mine", {"product", "forward", 512, 256, 128}), 0.8, 1e-9);
  EXPECT_NEAR(*kernels->ShareOfPeak("mine", {"grouped", "forward", 512, 256, 128}), 0.8, 1e-9);
  EXPECT_NEAR(*kernels->ShareOfPeak("mine", {"attention", "forward", 512, 4, 64}), 0.9, 1e-9);
}

}  // namespace
}  // namespace megatron
