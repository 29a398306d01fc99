#include "tools/calibration/reference_runs.h"

#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/plan/csv_table.h"
#include "megatron/plan/measured_kernels.h"
#include "megatron/plan/plan_facts.h"
#include "tools/calibration/check_layouts.h"
#include "tools/calibration/planned_layout.h"

namespace megatron {
namespace {

Hardware TwoCores() {
  Hardware cpu;
  cpu.set_name("two cores");
  cpu.set_cores(2);
  cpu.set_thread_efficiency(0.9);
  cpu.set_fp32_tflops(0.1);
  cpu.set_bf16_tflops(0.1);
  cpu.set_memory_gb_per_s(10);
  cpu.set_link_gb_per_s(10);
  cpu.set_link_latency_us(50);
  cpu.set_domain(1000);
  cpu.set_network_gb_per_s(1);
  return cpu;
}

MeasuredKernels Kernels() {
  CsvTable table;
  table.columns = {"gpu", "kernel", "pass", "m", "n", "k", "share_of_peak"};
  for (const char* kernel : {"product", "grouped"}) {
    for (const char* pass : {"forward", "input_gradient", "weight_gradient"}) {
      for (const char* m : {"32", "128", "512"})
        table.rows.push_back({"two cores", kernel, pass, m, "512", "256", "0.5"});
    }
  }
  return *MeasuredKernels::Parse(table);
}

struct Reference {
  std::vector<PlannedLayout> planned;
  std::vector<ReferenceRow> rows;
  MeasuredKernels kernels = Kernels();

  double Predict(const Implementation& program, int row) const {
    return *planned[row].Seconds(program, kernels);
  }
};

// Layouts that take what `program` predicts, times `factor`.
Reference ThatTake(const Implementation& own, const Implementation& program, double factor) {
  Reference reference;
  for (const CheckedLayout& layout : ReferenceLayouts()) {
    auto planned = PlanCheckedLayout(ReferenceConfig(layout.model), layout, own, TwoCores());
    EXPECT_TRUE(planned.ok()) << planned.status();
    const double seconds = factor * *planned->Seconds(program, reference.kernels);
    reference.rows.push_back({KindOf(*planned), seconds, program.step_seconds()});
    reference.planned.push_back(*std::move(planned));
  }
  return reference;
}

Implementation Own() {
  const PlanFacts facts = *ParsePlanFacts(BuiltInPlanFacts());
  Implementation program = **FindImplementation(facts, "megatron_cc");
  program.set_measured_efficiency(1);
  return program;
}

TEST(ReferenceRunsTest, ConstantsAreFoundWithWhichStepsTakeWhatTheyTook) {
  Implementation program = Own();
  program.set_measured_efficiency(0.8);
  program.set_gated_memory_efficiency(1.5 * program.memory_efficiency());
  program.set_step_seconds(0.006);
  program.set_threads_efficiency(0.95);
  program.set_turn_cost(0.15);
  program.set_turn_seconds(0.002);
  program.set_routing_seconds(0.0004);
  program.set_expert_wait(0.3);
  const Reference reference = ThatTake(Own(), program, 1);
  const Implementation found = FitToReferences(
      Own(), reference.rows, [&](const auto& its, int row) { return reference.Predict(its, row); });
  EXPECT_NEAR(found.measured_efficiency(), 0.8, 0.006);
  EXPECT_NEAR(found.gated_memory_efficiency() / program.gated_memory_efficiency(), 1, 0.02);
  EXPECT_NEAR(found.step_seconds(), 0.006, 1e-9);
  EXPECT_NEAR(found.threads_efficiency(), 0.95, 0.011);
  EXPECT_NEAR(found.turn_cost(), 0.15, 0.02);
  EXPECT_NEAR(found.turn_seconds(), 0.002, 0.0003);
  EXPECT_NEAR(found.routing_seconds(), 0.0004, 0.00005);
  EXPECT_NEAR(found.expert_wait(), 0.3, 0.03);
  for (size_t i = 0; i < reference.rows.size(); ++i) {
    EXPECT_NEAR(reference.Predict(found, int(i)) / reference.rows[i].measured, 1, 0.01) << i;
  }
}

// Where all ranks have several cores, nothing tells their share from that of kernels, and where all
// models have gates, nothing tells that of kernels between products.
TEST(ReferenceRunsTest, WhatNoRowTellsApartIsOneEfficiency) {
  Implementation program = Own();
  program.set_measured_efficiency(0.8);
  for (const auto kept : {ReferenceRow::kGated, ReferenceRow::kThreads}) {
    Reference reference = ThatTake(Own(), program, 1);
    Reference left;
    for (size_t i = 0; i < reference.rows.size(); ++i) {
      if (reference.rows[i].kind != kept) continue;
      left.rows.push_back(reference.rows[i]);
      left.planned.push_back(std::move(reference.planned[i]));
    }
    ASSERT_FALSE(left.rows.empty());
    const Implementation found = FitToReferences(
        Own(), left.rows, [&](const auto& its, int row) { return left.Predict(its, row); });
    EXPECT_NEAR(found.measured_efficiency(), 0.8, 0.006);
    EXPECT_EQ(found.threads_efficiency(), Own().threads_efficiency());
    EXPECT_EQ(found.gated_memory_efficiency(), Own().gated_memory_efficiency());
  }
}

// Constants below 0 would make other steps take no time.
TEST(ReferenceRunsTest, StepsThatTakeLessLeaveNothingBelowZero) {
  const Reference reference = ThatTake(Own(), Own(), 0.9);
  const Implementation found = FitToReferences(
      Own(), reference.rows, [&](const auto& its, int row) { return reference.Predict(its, row); });
  EXPECT_GT(found.measured_efficiency(), 1.05);
  EXPECT_GE(found.step_seconds(), 0);
  EXPECT_GE(found.turn_cost(), 0);
  EXPECT_EQ(found.turn_seconds(), Own().turn_seconds());
  EXPECT_GE(found.routing_seconds(), 0);
  EXPECT_GE(found.expert_wait(), 0);
}

// One row takes a third more than predicted, and another a hundredth. The constant counts ten times
// as much in the first one, which decides.
TEST(ReferenceRunsTest, RowsInWhichAConstantCountsMoreDecide) {
  const std::vector<ReferenceRow> rows = {{ReferenceRow::kExperts, 1.01},
                                          {ReferenceRow::kExperts, 0.133}};
  const Implementation found = FitToReferences(Own(), rows, [](const Implementation& its, int row) {
    return (row == 0 ? 1 : 0.1) + its.routing_seconds();
  });
  EXPECT_NEAR(found.routing_seconds(), 0.0328, 0.0005);
}

// The runs that planner_check judges are none of those to which anything is fitted.
TEST(ReferenceRunsTest, ModelsAreNoneOfThoseThatAreChecked) {
  EXPECT_EQ(ReferenceLayouts().size(), 14);
  for (const CheckedModel& reference : ReferenceModels()) {
    for (const CheckedModel& checked : CheckedModels()) {
      const auto sizes = [](const std::string& config) {
        return config.substr(config.find("hidden_size"), 16);
      };
      if (reference.name == checked.name) {
        EXPECT_NE(sizes(reference.config), sizes(checked.config)) << reference.name;
      }
      EXPECT_NE(reference.config, checked.config);
    }
  }
}

}  // namespace
}  // namespace megatron
