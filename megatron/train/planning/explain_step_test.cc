#include "megatron/train/planning/explain_step.h"

#include <map>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/plan/measured_kernels.h"
#include "megatron/plan/plan_facts.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/profile/check_trace.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using ::absl_testing::IsOk;

constexpr int64_t kVocab = 50304;

ExplainedStep Explain(const std::string& name, const std::vector<std::string>& overrides,
                      int cores = 0) {
  const PlanFacts facts = *ParsePlanFacts(BuiltInPlanFacts());
  Hardware hardware = **FindHardware(facts, "H100");
  hardware.set_cores(cores);
  auto loaded = LoadConfig(name, overrides, ConfigPurpose::kDryRun);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  auto step = ExplainStep(loaded->config, kVocab, hardware,
                          **FindImplementation(facts, "megatron_core"), MeasuredKernels());
  EXPECT_TRUE(step.ok()) << step.status();
  return *step;
}

double Sum(const StepSeconds& s) {
  return s.compute + s.tensor_parallel + s.context_parallel + s.expert_parallel + s.messages +
         s.bubble + s.data_parallel + s.host_link + s.optimizer + s.constant;
}

std::vector<std::string> Pipeline(const std::string& schedule) {
  return {"parallel.tensor_model_parallel_size=2",
          "parallel.sequence_parallel=true",
          "parallel.pipeline_model_parallel_size=4",
          "parallel.data_parallel_size=2",
          "train.micro_batch_size=1",
          "train.global_batch_size=32",
          "parallel.pipeline_schedule=\"" + schedule + "\""};
}

// The first two of four stages have nothing to train, the word table included.
TEST(ExplainStepTest, FrozenFirstLayersAreOnlyRunForward) {
  const char* const freeze = R"(optimizer.freeze=["^embedding", "layers\\.([0-9]|1[01])\\."])";
  for (const char* schedule : {"zb_h1", "1f1b", "gpipe"}) {
    auto overrides = Pipeline(schedule);
    const ExplainedStep all = Explain("gpt3_857m", overrides);
    overrides.push_back(freeze);
    const ExplainedStep half = Explain("gpt3_857m", overrides);
    for (int stage = 0; stage < 2; ++stage) {
      // Of a forward pass and a backward pass, which takes about twice as long.
      const double share = half.simulated.stages[stage].work / all.simulated.stages[stage].work;
      EXPECT_GT(share, 0.25) << schedule;
      EXPECT_LT(share, 0.4) << schedule;
    }
    EXPECT_NEAR(half.simulated.stages[2].work, all.simulated.stages[2].work,
                1e-9 * all.simulated.stages[2].work);
    // The head's weights have no gradient.
    EXPECT_LT(half.simulated.stages[3].work, all.simulated.stages[3].work);
    EXPECT_LT(half.seconds.total, all.seconds.total) << schedule;
    EXPECT_LT(half.model_flops, 0.75 * all.model_flops);
    EXPECT_GT(half.model_flops, 0.6 * all.model_flops);
  }
}

TEST(ExplainStepTest, PartsAddUpToTheStepWithEverySchedule) {
  std::map<std::string, double> bubbles;
  for (const char* schedule : {"zb_v", "zb_h1", "1f1b", "gpipe"}) {
    auto overrides = Pipeline(schedule);
    // So much work that the host's time does not count.
    overrides.push_back("train.micro_batch_size=8");
    overrides.push_back("train.global_batch_size=256");
    const ExplainedStep step = Explain("gpt3_857m", overrides);
    EXPECT_NEAR(Sum(step.seconds), step.seconds.total, 1e-9) << schedule;
    EXPECT_EQ(step.simulated.stages.size(), 4) << schedule;
    bubbles[schedule] = step.seconds.bubble;
  }
  EXPECT_LT(bubbles["zb_h1"], bubbles["1f1b"]);
  EXPECT_LT(bubbles["zb_v"], bubbles["1f1b"]);
  EXPECT_LE(bubbles["1f1b"], 1.01 * bubbles["gpipe"]);
}

TEST(ExplainStepTest, RanksThatShareCoresTakeAsLongAsTheirWork) {
  const ExplainedStep shared = Explain("gpt3_857m", Pipeline("1f1b"), /*cores=*/4);
  const ExplainedStep alone = Explain("gpt3_857m", Pipeline("1f1b"), /*cores=*/16);
  EXPECT_TRUE(shared.shares_cores);
  EXPECT_FALSE(alone.shares_cores);
  EXPECT_NEAR(Sum(shared.seconds), shared.seconds.total, 1e-9);
  // Four ranks of each core take four times as long, but for the bubble, in which others work.
  EXPECT_GT(shared.seconds.total, 2 * alone.seconds.total);
  EXPECT_LT(shared.seconds.total, 4 * alone.seconds.total);
}

TEST(ExplainStepTest, WithOneRankThereIsComputingAlone) {
  const ExplainedStep step = Explain("gpt2_124m", {});
  EXPECT_TRUE(step.traffic.empty());
  EXPECT_EQ(step.seconds.bubble, 0);
  EXPECT_GT(step.seconds.compute, 0.9 * step.seconds.total);
}

TEST(ExplainStepTest, AStageWithFewerLayersWaits) {
  auto overrides = Pipeline("1f1b");
  overrides.push_back("parallel.decoder_first_pipeline_num_layers=3");
  const ExplainedStep step = Explain("gpt3_857m", overrides);
  EXPECT_LT(step.simulated.stages[0].work, 0.6 * step.simulated.stages[1].work);
  EXPECT_NE(step.stage, 0);
}

TEST(ExplainStepTest, EveryAxisHasItsTraffic) {
  const ExplainedStep step = Explain("gpt3_857m", Pipeline("1f1b"));
  ASSERT_EQ(step.traffic.size(), 3);
  EXPECT_EQ(step.traffic[0].axis, TrafficAxis::kTensor);
  EXPECT_FALSE(step.traffic[0].crosses_network);
  EXPECT_EQ(step.traffic[1].axis, TrafficAxis::kPipeline);
  EXPECT_EQ(step.traffic[2].axis, TrafficAxis::kData);
  EXPECT_FALSE(step.traffic[2].crosses_network);  // two ranks, two GPUs apart
  for (const TrafficOfAxis& axis : step.traffic) {
    EXPECT_GT(axis.bytes, 0);
    EXPECT_GE(axis.seconds, axis.exposed);
  }
}

// The last stage's heads read what the stage before computes for each depth, and send gradients.
TEST(ExplainStepTest, EachDepthOfMultiTokenPredictionHasAMessageToHeadsThatAreAlone) {
  const auto messages = [](const std::string& layout) {
    const ExplainedStep step =
        Explain("gpt3_857m",
                {"parallel.pipeline_model_parallel_size=3", "train.micro_batch_size=1",
                 "train.global_batch_size=32", "model.position_embedding_type=rope",
                 "model.mtp_num_layers=2", "parallel.pipeline_model_parallel_layout=" + layout});
    EXPECT_EQ(step.stage, 1);  // the busiest
    for (const TrafficOfAxis& axis : step.traffic) {
      if (axis.axis == TrafficAxis::kPipeline) return axis.rows[0].calls;
    }
    return 0.0;
  };
  EXPECT_EQ(messages("Et*2|t*22|m*2L"), 32 * 2);
  EXPECT_EQ(messages("Et*2|t*22m*2|L"), 32 * (3 + 1));
}

// megatron/train/pretrain_timeline_test.cc compares it with a profile of the trainer.
TEST(ExplainStepTest, TheTraceHasAProcessForEachStage) {
  const ExplainedStep step = Explain("gpt3_857m", Pipeline("1f1b"));
  const auto trace = nlohmann::json::parse(TraceJson(ToTrace(step.simulated)));
  std::vector<int> passes(4);
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] == "X" && event["tid"] == 1) ++passes[event["pid"].get<int>()];
  }
  EXPECT_EQ(passes, std::vector<int>(4, 2 * 16));
}

TEST(ExplainStepTest, PerfettoShowsTheTraceOfEverySchedule) {
  for (const char* schedule : {"1f1b", "gpipe", "zb_h1", "zb_v", "interleaved"}) {
    auto overrides = Pipeline(schedule);
    if (schedule == std::string("interleaved"))
      overrides.push_back("parallel.num_virtual_stages_per_pipeline_rank=2");
    const ExplainedStep step = Explain("gpt3_857m", overrides);
    EXPECT_THAT(CheckTrace(TraceJson(ToTrace(step.simulated))), IsOk()) << schedule;
  }
}

}  // namespace
}  // namespace megatron
