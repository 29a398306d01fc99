#include "megatron/plan/shared_cores.h"

#include <cmath>

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

PlanModel Mixture() {
  PlanModel model;
  model.set_layers(8);
  model.set_hidden(512);
  model.set_heads(8);
  model.set_kv_heads(8);
  model.set_head_dim(64);
  model.set_vocab(2);
  model.set_experts(4);
  model.set_experts_per_token(2);
  model.set_expert_ffn(512);
  return model;
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
         s.bubble + s.data_parallel + s.host_link + s.optimizer + s.constant;
}

TEST(SharedCoresTest, FewerCoresLoseLessToTheirThreads) {
  Hardware cpu = TwoCores();
  cpu.set_cores(16);
  const Hardware four = WithFewerCores(cpu, 4);
  EXPECT_EQ(four.cores(), 4);
  EXPECT_NEAR(RankSpeed(four, Implementation(), 1), RankSpeed(cpu, Implementation(), 4), 1e-9);
  EXPECT_NEAR(RankSpeed(four, Implementation(), 2), RankSpeed(cpu, Implementation(), 8), 1e-9);
  EXPECT_EQ(RankSpeed(WithFewerCores(cpu, 1), Implementation(), 1), 1);
  EXPECT_EQ(WithFewerCores(cpu, 32).cores(), 16);
  EXPECT_EQ(WithFewerCores(Hardware(), 1).cores(), 0);
}

TEST(SharedCoresTest, ARankHasTheCoresThatGoEvenly) {
  EXPECT_EQ(RankSpeed(TwoCores(), Implementation(), 8), 1);
  EXPECT_EQ(RankSpeed(TwoCores(), Implementation(), 2), 1);
  EXPECT_NEAR(RankSpeed(TwoCores(), Implementation(), 1), 1.8, 1e-9);
  EXPECT_EQ(RankSpeed(Hardware(), Implementation(), 1), 1);
  Implementation program;
  program.set_threads_efficiency(0.5);
  EXPECT_NEAR(RankSpeed(TwoCores(), program, 1), 0.9, 1e-9);
  EXPECT_EQ(RankSpeed(TwoCores(), program, 2), 1);
}

// As much work, cut for more ranks than there are cores, takes as long.
TEST(SharedCoresTest, RanksBeyondTheCoresTakeTurns) {
  const double two = Predict(TwoCores(), Layout(2, 1, 8)).total;
  EXPECT_NEAR(Predict(TwoCores(), Layout(8, 1, 2)).total / two, 1, 0.01);
  EXPECT_NEAR(Predict(TwoCores(), Layout(1, 1, 16)).total / two, 1 / 0.9, 0.01);
}

TEST(SharedCoresTest, CoresAreIdleWhereTooFewStagesHaveSomethingToDo) {
  const auto idle = [](int stages, int micro_batches, int64_t ranks, int64_t cores,
                       double turn = 0) {
    const PartCosts seconds(ActionCosts{1, 1.5, 0.5});
    return IdleSecondsOfCores(InterleavedSchedule({stages, micro_batches, 1, 0}), seconds, ranks,
                              cores, turn);
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
  EXPECT_LT(IdleSecondsOfCores(InterleavedSchedule({4, 8, 2, 0}), halves, 1, 2, 0), 3);
  // What is sent twice forward and twice backward waits as often.
  EXPECT_NEAR(idle(3, 1, 1, 2, 0.25), 4.5 + 4 * 0.25, 1e-9);
  // Where there is other work, some of the waiting is hidden behind it.
  const double hidden = idle(4, 8, 1, 2, 0.25) - 3;
  EXPECT_GT(hidden, 0);
  EXPECT_LT(hidden, 2 * 8 * 3 * 0.25);
}

TEST(SharedCoresTest, StagesOfSharedCoresWaitForTheirTurn) {
  const PlanFacts facts = *ParsePlanFacts(BuiltInPlanFacts());
  Implementation program = **FindImplementation(facts, "megatron_cc");
  PlanModel model;
  model.set_layers(8);
  model.set_hidden(512);
  model.set_ffn(2048);
  model.set_heads(8);
  model.set_kv_heads(8);
  model.set_head_dim(64);
  model.set_vocab(1);
  const auto total = [&](int64_t dp, int64_t pp) {
    return PredictStep(TwoCores(), program, MeasuredKernels(), model, Layout(dp, pp, 4))
        ->seconds.total;
  };
  const double four_stages = total(1, 4), two_stages = total(1, 2), four_copies = total(4, 1);
  program.set_turn_seconds(four_stages / 100);
  EXPECT_GT(total(1, 4), 1.01 * four_stages);
  EXPECT_LT(total(1, 4), 1.25 * four_stages);
  EXPECT_EQ(total(1, 2), two_stages);
  EXPECT_EQ(total(4, 1), four_copies);
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

// A step that is too long to be played is predicted from shorter ones.
TEST(SharedCoresTest, MicroBatchesTakeAsLongInAStepOfAnyLength) {
  PlanLayout layout = Layout(1, 4, 1);
  const auto total = [&](int64_t micro_batches) {
    layout.micro_batches = micro_batches;
    return Predict(TwoCores(), layout).total;
  };
  for (const PlanSchedule schedule :
       {PlanSchedule::kOneForwardOneBackward, PlanSchedule::kGPipe, PlanSchedule::kZeroBubbleH1}) {
    layout.schedule = schedule;
    EXPECT_NEAR(total(1'000'000'000) / total(20'000), 50'000, 500);
  }
  layout.schedule = PlanSchedule::kOneForwardOneBackward;
  layout.vpp = 2;
  EXPECT_NEAR(total(1'000'000'000) / total(10'000), 100'000, 1000);
  // Cores wait for the longest of unequal stages.
  layout = Layout(1, 3, 1);
  layout.first_layers = 1;
  layout.last_layers = 1;
  const double step = total(30'000);
  EXPECT_NEAR((total(60'001) - step) / step, 30'001.0 / 30'000, 1e-3);
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

// A layer has 4 products, in three passes each, and attention in two; the loss's product has three.
TEST(SharedCoresTest, ThreadsOfARankMeetBehindEachKernel) {
  Hardware cpu = TwoCores();
  const auto compute = [&](int64_t ranks) { return Predict(cpu, Layout(ranks, 1, 4)).compute; };
  const double one = compute(1), two = compute(2);
  cpu.set_thread_meeting_us(50);
  EXPECT_NEAR(compute(1) - one, 4 * (8 * (12 + 2 + 7 + 11) + 3 + 5) * 50e-6, 1e-9);
  EXPECT_EQ(compute(2), two);
}

TEST(SharedCoresTest, MemoryIsSlowerTheMoreOfItAllRanksHold) {
  Hardware cpu = TwoCores();
  EXPECT_EQ(MemoryShareOf(cpu, 2, 1e12), 1);
  cpu.set_far_memory_efficiency(0.25);
  EXPECT_EQ(MemoryShareOf(cpu, 2, 32 << 20), 1);
  EXPECT_NEAR(MemoryShareOf(cpu, 1, 1 << 29), 0.25, 1e-9);
  EXPECT_NEAR(MemoryShareOf(cpu, 4, 1e12), 0.25, 1e-9);
  EXPECT_NEAR(MemoryShareOf(cpu, 2, std::sqrt(32.0 * 256) * (1 << 20)), 0.5, 1e-9);
  cpu.set_cores(0);
  EXPECT_EQ(MemoryShareOf(cpu, 2, 1e12), 1);
}

// Weights are read in either pass, their gradients read and written, and all that the optimizer
// passes over. Each of two ranks has 25 million parameters of 16 bytes.
TEST(SharedCoresTest, WeightsThatAllRanksHoldAreReadAtTheRateOfFarMemory) {
  Hardware cpu = TwoCores();
  cpu.set_memory_gb_per_s(10);
  const StepSeconds near = Predict(cpu, Layout(2, 1, 4));
  cpu.set_far_memory_efficiency(0.5);
  const StepSeconds far = Predict(cpu, Layout(2, 1, 4));
  const double parameters = 8 * (12.0 * 512 * 512 + 2 * 512);
  EXPECT_NEAR(far.compute - near.compute, 4 * 16 * parameters / 10e9, 1e-6);
  EXPECT_NEAR(far.optimizer / near.optimizer, 2, 1e-9);
  EXPECT_GT(far.data_parallel, near.data_parallel);
}

// A router scores each expert for each token of its rank, and its counts are added up over ranks
// with parts of the same samples.
TEST(SharedCoresTest, RoutersAndTurnsTakeWhatTheyWereCalibratedToTake) {
  const PlanFacts facts = *ParsePlanFacts(BuiltInPlanFacts());
  Implementation program = **FindImplementation(facts, "megatron_cc");
  Hardware cpu = TwoCores();
  const PlanModel model = Mixture();
  const auto seconds = [&](int64_t tp) {
    PlanLayout layout = Layout(1, 1, 4);
    layout.tp = tp;
    return PredictStep(cpu, program, MeasuredKernels(), model, layout)->seconds;
  };
  const StepSeconds one = seconds(1), two = seconds(2);
  program.set_routing_score_seconds(1e-6);
  // A rank of both cores, and half of the tokens on each of two.
  EXPECT_NEAR(seconds(1).compute - one.compute, 4 * 8 * 512 * 4 * 1e-6 / 1.8, 1e-9);
  EXPECT_NEAR(seconds(2).compute - two.compute, 4 * 8 * 256 * 4 * 1e-6, 1e-9);
  // Ranks that share out experts wait for each other, but not for a core.
  const auto waits = [&](int64_t ranks) {
    PlanLayout layout = Layout(ranks, 1, 4);
    layout.ep = 2;
    Implementation waiting = program;
    waiting.set_expert_wait(0.5);
    const auto expert = [&](const Implementation& its) {
      return PredictStep(cpu, its, MeasuredKernels(), model, layout)->seconds.expert_parallel;
    };
    return expert(waiting) - expert(program);
  };
  // Two products of 512 rows for each of two experts, three passes, at 50 GFLOP/s at most.
  EXPECT_GT(waits(2), 0.5 * 4 * 8 * 6 * 2 * 1024.0 * 512 * 512 / 50e9);
  EXPECT_LT(waits(2), 3 * 0.5 * 4 * 8 * 6 * 2 * 1024.0 * 512 * 512 / 50e9);
  EXPECT_EQ(waits(4), 0);
  // Turns cost more ranks than cores alone.
  const auto total = [&](int64_t ranks) {
    return PredictStep(cpu, program, MeasuredKernels(), model, Layout(ranks, 1, 4))->seconds.total;
  };
  const double of_two = total(2), of_eight = total(8);
  program.set_turn_cost(0.25);
  EXPECT_EQ(total(2), of_two);
  EXPECT_NEAR(total(8) / of_eight, 1.25, 1e-9);
  program.set_turn_cost(0);
  // Four sums forward and backward, that of the counts, and in all those of embedding and head and
  // the two of the loss.
  const double latencies = two.tensor_parallel;
  cpu.set_link_latency_us(100);
  EXPECT_NEAR(seconds(2).tensor_parallel - latencies, 4 * (8 * (4 + 1) + 4) * 100e-6, 1e-6);
}

// Numbers of rows go first, and then rows to experts and back in either pass, to all ranks that
// share an expert at once. The last call is beside the products of weights' gradients.
TEST(SharedCoresTest, ExpertsWaitForCallsThatNothingIsBeside) {
  const PlanFacts facts = *ParsePlanFacts(BuiltInPlanFacts());
  const Implementation program = **FindImplementation(facts, "megatron_cc");
  const auto waits = [&](const PlanLayout& layout) {
    const auto expert = [&](double latency_us, double lane_us) {
      Hardware cpu = TwoCores();
      cpu.set_cores(int32_t(layout.gpus()));
      cpu.set_link_latency_us(latency_us);
      cpu.set_lane_latency_us(lane_us);
      const auto step = PredictStep(cpu, program, MeasuredKernels(), Mixture(), layout);
      EXPECT_TRUE(step.ok()) << step.status();
      return step->seconds.expert_parallel;
    };
    // Microseconds of a layer's micro-batch, for latencies of 100 and lanes of 10.
    const double layers = 8.0 / double(layout.pp);
    return 1e6 * (expert(101, 11) - expert(1, 1)) / (double(layout.micro_batches) * layers);
  };
  PlanLayout shared = Layout(2, 1, 4);
  shared.ep = 2;
  EXPECT_NEAR(waits(shared), (5 - 1) * 100 + (4 - 1) * 10, 1e-3);
  PlanLayout cut = Layout(1, 1, 4);
  cut.tp = cut.etp = 2;
  EXPECT_NEAR(waits(cut), (5 - 1) * 100 + (4 - 1) * 10, 1e-3);
  PlanLayout both = Layout(2, 1, 4);
  both.tp = both.etp = both.ep = 2;
  EXPECT_NEAR(waits(both), (5 - 1) * 100 + (4 - 1) * 10, 1e-3);
  // Weights' gradients that are put off are beside nothing.
  PlanLayout put_off = Layout(2, 2, 4);
  put_off.ep = 2;
  EXPECT_NEAR(waits(put_off), (5 - 1) * 100 + (4 - 1) * 10, 1e-3);
  put_off.schedule = PlanSchedule::kZeroBubbleH1;
  EXPECT_NEAR(waits(put_off), 5 * 100 + 4 * 10, 1e-3);
}

// Each of two products has its rows brought there or back in either pass.
TEST(SharedCoresTest, RowsArePermutedAtTheirOwnRate) {
  const PlanFacts facts = *ParsePlanFacts(BuiltInPlanFacts());
  Implementation program = **FindImplementation(facts, "megatron_cc");
  Hardware cpu = TwoCores();
  cpu.set_memory_gb_per_s(1);
  const auto compute = [&] {
    return PredictStep(cpu, program, MeasuredKernels(), Mixture(), Layout(2, 1, 4))
        ->seconds.compute;
  };
  const double before = compute();
  EXPECT_EQ(program.memory_efficiency(), 0.8);
  program.set_permutation_efficiency(1.6);
  const double permuted = 4 * 2 * 4.0 * 2 * 512 * 512 / 0.8e9;
  EXPECT_NEAR(before - compute(), 4 * 8 * permuted / 2, 1e-6);
}

TEST(SharedCoresTest, TensorParallelRanksRouteAPartOfTheTokensEach) {
  const PlanFacts facts = *ParsePlanFacts(BuiltInPlanFacts());
  const Implementation program = **FindImplementation(facts, "megatron_cc");
  const auto flops = [&](int64_t tp) {
    PlanLayout layout = Layout(1, 1, 4);
    layout.tp = tp;
    return PredictStep(TwoCores(), program, MeasuredKernels(), Mixture(), layout)->model_flops;
  };
  EXPECT_NEAR(2 * flops(2) / flops(1), 1, 1e-12);
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
