// Predictions of published runs, which docs/planning.md lists with their sources.

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/plan/csv_table.h"
#include "megatron/plan/measured_kernels.h"
#include "megatron/plan/plan_facts.h"
#include "megatron/plan/predict_rows.h"

namespace megatron {
namespace {

struct Bound {
  const char* file;
  const char* assumed;
  const char* column;
  double mean;
  double median;
  double p90;
  double worst;
};

CsvTable Predicted(const char* file, const char* assumed) {
  const auto facts = ParsePlanFacts(BuiltInPlanFacts());
  EXPECT_TRUE(facts.ok()) << facts.status();
  const auto kernel_table = ParseCsv(BuiltInMeasuredKernels());
  EXPECT_TRUE(kernel_table.ok()) << kernel_table.status();
  const auto kernels = MeasuredKernels::Parse(*kernel_table);
  EXPECT_TRUE(kernels.ok()) << kernels.status();
  const auto text =
      ReadFileToString(PosixFileSystem(), std::string("megatron/plan/testdata/published/") + file);
  EXPECT_TRUE(text.ok()) << text.status();
  const auto rows = ParseCsv(*text);
  EXPECT_TRUE(rows.ok()) << rows.status();
  const auto assumptions = ParseAssumptions(assumed);
  EXPECT_TRUE(assumptions.ok()) << assumptions.status();
  const auto predicted = PredictRows(*facts, *kernels, *rows, *assumptions);
  EXPECT_TRUE(predicted.ok()) << predicted.status();
  return predicted.ok() ? *predicted : CsvTable();
}

class PublishedRunsTest : public testing::TestWithParam<Bound> {};

// Constants are fitted on odd rows; even ones judge them.
TEST_P(PublishedRunsTest, ErrorsStayWithinBounds) {
  const Bound& bound = GetParam();
  const CsvTable predicted = Predicted(bound.file, bound.assumed);
  for (const auto& row : predicted.rows) EXPECT_EQ(row.back(), "") << row[0];
  int judged = 0;
  for (const PredictionErrors& errors : CompareWithMeasured(predicted)) {
    if (errors.column != bound.column || errors.rows != "even") continue;
    ++judged;
    EXPECT_EQ(errors.count, predicted.rows.size() / 2);
    EXPECT_LE(errors.mean, bound.mean);
    EXPECT_LE(errors.median, bound.median);
    EXPECT_LE(errors.p90, bound.p90);
    EXPECT_LE(errors.worst, bound.worst);
  }
  EXPECT_EQ(judged, 1);
}

constexpr const char* kVtrain = "gpu=A100-80GB,recompute=full,implementation=megatron_deepspeed";

INSTANTIATE_TEST_SUITE_P(
    Tables, PublishedRunsTest,
    testing::Values(Bound{"narayanan_2021_table1.csv", "", "iteration_s", 5, 6, 10, 10},
                    Bound{"korthikanti_2022_table5.csv", "", "iteration_s", 4, 4, 10, 10},
                    Bound{"vtrain_nodes.csv", kVtrain, "iteration_ms", 8, 5, 15, 40},
                    Bound{"vtrain_node.csv", kVtrain, "iteration_ms", 10, 8, 20, 35},
                    Bound{"simumax_b200.csv", "implementation=megatron_core_0_14", "measured_ms", 4,
                          4, 12, 12},
                    Bound{"simumax_b200.csv", "implementation=megatron_core_0_14",
                          "measured_alloc_GiB", 2, 2, 2, 2}));

// A table in which some models have several layouts, and how often the layout that is predicted
// fastest has to be one of the fastest measured.
struct Choice {
  const char* file;
  const char* assumed;
  const char* column;
  int runs;      // models with several layouts for the same samples and GPUs
  int near;      // those of them for which the choice is at most 3 % slower than the best
  double worst;  // the most that a choice is slower
};

class ChosenLayoutTest : public testing::TestWithParam<Choice> {};

TEST_P(ChosenLayoutTest, IsNearTheFastestThatWasMeasured) {
  const Choice& choice = GetParam();
  const CsvTable table = Predicted(choice.file, choice.assumed);
  const auto cell = [&](const std::vector<std::string>& row, const char* column) -> std::string {
    const auto found = std::find(table.columns.begin(), table.columns.end(), column);
    return found == table.columns.end() ? "" : row[found - table.columns.begin()];
  };
  const auto number = [&](const std::vector<std::string>& row, const char* column) {
    double value = 1;
    return absl::SimpleAtod(cell(row, column), &value) ? value : 1;
  };
  struct Run {
    int layouts = 0;
    double predicted = 1e300, chosen = 0, best = 1e300;
  };
  std::map<std::string, Run> runs;
  for (const auto& row : table.rows) {
    std::string key;
    for (const char* column : {"model", "layers", "hidden", "heads", "seq", "gpus", "gbs", "dtype"})
      key += cell(row, column) + " ";
    // A table without global batches has the micro-batches of each data-parallel rank.
    if (cell(row, "gbs").empty())
      key += std::to_string(number(row, "mbs") * number(row, "microbatches") * number(row, "dp"));
    Run& run = runs[key];
    ++run.layouts;
    const double measured = number(row, choice.column);
    run.best = std::min(run.best, measured);
    if (number(row, "predicted_step_s") >= run.predicted) continue;
    run.predicted = number(row, "predicted_step_s");
    run.chosen = measured;
  }
  int several = 0, near = 0;
  for (const auto& [key, run] : runs) {
    if (run.layouts < 2) continue;
    ++several;
    near += run.chosen <= 1.03 * run.best;
    EXPECT_LE(run.chosen, (1 + choice.worst) * run.best) << key;
  }
  EXPECT_EQ(several, choice.runs);
  EXPECT_GE(near, choice.near);
}

INSTANTIATE_TEST_SUITE_P(
    Tables, ChosenLayoutTest,
    testing::Values(Choice{"simumax_b200.csv", "implementation=megatron_core_0_14", "measured_ms",
                           13, 13, 0.03},
                    Choice{"vtrain_nodes.csv", kVtrain, "iteration_ms", 4, 3, 0.05},
                    Choice{"vtrain_node.csv", kVtrain, "iteration_ms", 144, 90, 0.4}));

}  // namespace
}  // namespace megatron
