// Predictions of published runs, which docs/planning.md lists with their sources.

#include <string>
#include <vector>

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

class PublishedRunsTest : public testing::TestWithParam<Bound> {};

// Constants are fitted on odd rows; even ones judge them.
TEST_P(PublishedRunsTest, ErrorsStayWithinBounds) {
  const Bound& bound = GetParam();
  const auto facts = ParsePlanFacts(BuiltInPlanFacts());
  ASSERT_TRUE(facts.ok()) << facts.status();
  const auto kernel_table = ParseCsv(BuiltInMeasuredKernels());
  ASSERT_TRUE(kernel_table.ok()) << kernel_table.status();
  const auto kernels = MeasuredKernels::Parse(*kernel_table);
  ASSERT_TRUE(kernels.ok()) << kernels.status();
  const auto text = ReadFileToString(PosixFileSystem(),
                                     std::string("megatron/plan/testdata/published/") + bound.file);
  ASSERT_TRUE(text.ok()) << text.status();
  const auto rows = ParseCsv(*text);
  ASSERT_TRUE(rows.ok()) << rows.status();
  const auto assumptions = ParseAssumptions(bound.assumed);
  ASSERT_TRUE(assumptions.ok()) << assumptions.status();
  const auto predicted = PredictRows(*facts, *kernels, *rows, *assumptions);
  ASSERT_TRUE(predicted.ok()) << predicted.status();
  for (const auto& row : predicted->rows) EXPECT_EQ(row.back(), "") << row[0];
  int judged = 0;
  for (const PredictionErrors& errors : CompareWithMeasured(*predicted)) {
    if (errors.column != bound.column || errors.rows != "even") continue;
    ++judged;
    EXPECT_EQ(errors.count, rows->rows.size() / 2);
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

}  // namespace
}  // namespace megatron
