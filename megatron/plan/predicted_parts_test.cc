#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "megatron/pipeline/schedule_kind.h"
#include "megatron/pipeline/stage_plan.h"
#include "megatron/plan/measured_kernels.h"
#include "megatron/plan/plan_facts.h"
#include "megatron/plan/simulate_step.h"
#include "megatron/plan/step_prediction.h"

namespace megatron {
namespace {

PlanLayout Layout() {
  PlanLayout layout;
  layout.tp = 8;
  layout.pp = 4;
  layout.dp = 2;
  layout.micro_batches = 16;
  layout.sequence = 2048;
  layout.recompute = PlanRecompute::kFull;
  return layout;
}

class PredictedPartsTest : public testing::Test {
 protected:
  PredictedPartsTest() {
    gpu_ = **FindHardware(facts_, "A100-80GB");
    program_ = **FindImplementation(facts_, "megatron_2021");
    model_ = **FindPlanModel(facts_, "GPT3-175B");
  }

  PlanFacts facts_ = *ParsePlanFacts(BuiltInPlanFacts());
  Hardware gpu_;
  Implementation program_;
  PlanModel model_;
  MeasuredKernels kernels_;
};

// The last stage has the head, and the closed form has no bubble of it but its own.
TEST_F(PredictedPartsTest, SimulatedPartsTakeWhatTheStepDoes) {
  const PlanLayout layout = Layout();
  const auto step = *PredictStep(gpu_, program_, kernels_, model_, layout);
  const auto parts =
      *PredictParts(gpu_, program_, kernels_, model_, layout, std::vector<PartLayers>(4, {24, 0}));
  std::vector<ActionCosts> costs;
  for (const PartSeconds& part : parts.positions) {
    costs.push_back({part.forward + part.forward_calls, part.backward_input + part.backward_calls,
                     part.backward_weight});
  }
  ScheduleOptions options;
  options.stages = 4;
  options.microbatches = 16;
  const PartCosts seconds(costs);
  const std::vector<StagePlan> plans = PlanStages(MakeSchedule(options), seconds);
  const SimulatedStep simulated = SimulateStep(plans, seconds, {});
  const StepSeconds& s = step.seconds;
  EXPECT_EQ(simulated.busiest, 3);
  EXPECT_NEAR(simulated.stages[3].work, s.compute + s.tensor_parallel, 1e-9);
  // The formula counts the messages of three micro-batches as its bubble.
  EXPECT_NEAR(simulated.bubble, s.bubble - 3 * 2 * parts.message, 1e-9);
}

// The rest of a message's time is latency.
TEST_F(PredictedPartsTest, MessagesAreAsWideAsTheProgramSendsThem) {
  const auto message = [&](bool scatters, bool is_sequence_parallel) {
    PlanLayout layout = Layout();
    layout.is_sequence_parallel = is_sequence_parallel;
    program_.set_scatters_messages(scatters);
    return PredictParts(gpu_, program_, kernels_, model_, layout,
                        std::vector<PartLayers>(4, {24, 0}))
        ->message;
  };
  const double part = message(true, false);
  const double whole = message(false, false);
  EXPECT_EQ(message(false, true), part);
  EXPECT_EQ(message(true, true), part);
  const double rate = gpu_.network_gb_per_s() * 1e9 * program_.network_efficiency();
  EXPECT_NEAR(whole - part, 2.0 * 2048 * 12288 * 7 / 8 / rate, 1e-12);
}

TEST_F(PredictedPartsTest, RefusesPartsThatDoNotFitTheLayout) {
  const auto parts = PredictParts(gpu_, program_, kernels_, model_, Layout(), {{96, 0}});
  EXPECT_EQ(parts.status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace megatron
