#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "megatron/pipeline/schedule_kind.h"
#include "megatron/pipeline/stage_plan.h"
#include "megatron/plan/collective_time.h"
#include "megatron/plan/hybrid_layers.h"
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

// The closed form's last stage has the head, and all others are as it is without one.
TEST_F(PredictedPartsTest, ZeroBubbleH1IsPredictedAsItIsPlayed) {
  for (const int64_t micro_batches : {4, 16, 64}) {
    PlanLayout layout = Layout();
    layout.schedule = PlanSchedule::kZeroBubbleH1;
    layout.micro_batches = micro_batches;
    const auto step = *PredictStep(gpu_, program_, kernels_, model_, layout);
    const auto parts = *PredictParts(gpu_, program_, kernels_, model_, layout,
                                     std::vector<PartLayers>(4, {24, 0}));
    std::vector<ActionCosts> costs;
    for (const PartSeconds& part : parts.positions) {
      costs.push_back({part.forward + part.forward_calls, part.backward_input + part.backward_calls,
                       part.backward_weight});
    }
    ScheduleOptions options;
    options.kind = ScheduleKind::kZeroBubbleH1;
    options.stages = 4;
    options.microbatches = static_cast<int>(micro_batches);
    const PartCosts seconds(costs);
    const SimulatedStep simulated = SimulateStep(PlanStages(MakeSchedule(options), seconds),
                                                 seconds, {0, /*beside_passes=*/true});
    const StepSeconds& s = step.seconds;
    EXPECT_NEAR((s.compute + s.tensor_parallel + s.bubble) / simulated.seconds, 1, 0.01);
    layout.schedule = PlanSchedule::kOneForwardOneBackward;
    EXPECT_LT(s.bubble,
              0.8 * PredictStep(gpu_, program_, kernels_, model_, layout)->seconds.bubble);
  }
}

// A last stage with fewer layers has less work, and the others the most of it.
TEST_F(PredictedPartsTest, UnevenStagesArePredictedAsTheyArePlayed) {
  for (const PlanSchedule schedule : {PlanSchedule::kOneForwardOneBackward, PlanSchedule::kGPipe}) {
    for (const int64_t last : {9, 21, 24}) {
      PlanLayout layout = Layout();
      layout.schedule = schedule;
      layout.last_layers = last;
      const int64_t others = (96 - last) / 3;
      const auto step = *PredictStep(gpu_, program_, kernels_, model_, layout);
      const auto parts = *PredictParts(gpu_, program_, kernels_, model_, layout,
                                       {{others, 0}, {others, 0}, {others, 0}, {last, 0}});
      std::vector<ActionCosts> costs;
      for (const PartSeconds& part : parts.positions) {
        costs.push_back({part.forward + part.forward_calls,
                         part.backward_input + part.backward_calls, part.backward_weight});
      }
      ScheduleOptions options;
      options.kind = schedule == PlanSchedule::kGPipe ? ScheduleKind::kGPipe
                                                      : ScheduleKind::kOneForwardOneBackward;
      options.stages = 4;
      options.microbatches = 16;
      const PartCosts seconds(costs);
      const SimulatedStep simulated = SimulateStep(PlanStages(MakeSchedule(options), seconds),
                                                   seconds, {0, /*beside_passes=*/true});
      const StepSeconds& s = step.seconds;
      SCOPED_TRACE(absl::StrCat(last, " layers on the last stage"));
      EXPECT_EQ(simulated.busiest == 3, last == 24);
      EXPECT_NEAR(s.compute + s.tensor_parallel, simulated.stages[simulated.busiest].work, 1e-9);
      // The formula counts the messages of three micro-batches as its bubble.
      EXPECT_NEAR(
          (s.compute + s.tensor_parallel + s.bubble - 3 * 2 * parts.message) / simulated.seconds, 1,
          0.025);
      EXPECT_NEAR(s.compute + s.tensor_parallel + s.messages + s.bubble + s.data_parallel +
                      s.host_link + s.optimizer + s.constant,
                  s.total, 1e-9 * s.total);
    }
  }
}

// Stages with fewer layers hold less; GPipe holds all micro-batches.
TEST_F(PredictedPartsTest, SchedulesAndUnevenStagesHaveTheirMemory) {
  const auto bytes = [&](PlanSchedule schedule, int64_t chunks, int64_t last) {
    PlanLayout layout = Layout();
    layout.recompute = PlanRecompute::kNone;
    layout.schedule = schedule;
    layout.vpp = chunks;
    layout.last_layers = last;
    const auto step = PredictStep(gpu_, program_, kernels_, model_, layout);
    EXPECT_TRUE(step.ok()) << step.status();
    return step->memory_bytes;
  };
  const auto kPlain = PlanSchedule::kOneForwardOneBackward;
  const double plain = bytes(kPlain, 1, PlanLayout::kAsOthers);
  EXPECT_GT(bytes(kPlain, 1, 21), plain);
  EXPECT_GT(bytes(PlanSchedule::kGPipe, 1, PlanLayout::kAsOthers), 2 * plain);
  // The first stage has the head besides.
  const double v = bytes(PlanSchedule::kZeroBubbleV, 2, PlanLayout::kAsOthers);
  EXPECT_GT(v, plain);
  EXPECT_LT(v, 1.1 * plain);
}

// Weights' gradients fill the pauses of passes that take about as long as they.
TEST_F(PredictedPartsTest, ZeroBubbleVIsNearWhatIsPlayed) {
  for (const int64_t micro_batches : {8, 16, 64}) {
    PlanLayout layout = Layout();
    layout.recompute = PlanRecompute::kNone;
    layout.schedule = PlanSchedule::kZeroBubbleV;
    layout.vpp = 2;
    layout.micro_batches = micro_batches;
    const auto step = *PredictStep(gpu_, program_, kernels_, model_, layout);
    const auto parts = *PredictParts(gpu_, program_, kernels_, model_, layout,
                                     std::vector<PartLayers>(8, {12, 0}));
    std::vector<ActionCosts> costs;
    for (const PartSeconds& part : parts.positions) {
      costs.push_back({part.forward + part.forward_calls, part.backward_input + part.backward_calls,
                       part.backward_weight});
    }
    ScheduleOptions options;
    options.kind = ScheduleKind::kZeroBubbleV;
    options.stages = 4;
    options.chunks = 2;
    options.microbatches = static_cast<int>(micro_batches);
    const PartCosts seconds(costs);
    options.costs = seconds.Mean();
    const SimulatedStep simulated = SimulateStep(PlanStages(MakeSchedule(options), seconds),
                                                 seconds, {0, /*beside_passes=*/true});
    const StepSeconds& s = step.seconds;
    EXPECT_EQ(simulated.busiest, 0);
    EXPECT_NEAR(s.compute + s.tensor_parallel, simulated.stages[0].work, 1e-9);
    EXPECT_NEAR((s.compute + s.tensor_parallel + s.bubble) / simulated.seconds, 1, 0.1);
  }
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

// Seconds that attention of 2 samples of 8,192 tokens waits in a layer: forward, and in all.
struct Waits {
  double forward = 0;
  double all = 0;
};

Waits ContextWaits(const Hardware& gpu, const Implementation& program, const PlanModel& model,
                   PlanContext form, int64_t cp, int64_t team = 1) {
  PlanLayout layout;
  layout.tp = 2;
  layout.cp = cp;
  layout.context = form;
  layout.cp_team = team;
  layout.micro_batch = 2;
  layout.sequence = 8192;
  const auto parts = PredictParts(gpu, program, {}, model, layout, {{1, 0}});
  EXPECT_TRUE(parts.ok()) << parts.status();
  const PartSeconds& part = parts->positions[0];
  EXPECT_GT(part.context, 0);
  return {part.forward_calls - 2 * 2 *
                                   CollectiveSeconds(gpu, program, TrafficCall::kAllGather, {2, 1},
                                                     2.0 * 2 * 8192 / cp * model.hidden()),
          part.context};
}

class ContextFormsTest : public PredictedPartsTest {
 protected:
  ContextFormsTest() {
    model_ = **FindPlanModel(facts_, "Llama3-8B");
    program_ = **FindImplementation(facts_, "megatron_cc");
    program_.set_overlaps_tensor_parallel(false);
  }

  Waits WithSlowLinks(PlanContext form, int64_t cp, int64_t team = 1) {
    Hardware slow = gpu_;
    slow.set_link_gb_per_s(1e-3);
    slow.set_network_gb_per_s(1e-3);
    return ContextWaits(slow, program_, model_, form, cp, team);
  }
  Waits WithFastLinks(PlanContext form, int64_t cp, int64_t team = 1) {
    Hardware fast = gpu_;
    fast.set_link_gb_per_s(1e6);
    fast.set_network_gb_per_s(1e6);
    fast.set_link_latency_us(1e-6);
    fast.set_link_rank_latency_us(1e-6);
    fast.set_network_latency_us(1e-6);
    return ContextWaits(fast, program_, model_, form, cp, team);
  }
};

// With links that are so slow that nothing is hidden, waits are as the bytes: those of
// docs/context_parallel.md, with 8 groups of keys for 32 heads.
TEST_F(ContextFormsTest, SlowLinksTakeAsLongAsTheirBytes) {
  const Waits gather = WithSlowLinks(PlanContext::kGather, 4);
  EXPECT_NEAR(gather.all / gather.forward, 1 + (2 + 4) / 2.0, 0.01);
  const Waits exchange = WithSlowLinks(PlanContext::kAllToAll, 4);
  EXPECT_NEAR(exchange.all / exchange.forward, 2, 1e-3);
  // Queries and results are 32 heads each, keys and values 8 each: of a gather each rank has 4.
  EXPECT_NEAR(exchange.forward / gather.forward, (32 + 32 + 8 + 8) / (4.0 * (8 + 8)), 0.01);
}

// A team of all ranks exchanges heads, and teams of one rank are a ring.
TEST_F(ContextFormsTest, TeamsAreBetweenARingAndAnExchange) {
  for (const auto& waits : {std::pair<Waits, Waits>(WithSlowLinks(PlanContext::kTeams, 4, 4),
                                                    WithSlowLinks(PlanContext::kAllToAll, 4)),
                            std::pair<Waits, Waits>(WithSlowLinks(PlanContext::kTeams, 4, 1),
                                                    WithSlowLinks(PlanContext::kRing, 4))}) {
    EXPECT_DOUBLE_EQ(waits.first.all, waits.second.all);
    EXPECT_DOUBLE_EQ(waits.first.forward, waits.second.forward);
  }
}

// Half of a gather has nothing to hide behind, and with one group of heads all of it: twice the
// keys then take as long.
TEST_F(ContextFormsTest, AttentionHidesHalfOfWhatIsGathered) {
  model_.set_kv_heads(2);  // one for each tensor-parallel rank
  const Waits one = WithFastLinks(PlanContext::kGather, 4);
  model_.set_kv_heads(4);
  const Waits two = WithFastLinks(PlanContext::kGather, 4);
  EXPECT_NEAR(two.all / one.all, 1, 0.1);
  EXPECT_NEAR(two.forward / one.forward, 1, 0.1);
}

TEST_F(ContextFormsTest, FullRecomputationSendsKeysAgain) {
  PlanLayout layout;
  layout.cp = 4;
  layout.context = PlanContext::kAllToAll;
  layout.sequence = 8192;
  const auto context = [&] {
    return PredictParts(gpu_, program_, {}, model_, layout, {{1, 0}})->positions[0].context;
  };
  const double once = context();
  layout.recompute = PlanRecompute::kFull;
  EXPECT_DOUBLE_EQ(context(), 1.5 * once);
}

class OffloadTest : public PredictedPartsTest {
 protected:
  OffloadTest() {
    gpu_.set_host_link_gb_per_s(25);
    gpu_.set_host_memory_gb_per_s(100);
    program_.set_link_efficiency(1);
    program_.set_memory_efficiency(1);
    model_ = **FindPlanModel(facts_, "Llama3-8B");
    layout_.sequence = 2048;
  }

  StepPrediction Predict(double host_fraction) {
    layout_.host_fraction = host_fraction;
    const auto step = PredictStep(gpu_, program_, kernels_, model_, layout_);
    EXPECT_TRUE(step.ok()) << step.status();
    return *step;
  }
  // Seconds in which the GPU passes over weights and gradients of all, wherever states lie.
  double Passes(double parameters) const { return 6 * parameters / (gpu_.memory_gb_per_s() * 1e9); }

  PlanLayout layout_;
};

// The figures of docs/offload.md: of an element 4 bytes come over the link while 2 go back, and 30
// pass the memory.
TEST_F(OffloadTest, TheSlowerOfLinkAndMemoryDecides) {
  // The prediction of the optimizer has one of the two word tables.
  const double parameters =
      32 * (4096.0 * (2 * 4096 + 2 * 1024 + 3 * 14336) + 2 * 4096) + 128256.0 * 4096;
  EXPECT_NEAR(Predict(1).seconds.optimizer, Passes(parameters) + 0.3 * parameters / 1e9, 1e-6);
  gpu_.set_host_link_gb_per_s(10);
  EXPECT_NEAR(Predict(1).seconds.optimizer, Passes(parameters) + 0.4 * parameters / 1e9, 1e-6);
  // Weights of 32 bits come and go.
  layout_.precision = PlanPrecision::k32Bits;
  EXPECT_NEAR(Predict(1).seconds.optimizer, Passes(parameters) + 0.8 * parameters / 1e9, 1e-6);
}

TEST_F(OffloadTest, TheGpuUpdatesItsPartMeanwhile) {
  const double alone = Predict(0).seconds.optimizer;
  const double half = Predict(0.5).seconds.optimizer;
  const double all = Predict(1).seconds.optimizer;
  EXPECT_LT(alone, half);
  EXPECT_LT(half, all);
  gpu_.set_host_link_gb_per_s(1e6);
  gpu_.set_host_memory_gb_per_s(1e6);
  EXPECT_LT(Predict(0.5).seconds.optimizer, alone);
}

TEST_F(OffloadTest, MovesTwelveBytesOfAParameterToTheHost) {
  const StepPrediction alone = Predict(0);
  const StepPrediction all = Predict(1);
  EXPECT_EQ(alone.host_bytes, 0);
  EXPECT_NEAR(all.host_bytes, 12 * all.total_parameters, 1e6);
  EXPECT_NEAR(alone.memory_bytes - all.memory_bytes, all.host_bytes, 1);
  EXPECT_NEAR(Predict(0.5).host_bytes, all.host_bytes / 2, 1);
  program_.set_shards_optimizer(true);
  layout_.dp = 8;
  EXPECT_NEAR(Predict(1).host_bytes, all.host_bytes / 8, 1);
}

// An element's 12 bytes are read while others' are written: the slower one of both decides where
// memory and link are faster. An extent of 2^20 elements is read before, and one written behind.
TEST_F(OffloadTest, StatesInFilesTakeWhatTheDiskTakes) {
  const StepPrediction in_memory = Predict(1);
  layout_.states_in_files = true;
  EXPECT_EQ(Predict(1).seconds.optimizer, in_memory.seconds.optimizer);  // the disk isn't known
  gpu_.set_disk_read_gb_per_s(12);
  gpu_.set_disk_write_gb_per_s(6);
  const StepPrediction in_files = Predict(1);
  const double parameters =
      32 * (4096.0 * (2 * 4096 + 2 * 1024 + 3 * 14336) + 2 * 4096) + 128256.0 * 4096;
  const double extent = 1 << 20, ends = 1e-9 * extent + 2e-9 * extent;
  EXPECT_NEAR(in_files.seconds.optimizer, Passes(parameters) + 2e-9 * parameters + ends, 1e-6);
  EXPECT_EQ(in_files.host_bytes, 0);
  EXPECT_EQ(in_files.memory_bytes, in_memory.memory_bytes);
  // A fast one is hidden but for its ends.
  gpu_.set_disk_read_gb_per_s(1200);
  gpu_.set_disk_write_gb_per_s(600);
  EXPECT_NEAR(Predict(1).seconds.optimizer, in_memory.seconds.optimizer + ends / 100, 1e-6);
  // Weights on the host are updated there.
  layout_.weights_on_host = true;
  layout_.states_in_files = false;
  const StepPrediction weights = Predict(1);
  layout_.states_in_files = true;
  EXPECT_NEAR(Predict(1).seconds.optimizer, weights.seconds.optimizer + ends / 100, 1e-6);
}

// The GPU has those of 32 layers that are in three windows, and the input of the first.
TEST_F(OffloadTest, ActivationsLeaveWhileTheNextLayerComputes) {
  for (const PlanRecompute recompute : {PlanRecompute::kNone, PlanRecompute::kFull}) {
    layout_.recompute = recompute;
    layout_.activations_on_host = false;
    const auto part = [&](int64_t layers) {
      const auto parts =
          PredictParts(gpu_, program_, kernels_, model_, layout_, {PartLayers{layers}});
      EXPECT_TRUE(parts.ok()) << parts.status();
      return parts->positions[0];
    };
    const auto backward = [](const PartSeconds& seconds) {
      return seconds.backward_input + seconds.backward_weight;
    };
    const StepPrediction alone = Predict(0);
    const PartSeconds head = part(0), layer = part(1);
    layout_.activations_on_host = true;
    gpu_.set_host_link_gb_per_s(1e6);
    const StepPrediction fast = Predict(0);
    EXPECT_NEAR(fast.seconds.total, alone.seconds.total, 1e-9);
    const double kept = fast.host_bytes / 32, input = 2.0 * 2048 * 4096;
    EXPECT_GE(kept, input);
    EXPECT_NEAR(alone.memory_bytes - fast.memory_bytes, 29 * kept - input, 1);
    EXPECT_NEAR(part(1).forward, layer.forward, 1e-9);
    EXPECT_NEAR(backward(part(1)), backward(layer), 1e-9);
    // A slow link makes a pass as long as its copy.
    gpu_.set_host_link_gb_per_s(0.01);
    EXPECT_NEAR(part(1).forward - head.forward, kept / 0.01e9, 1e-6);
    EXPECT_NEAR(backward(part(1)) - backward(head), kept / 0.01e9, 1e-6);
    EXPECT_GT(Predict(0).seconds.compute, 2 * 32 * kept / 0.01e9);
    // In a pipeline a backward pass waits for what another micro-batch kept, and for its own.
    layout_.pp = 2;
    gpu_.set_host_link_gb_per_s(1000);
    const auto first_of_two = [&] {
      return PredictParts(gpu_, program_, kernels_, model_, layout_,
                          {PartLayers{16}, PartLayers{16}})
          ->positions[0];
    };
    const PartSeconds waits = first_of_two();
    layout_.activations_on_host = false;
    EXPECT_NEAR(backward(waits) - backward(first_of_two()), 2 * kept / 1000e9, 1e-9);
    layout_.pp = 1;
    gpu_.set_host_link_gb_per_s(25);
  }
  layout_.activations_on_host = true;
  gpu_.clear_host_link_gb_per_s();
  EXPECT_EQ(PredictStep(gpu_, program_, kernels_, model_, layout_).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// Weights come beside activations that go, and gradients go beside activations that come.
TEST_F(OffloadTest, WeightsAndActivationsShareTheLink) {
  gpu_.set_host_link_gb_per_s(0.1);
  layout_.recompute = PlanRecompute::kFull;
  layout_.weights_on_host = true;
  const StepPrediction weights = Predict(1);
  layout_.activations_on_host = true;
  const StepPrediction both = Predict(1);
  const double kept = both.host_bytes - weights.host_bytes;
  EXPECT_GT(kept, 0);
  EXPECT_NEAR(both.seconds.total - weights.seconds.total, kept / 0.1e9, 1e-3);
}

TEST_F(OffloadTest, WeightsLieInHostMemoryTooAndCrossTheLinkForEachPass) {
  gpu_.set_host_link_gb_per_s(1000);
  const StepPrediction states = Predict(1);
  layout_.weights_on_host = true;
  const StepPrediction weights = Predict(1);
  EXPECT_NEAR(weights.host_bytes - states.host_bytes, 6 * states.total_parameters, 1e6);
  // Two layers at a time are on the GPU.
  const double layer = 4096.0 * (2 * 4096 + 2 * 1024 + 3 * 14336) + 2 * 4096;
  EXPECT_NEAR(states.memory_bytes - weights.memory_bytes,
              6 * states.total_parameters - 2 * 2 * layer, 1e6);
  // A fast link hides all but a layer in each of the two passes of a micro-batch.
  EXPECT_EQ(states.seconds.host_link, 0);
  EXPECT_EQ(weights.seconds.data_parallel, states.seconds.data_parallel);
  const auto waits = [](const StepPrediction& step) { return step.seconds.host_link; };
  const double of_layer = 2 * 2 * layer / (gpu_.host_link_gb_per_s() * 1e9);
  EXPECT_NEAR(waits(weights), double(layout_.micro_batches) * of_layer, 1e-6);
  // Over a slow one all weights of a micro-batch take longer than its passes.
  gpu_.set_host_link_gb_per_s(0.1);
  // Gradients leave meanwhile.
  const double all = 2 * 2 * (32 * layer + 128256.0 * 4096) / 0.1e9;
  const StepPrediction slow = Predict(1);
  EXPECT_LT(waits(slow), double(layout_.micro_batches) * all);
  EXPECT_GT(waits(slow), 0.9 * double(layout_.micro_batches) * all);
  // Gradients go once more, for their norm: as many bytes as come to update the states alone.
  gpu_.set_host_link_gb_per_s(1);
  gpu_.set_host_memory_gb_per_s(1e6);
  const double updates = Predict(1).seconds.optimizer;
  layout_.weights_on_host = false;
  EXPECT_NEAR(Predict(1).seconds.optimizer / updates, 1, 0.01);
  layout_.weights_on_host = true;
  layout_.host_fraction = 0.5;
  EXPECT_EQ(PredictStep(gpu_, program_, kernels_, model_, layout_).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(OffloadTest, IsRefusedWhereNothingIsKnownOfTheHost) {
  gpu_.set_host_memory_gb_per_s(0);
  layout_.host_fraction = 1;
  const auto step = PredictStep(gpu_, program_, kernels_, model_, layout_);
  EXPECT_EQ(step.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(step.status().message().find("host_memory_gb_per_s"), std::string::npos);
}

// Eight nodes of eight GPUs that shard all: gathers go over the network, eight times a step.
class InstancesTest : public PredictedPartsTest {
 protected:
  InstancesTest() {
    program_ = **FindImplementation(facts_, "megatron_core");
    program_.set_overlaps_gradients(false);
    program_.set_gradient_bytes(4);
    model_ = **FindPlanModel(facts_, "Llama3-8B");
    layout_.sequence = 4096;
    layout_.dp = 64;
    layout_.micro_batches = 8;
    layout_.shards_parameters = true;
  }

  StepPrediction Predict(int64_t instances, bool shares_states) {
    layout_.instances = instances;
    layout_.shards_states_over_instances = shares_states;
    const auto step = PredictStep(gpu_, program_, kernels_, model_, layout_);
    EXPECT_TRUE(step.ok()) << step.status();
    return *step;
  }

  PlanLayout layout_;
};

TEST_F(InstancesTest, OfANodeTakeTheTimeOfLinksAndOfAShardOnTheNetwork) {
  // The prediction of communication has one of the two word tables.
  const double parameters =
      32 * (4096.0 * (2 * 4096 + 2 * 1024 + 3 * 14336) + 2 * 4096) + 128256.0 * 4096;
  const auto within = [&](double bytes) {
    return CollectiveSeconds(gpu_, program_, TrafficCall::kAllGather, {8, 1}, bytes * parameters);
  };
  const auto between = [&](double bytes) {
    return CollectiveSeconds(gpu_, program_, TrafficCall::kAllGather, {8, 8},
                             bytes * parameters / 8);
  };
  const double passes = 8 * (2 * within(2) + within(4));
  EXPECT_NEAR(Predict(8, false).seconds.data_parallel, passes + 2 * between(4), 1e-9);
  EXPECT_NEAR(Predict(8, true).seconds.data_parallel, passes + between(4) + between(2), 1e-9);
  EXPECT_LT(Predict(8, true).seconds.data_parallel, Predict(1, false).seconds.data_parallel);
}

TEST_F(InstancesTest, TakeMoreMemoryOfWhatTheyDoNotShare) {
  const StepPrediction all = Predict(1, false);
  const double parameters = all.total_parameters;
  EXPECT_NEAR(Predict(8, false).memory_bytes - all.memory_bytes, 18 * parameters * 7 / 64, 1e6);
  EXPECT_NEAR(Predict(8, true).memory_bytes - all.memory_bytes, 6 * parameters * 7 / 64, 1e6);
}

TEST_F(InstancesTest, ThatDoNotDivideTheRanksAreRefused) {
  layout_.instances = 3;
  EXPECT_EQ(PredictStep(gpu_, program_, kernels_, model_, layout_).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// Layers of one branch of this project's own program.
class HybridPartsTest : public PredictedPartsTest {
 protected:
  HybridPartsTest() {
    program_ = **FindImplementation(facts_, "megatron_cc");
    model_.Clear();
    model_.set_hidden(2048);
    model_.set_ffn(8192);
    model_.set_heads(16);
    model_.set_kv_heads(8);
    model_.set_head_dim(128);
    model_.set_vocab(32000);
    model_.set_mamba_heads(64);
    model_.set_mamba_head_dim(64);
    model_.set_mamba_groups(8);
    model_.set_mamba_state(128);
    model_.set_delta_key_heads(16);
    model_.set_delta_key_dim(128);
    model_.set_delta_value_heads(32);
    model_.set_delta_value_dim(128);
    model_.set_delta_taps(4);
    layout_.sequence = 4096;
    layout_.micro_batch = 2;
    layout_.micro_batches = 16;
  }

  void SetLayers(const std::string& letters) {
    model_.set_layers(static_cast<int32_t>(letters.size()));
    model_.set_hybrid_layers(letters);
  }

  absl::StatusOr<StepPrediction> Predict() const {
    return PredictStep(gpu_, program_, kernels_, model_, layout_);
  }

  PredictedParts PartsOf(const std::vector<std::string>& letters) const {
    std::vector<PartLayers> layers;
    for (const std::string& of_part : letters) {
      PartLayers part;
      part.branches = CountBranches(of_part);
      layers.push_back(part);
    }
    return *PredictParts(gpu_, program_, kernels_, model_, layout_, layers);
  }

  PlanLayout layout_;
};

// Attention and an MLP in layers of their own are a layer of a GPT.
TEST_F(HybridPartsTest, PairsOfBranchesAreLayersOfAGpt) {
  for (const bool is_gated : {false, true}) {
    for (const double experts : {0.0, 8.0}) {
      for (const bool is_sequence_parallel : {false, true}) {
        model_.set_is_gated(is_gated);
        model_.set_experts(experts);
        model_.set_experts_per_token(experts > 0 ? 2 : 0);
        model_.set_expert_ffn(experts > 0 ? 1024 : 0);
        layout_.tp = 4;
        layout_.is_sequence_parallel = is_sequence_parallel;
        SetLayers(experts > 0 ? "*E*E*E*E" : "*-*-*-*-");
        const auto hybrid = Predict();
        ASSERT_TRUE(hybrid.ok()) << hybrid.status();
        model_.clear_hybrid_layers();
        model_.set_layers(4);
        const auto gpt = Predict();
        ASSERT_TRUE(gpt.ok()) << gpt.status();
        const auto expect_same = [](double a, double b) { EXPECT_NEAR(a, b, 1e-9 * b); };
        expect_same(hybrid->seconds.compute, gpt->seconds.compute);
        expect_same(hybrid->seconds.tensor_parallel, gpt->seconds.tensor_parallel);
        expect_same(hybrid->seconds.expert_parallel, gpt->seconds.expert_parallel);
        expect_same(hybrid->seconds.optimizer, gpt->seconds.optimizer);
        expect_same(hybrid->model_flops, gpt->model_flops);
        expect_same(hybrid->total_parameters, gpt->total_parameters);
        EXPECT_NEAR(hybrid->memory_bytes, gpt->memory_bytes, 0.15 * gpt->memory_bytes);
      }
    }
  }
}

TEST_F(HybridPartsTest, ArePredictedAsTheyArePlayed) {
  layout_.pp = 4;
  SetLayers("M-M-G-M-MM*-MMM-");
  const auto step = Predict();
  ASSERT_TRUE(step.ok()) << step.status();
  const PredictedParts parts = PartsOf({"M-M-", "G-M-", "MM*-", "MMM-"});
  std::vector<ActionCosts> costs;
  for (const PartSeconds& part : parts.positions) {
    costs.push_back({part.forward + part.forward_calls, part.backward_input + part.backward_calls,
                     part.backward_weight});
  }
  ScheduleOptions options;
  options.stages = 4;
  options.microbatches = 16;
  const PartCosts seconds(costs);
  const SimulatedStep simulated = SimulateStep(PlanStages(MakeSchedule(options), seconds), seconds,
                                               {0, /*beside_passes=*/true});
  const StepSeconds& s = step->seconds;
  EXPECT_NEAR(s.compute, simulated.stages[simulated.busiest].work, 1e-9);
  EXPECT_NEAR((s.compute + s.bubble - 3 * 2 * parts.message) / simulated.seconds, 1, 0.05);
}

TEST_F(HybridPartsTest, PartsHaveTheTimesOfTheirLayers) {
  SetLayers("MG*-");
  const auto seconds = [&](const std::string& letters) {
    const PartSeconds part = PartsOf({letters}).positions[0];
    return part.forward + part.backward_input + part.backward_weight;
  };
  const double head = seconds("");
  double sum = head;
  for (const char* letter : {"M", "G", "*", "-"}) {
    EXPECT_GT(seconds(letter), head) << letter;
    sum += seconds(letter) - head;
  }
  EXPECT_NEAR(seconds("MG*-"), sum, 1e-9 * sum);
  EXPECT_NEAR(seconds("MM"), 2 * seconds("M") - head, 1e-9 * sum);
}

// Attention takes longer in long samples, and recurrences as long for a token. A state twice as
// wide takes longer.
TEST_F(HybridPartsTest, RecurrencesCostTheSameForEachToken) {
  const auto compute = [&](const char* letters, int64_t samples, double state) {
    SetLayers(letters);
    layout_.micro_batch = samples;
    layout_.sequence = 32768 / samples;
    model_.set_mamba_state(state);
    const auto step = Predict();
    EXPECT_TRUE(step.ok()) << step.status();
    return step->seconds.compute;
  };
  for (const char* letters : {"MMMM", "GGGG"})
    EXPECT_NEAR(compute(letters, 1, 128), compute(letters, 8, 128), 1e-9) << letters;
  EXPECT_GT(compute("****", 1, 128), 1.5 * compute("****", 8, 128));
  EXPECT_GT(compute("MMMM", 1, 256), 1.05 * compute("MMMM", 1, 128));
}

// A recurrence takes what its nearest measured shapes say, in 32 bits; what is far from all of them
// takes the constant share.
TEST_F(HybridPartsTest, RecurrencesTakeWhatWasMeasured) {
  program_.set_measured_efficiency(1);
  const auto seconds = [&](const std::string& letter, double forward, double backward) {
    const std::string kernel = gpu_.name() + (letter == "M" ? ",state_space," : ",gated_delta,"),
                      shape = letter == "M" ? ",8,64,128," : ",2,128,128,";
    kernels_ = *MeasuredKernels::Parse(
        *ParseCsv(absl::StrCat("gpu,kernel,pass,m,n,k,share_of_peak\n", kernel, "forward", shape,
                               forward, "\n", kernel, "input_gradient", shape, backward, "\n")));
    SetLayers(letter);
    const PartSeconds part = PartsOf({letter}).positions[0];
    return part.forward + part.backward_input + part.backward_weight;
  };
  const double of_token = 2 * 4096 * 2 / (gpu_.fp32_tflops() * 1e12);
  const double seen = 32, mamba_states = 64 * 64 * 128, delta_states = 32 * 128 * 128;
  // Twice the share takes half as long.
  const auto expect = [&](const std::string& letter, double forward, double backward) {
    const double fast = seconds(letter, 0.2, 0.2);
    EXPECT_NEAR((seconds(letter, 0.1, 0.2) - fast) / (5 * of_token * forward), 1, 1e-6) << letter;
    EXPECT_NEAR((seconds(letter, 0.2, 0.1) - fast) / (5 * of_token * backward), 1, 1e-6) << letter;
  };
  expect("M", seen * (8 * 128 + 64 * 64) + 2 * mamba_states,
         seen * (3 * 8 * 128 + 2 * 64 * 64) + 5 * mamba_states);
  expect("G", seen * 2 * (16 * 128 + 32 * 128) + 3 * delta_states,
         seen * (8 * 16 * 128 + 6 * 32 * 128) + 9 * delta_states);
  EXPECT_GT(seconds("M", 0.001, 0.001), 10 * seconds("M", 0.1, 0.1));
  model_.set_mamba_state(1024);
  EXPECT_EQ(seconds("M", 0.001, 0.001), seconds("M", 0.1, 0.1));
}

// Ranks exchange projections and what norms give: two calls forward and three backward.
TEST_F(HybridPartsTest, ContextParallelRanksExchangeGroupsOfHeads) {
  SetLayers("MM");
  layout_.cp = 4;
  layout_.micro_batches = 1;
  const auto step = Predict();
  ASSERT_TRUE(step.ok()) << step.status();
  const double tokens = 2 * 4096 / 4.0, inner = 64 * 64;
  const auto exchange = [&](double channels) {
    return CollectiveSeconds(gpu_, program_, TrafficCall::kAllToAll, {4, 1}, 2 * tokens * channels);
  };
  const double packed = 2 * inner + 2 * 8 * 128 + 64;
  EXPECT_NEAR(step->seconds.context_parallel, 2 * (2 * exchange(packed) + 3 * exchange(inner)),
              1e-9);
}

// Tensor- and context-parallel ranks add up a number of each token in both passes of two layers.
TEST_F(HybridPartsTest, NormsOfAllGroupsTakeASumOverTheRanksOfARow) {
  SetLayers("MM");
  layout_.tp = 2;
  layout_.cp = 4;
  layout_.micro_batches = 1;
  const auto apart = Predict();
  model_.set_mamba_norm_all_groups(true);
  const auto together = Predict();
  ASSERT_TRUE(apart.ok() && together.ok()) << apart.status() << together.status();
  const auto sums = [&](const PlanGroup& group) {
    return 4 * CollectiveSeconds(gpu_, program_, TrafficCall::kAllReduce, group, 4 * 2 * 4096);
  };
  EXPECT_NEAR(together->seconds.tensor_parallel - apart->seconds.tensor_parallel, sums({2, 1}),
              1e-9);
  EXPECT_NEAR(together->seconds.context_parallel - apart->seconds.context_parallel, sums({4, 2}),
              1e-9);
  EXPECT_GT(together->seconds.compute, apart->seconds.compute);
  EXPECT_GT(together->memory_bytes, apart->memory_bytes);
}

TEST_F(HybridPartsTest, RefusesWhatTheTrainerRefuses) {
  SetLayers("M-G*");
  EXPECT_TRUE(Predict().ok());
  const auto refused = [&](const std::string& why) {
    const auto step = Predict();
    EXPECT_EQ(step.status().code(), absl::StatusCode::kInvalidArgument) << why;
    EXPECT_NE(step.status().message().find(why), std::string::npos) << step.status();
  };
  layout_.tp = layout_.cp = 4;
  refused("groups of heads");
  layout_.tp = layout_.cp = 2;
  layout_.context = PlanContext::kTeams;
  refused("groups of heads");
  layout_ = PlanLayout();
  layout_.sequence = 4096;
  layout_.muon_steps = 5;
  refused("Muon");
  layout_.muon_steps = 0;
  model_.set_layers(5);
  refused("letter");
  SetLayers("M-E");
  refused("experts");
}

TEST_F(PredictedPartsTest, RefusesTeamsThatDoNotDivideTheRanks) {
  PlanLayout layout = Layout();
  layout.cp = 4;
  layout.cp_team = 3;
  EXPECT_EQ(PredictStep(gpu_, program_, kernels_, model_, layout).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(PredictedPartsTest, RefusesPartsThatDoNotFitTheLayout) {
  const auto parts = PredictParts(gpu_, program_, kernels_, model_, Layout(), {{96, 0}});
  EXPECT_EQ(parts.status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace megatron
