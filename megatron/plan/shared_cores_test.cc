#include "megatron/plan/shared_cores.h"

#include "gtest/gtest.h"
#include "megatron/pipeline/schedule.h"
#include "megatron/plan/measured_kernels.h"
#include "megatron/plan/plan_facts.h"
#include "megatron/plan/step_prediction.h"

namespace megatron {
namespace {

Hardware TwoCores() {
  Hardware cpu;
  cpu.set_name("two cores");
  cpu.set_cores(2);
  cpu.set_thread_efficiency(0.9);
  cpu.set_fp32_tflops(0.05);
  cpu.set_bf16_tflops(0.05);
  cpu.set_memory_gb_per_s(1e6);
  cpu.set_link_gb_per_s(1e6);
  cpu.set_link_latency_us(1e-6);
  cpu.set_link_rank_latency_us(1e-6);
  cpu.set_domain(1000);
  return cpu;
}

StepSeconds Predict(const Hardware& cpu, const PlanLayout& layout) {
  const PlanFacts facts = *ParsePlanFacts(BuiltInPlanFacts());
  PlanModel model;
  model.set_layers(8);
  model.set_hidden(512);
  model.set_ffn(2048);
  model.set_heads(8);
  model.set_kv_heads(8);
  model.set_head_dim(64);
  model.set_vocab(1);
  const auto step = PredictStep(cpu, **FindImplementation(facts, "megatron_cc"), MeasuredKernels(),
                                model, layout);
  EXPECT_TRUE(step.ok()) << step.status();
  return step->seconds;
}

PlanLayout Layout(int64_t dp, int64_t pp, int64_t micro_batches) {
  PlanLayout layout;
  layout.dp = dp;
  layout.pp = pp;
  layout.micro_batches = micro_batches;
  layout.sequence = 512;
  layout.precision = PlanPrecision::k32Bits;
  return layout;
}

double Sum(const StepSeconds& s) {
  return s.compute + s.tensor_parallel + s.context_parallel + s.expert_parallel + s.messages +
         s.bubble + s.data_parallel + s.optimizer + s.constant;
}

TEST(SharedCoresTest, FewerCoresLoseLessToTheirThreads) {
  Hardware cpu = TwoCores();
  cpu.set_cores(16);
  const Hardware four = WithFewerCores(cpu, 4);
  EXPECT_EQ(four.cores(), 4);
  EXPECT_NEAR(RankSpeed(four, 1), RankSpeed(cpu, 4), 1e-9);
  EXPECT_NEAR(RankSpeed(four, 2), RankSpeed(cpu, 8), 1e-9);
  EXPECT_EQ(RankSpeed(WithFewerCores(cpu, 1), 1), 1);
  EXPECT_EQ(WithFewerCores(cpu, 32).cores(), 16);
  EXPECT_EQ(WithFewerCores(Hardware(), 1).cores(), 0);
}

TEST(SharedCoresTest, ARankHasTheCoresThatGoEvenly) {
  EXPECT_EQ(RankSpeed(TwoCores(), 8), 1);
  EXPECT_EQ(RankSpeed(TwoCores(), 2), 1);
  EXPECT_NEAR(RankSpeed(TwoCores(), 1), 1.8, 1e-9);
  EXPECT_EQ(RankSpeed(Hardware(), 1), 1);
}

// As much work, cut for more ranks than there are cores, takes as long.
TEST(SharedCoresTest, RanksBeyondTheCoresTakeTurns) {
  const double two = Predict(TwoCores(), Layout(2, 1, 8)).total;
  EXPECT_NEAR(Predict(TwoCores(), Layout(8, 1, 2)).total / two, 1, 0.01);
  EXPECT_NEAR(Predict(TwoCores(), Layout(1, 1, 16)).total / two, 1 / 0.9, 0.01);
}

TEST(SharedCoresTest, CoresAreIdleWhereTooFewStagesHaveSomethingToDo) {
  const auto idle = [](int stages, int micro_batches, int64_t ranks, int64_t cores) {
    const PartCosts seconds(ActionCosts{1, 1.5, 0.5});
    return IdleSecondsOfCores(InterleavedSchedule({stages, micro_batches, 1, 0}), seconds, ranks,
                              cores);
  };
  // One micro-batch is on one stage at a time: 9 seconds, in which one of two cores does nothing.
  EXPECT_NEAR(idle(3, 1, 1, 2), 4.5, 1e-9);
  // Its two ranks have both cores.
  EXPECT_NEAR(idle(3, 1, 2, 2), 0, 1e-9);
  EXPECT_NEAR(idle(2, 4, 1, 1), 0, 1e-9);
  // Four stages: 48 seconds of two cores take 51, however many micro-batches there are.
  EXPECT_NEAR(idle(4, 8, 1, 2), 3, 1e-9);
  EXPECT_NEAR(idle(4, 4, 1, 2), 3, 1e-9);
  // With chunks a core has something to do sooner.
  const PartCosts halves(ActionCosts{0.5, 0.75, 0.25});
  EXPECT_LT(IdleSecondsOfCores(InterleavedSchedule({4, 8, 2, 0}), halves, 1, 2), 3);
}

// With four stages on two cores, a micro-batch's time on one of them is lost.
TEST(SharedCoresTest, StagesThatWaitLeaveTheirCoreToOthers) {
  const StepSeconds four = Predict(TwoCores(), Layout(1, 4, 4));
  const double all = Predict(TwoCores(), Layout(2, 1, 2)).total;
  EXPECT_NEAR(four.total / all, 1 + 1.0 / 8, 0.01);
  EXPECT_NEAR(Sum(four), four.total, 1e-9);
  // Two stages on as many cores have the whole bubble.
  EXPECT_NEAR(Predict(TwoCores(), Layout(1, 2, 4)).total / all, 1 + 1.0 / 4, 0.01);
}

TEST(SharedCoresTest, PartsAddUpWhereARankIsAlone) {
  const StepSeconds one = Predict(TwoCores(), Layout(1, 1, 4));
  EXPECT_NEAR(Sum(one), one.total, 1e-9);
}

// Values of 32 bits take twice the bytes of those of 16: in kernels, activations and messages.
TEST(SharedCoresTest, WideElementsTakeTwiceTheBytes) {
  Hardware slow = TwoCores();
  slow.set_fp32_tflops(1e5);
  slow.set_bf16_tflops(1e5);
  slow.set_memory_gb_per_s(10);
  slow.set_link_gb_per_s(1);
  PlanLayout layout = Layout(1, 1, 8);
  layout.tp = 2;
  const StepSeconds wide = Predict(slow, layout);
  layout.precision = PlanPrecision::k16Bits;
  const StepSeconds narrow = Predict(slow, layout);
  EXPECT_NEAR(wide.compute / narrow.compute, 2, 0.01);
  EXPECT_NEAR(wide.tensor_parallel / narrow.tensor_parallel, 2, 0.01);
  EXPECT_NEAR(wide.optimizer / narrow.optimizer, 1, 0.01);
}

// In front of each micro-batch gradients are zeros, and behind it half of them are read twice and
// written.
TEST(SharedCoresTest, GradientsThatAreSharedOutAreAddedUpInEachMicroBatch) {
  Hardware slow = TwoCores();
  slow.set_memory_gb_per_s(1);
  const auto optimizer = [&](int64_t micro_batches) {
    PlanLayout layout = Layout(2, 1, micro_batches);
    layout.shards_parameters = true;
    return Predict(slow, layout).optimizer;
  };
  const double parameters = 8 * (12.0 * 512 * 512 + 2 * 512);
  EXPECT_NEAR(optimizer(8) - optimizer(4), 4 * (4 + 6) * parameters / 0.8e9, 1e-3);
  EXPECT_EQ(Predict(slow, Layout(2, 1, 8)).optimizer, Predict(slow, Layout(2, 1, 4)).optimizer);
}

// Kernels between products have a rate of their own where MLPs have gates, and take a while however
// few tokens there are.
TEST(SharedCoresTest, KernelsBetweenProductsAreAsTheyWereCalibrated) {
  const PlanFacts facts = *ParsePlanFacts(BuiltInPlanFacts());
  Implementation program = **FindImplementation(facts, "megatron_cc");
  Hardware cpu = TwoCores();
  cpu.set_memory_gb_per_s(1);
  PlanModel model;
  model.set_layers(8);
  model.set_hidden(512);
  model.set_ffn(2048);
  model.set_heads(8);
  model.set_kv_heads(8);
  model.set_head_dim(64);
  model.set_vocab(1);
  const auto compute = [&](bool is_gated) {
    model.set_is_gated(is_gated);
    return PredictStep(cpu, program, MeasuredKernels(), model, Layout(2, 1, 4))->seconds.compute;
  };
  const double plain = compute(false), gated = compute(true);
  program.set_gated_memory_efficiency(2 * program.memory_efficiency());
  EXPECT_EQ(compute(false), plain);
  // Half of the passes over 22 numbers of each token and channel, in 4 micro-batches of 8 layers.
  const double passes = 2.6 * 22 * 512 * 512 * 4 / (0.8 * 1e9);
  EXPECT_EQ(program.memory_efficiency(), 0.8);
  EXPECT_NEAR(gated - compute(true), 4 * 8 * passes / 2, 1e-6);
  program.set_layer_overhead_seconds(0.001);
  EXPECT_NEAR(compute(false) - plain, 4 * 8 * 0.001, 1e-9);
}

}  // namespace
}  // namespace megatron
