#include "megatron/plan/predict_rows.h"

#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/plan/measured_kernels.h"
#include "megatron/plan/plan_facts.h"
#include "megatron/plan/step_prediction.h"

namespace megatron {
namespace {

MeasuredKernels BuiltInKernels() {
  const auto table = ParseCsv(BuiltInMeasuredKernels());
  EXPECT_TRUE(table.ok()) << table.status();
  const auto kernels = MeasuredKernels::Parse(*table);
  EXPECT_TRUE(kernels.ok()) << kernels.status();
  return *kernels;
}

CsvTable Predicted(const std::string& text, const std::string& assume = "") {
  const auto facts = ParsePlanFacts(BuiltInPlanFacts());
  EXPECT_TRUE(facts.ok()) << facts.status();
  const auto rows = ParseCsv(text);
  EXPECT_TRUE(rows.ok()) << rows.status();
  const auto assumptions = ParseAssumptions(assume);
  EXPECT_TRUE(assumptions.ok()) << assumptions.status();
  const auto predicted = PredictRows(*facts, BuiltInKernels(), *rows, *assumptions);
  EXPECT_TRUE(predicted.ok()) << predicted.status();
  return *predicted;
}

double Cell(const CsvTable& table, const std::string& column) {
  for (size_t i = 0; i < table.columns.size(); ++i) {
    if (table.columns[i] == column) return std::stod("0" + table.rows[0][i]);
  }
  return NAN;
}

// Narayanan et al. (2021), table 1, 145B: 24.82 s.
TEST(PredictRowsTest, PredictsAPublishedRun) {
  const CsvTable table = Predicted(
      "model,layers,hidden,heads,seq,vocab,gpu,gpus,tp,pp,vpp,dp,mbs,gbs,recompute,dtype\n"
      "145B,80,12288,96,2048,51200,A100-80GB SXM,1536,8,8,2,24,2,2304,full,fp16\n");
  EXPECT_NEAR(Cell(table, "predicted_step_s"), 24.82, 0.1 * 24.82);
}

TEST(PredictRowsTest, AssumesWhatARowLeavesOut) {
  const CsvTable table =
      Predicted("model,gpus,tp,pp,gbs,seq\nLlama2-7B,8,1,1,128,4096\n", "gpu=H100,dtype=fp8");
  EXPECT_EQ(table.rows[0].back(), "");
  const std::string assumed = table.rows[0][table.rows[0].size() - 2];
  EXPECT_NE(assumed.find("gpu=H100"), std::string::npos) << assumed;
  EXPECT_NE(assumed.find("dtype=fp8"), std::string::npos) << assumed;
}

TEST(PredictRowsTest, ARowThatCanNotBeHasItsReason) {
  for (const char* row : {"nobody,H100,8,1,1,128,4096", "Llama2-7B,Z80,8,1,1,128,4096",
                          "Llama2-7B,H100,8,3,1,128,4096", "Llama2-7B,H100,8,1,1,127,4096",
                          "Llama2-7B,H100,8,1,1,128,", "Llama2-7B,H100,8,x,1,128,4096",
                          "Llama2-7B,H100,-8,1,1,128,4096"}) {
    const CsvTable table = Predicted(std::string("model,gpu,gpus,tp,pp,gbs,seq\n") + row + "\n");
    EXPECT_FALSE(table.rows[0].back().empty()) << row;
    EXPECT_EQ(Cell(table, "predicted_step_s"), 0) << row;
  }
}

TEST(PredictStepTest, PartsAddUpToTheStep) {
  const auto facts = ParsePlanFacts(BuiltInPlanFacts());
  ASSERT_TRUE(facts.ok()) << facts.status();
  PlanLayout layout;
  layout.tp = 8;
  layout.pp = 8;
  layout.cp = 2;
  layout.dp = 8;
  layout.vpp = 2;
  layout.micro_batches = 32;
  layout.sequence = 8192;
  layout.is_sequence_parallel = true;
  const auto step =
      PredictStep(**FindHardware(*facts, "H100"), **FindImplementation(*facts, "megatron_core"),
                  BuiltInKernels(), **FindPlanModel(*facts, "LLAMA3.1_405B"), layout);
  ASSERT_TRUE(step.ok()) << step.status();
  const StepSeconds& s = step->seconds;
  EXPECT_NEAR(s.total,
              s.compute + s.tensor_parallel + s.context_parallel + s.expert_parallel + s.messages +
                  s.bubble + s.data_parallel + s.optimizer + s.constant,
              1e-9 * s.total);
  EXPECT_NEAR(step->total_parameters, 405.9e9, 0.01 * 405.9e9);
}

TEST(PlanFactsTest, ErrorsNameTheFieldOrTheLine) {
  EXPECT_FALSE(ParsePlanFacts("hardware { speed: 3 }").ok());
  const auto facts = ParsePlanFacts("hardware { name: 'x' bf16_tflops: -1 }");
  EXPECT_NE(facts.status().message().find("bf16_tflops"), std::string::npos) << facts.status();
}

}  // namespace
}  // namespace megatron
