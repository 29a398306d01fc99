// Reads back what pretrain_gpt writes of steps that are measured, and of spikes.
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/pretrain_harness.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using Json = nlohmann::json;

class PretrainDiagnosticsTest : public PretrainProgramTest {
 protected:
  // Returns the steps of a run's metrics.jsonl, whose lines are all valid.
  std::vector<Json> Steps(const std::string& save) const {
    std::vector<Json> steps;
    const std::string text = ReadTextFile(Path(save + "/metrics.jsonl"));
    for (const auto line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      const Json object = Json::parse(std::string(line), nullptr, /*allow_exceptions=*/false);
      EXPECT_TRUE(object.is_object()) << line;
      if (object.contains("consumed_samples")) steps.push_back(object);
    }
    EXPECT_EQ(steps.size(), 12u);
    return steps;
  }
};

const Arguments& EightRanks() {
  static const auto* const arguments = new Arguments{
      "--set=train.micro_batch_size=1",         "--set=parallel.tensor_model_parallel_size=2",
      "--set=parallel.sequence_parallel=true",  "--set=parallel.pipeline_model_parallel_size=2",
      "--set=parallel.data_parallel_size=2",    "--set=parallel.use_distributed_optimizer=true",
      "--set=parallel.overlap_grad_reduce=true"};
  return *arguments;
}

int ValuesOfLayers(const Json& step) {
  int count = 0;
  for (const auto& [key, value] : step.items())
    count += absl::StrContains(key, '/') && !absl::StartsWith(key, "share/");
  return count;
}

TEST_F(PretrainDiagnosticsTest, MeasuredStepsHaveTheirLayersAndTrainTheSameBytes) {
  const Outcome plain = Run(Joined({SaveTo("plain")}, EightRanks()));
  ASSERT_EQ(plain.exit_code, kExitDone) << plain.output;
  const Outcome measured =
      Run(Joined({SaveTo("measured"), "--set=logging.diagnostics_interval=3"}, EightRanks()));
  ASSERT_EQ(measured.exit_code, kExitDone) << measured.output;
  ExpectEqualCheckpoints("plain", "measured");
  for (const Json& step : Steps("plain")) EXPECT_EQ(ValuesOfLayers(step), 0) << step;
  for (const Json& step : Steps("measured")) {
    const bool expected = step["iteration"].get<int>() % 3 == 0;
    EXPECT_EQ(ValuesOfLayers(step) > 0, expected) << step;
    EXPECT_EQ(step.contains("max_attention_logit"), expected) << step;
    if (!expected) continue;
    for (const char* metric : {"grad-norm", "params-norm", "update-norm", "update-ratio"}) {
      for (const char* layer : {"embedding", "decoder.layers.0", "other"})
        EXPECT_GT(step.value(absl::StrCat(metric, "/", layer), 0.0), 0) << metric << layer;
    }
    for (const char* metric : {"output-rms", "output-max", "max_attention_logit"})
      EXPECT_GT(step.value(absl::StrCat(metric, "/decoder.layers.1"), 0.0), 0) << metric;
  }
}

TEST_F(PretrainDiagnosticsTest, AStepThatIsSkippedSaysWhereGradientsBroke) {
  const Outcome outcome = Run({SaveTo("save"), "--set=logging.diagnostics_interval=1",
                               "--set=precision.fp16=true", "--set=precision.loss_scale=1e12"});
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  const Json first = Steps("save")[0];
  EXPECT_EQ(first["skipped"], true) << first;
  EXPECT_TRUE(first.contains("grad-norm/decoder.layers.0")) << first;
  EXPECT_TRUE(first["grad-norm/decoder.layers.0"].is_null()) << first;
  EXPECT_FALSE(first.contains("update-norm/decoder.layers.0")) << first;
  EXPECT_GT(first["params-norm/decoder.layers.0"], 0) << first;
}

TEST_F(PretrainDiagnosticsTest, ASpikeIsOneLineAndOneEventWhateverTheNumberOfRanks) {
  constexpr double kThreshold = 0.5;
  const Outcome outcome = Run(
      Joined({SaveTo("save"), "--set=logging.spike_window=4",
              absl::StrCat("--set=logging.spike_threshold=", kThreshold), "--set=optimizer.lr=0.3",
              absl::StrCat("--set=logging.on_event=\"cat >> ", Path("events"), "\"")},
             EightRanks()));
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  int spikes = 0, scored = 0;
  for (const Json& step : Steps("save")) {
    EXPECT_EQ(step.contains("loss-z-score"), step["iteration"] > 2) << step;
    scored += step.contains("loss-z-score");
    if (step.value("loss-z-score", 0.0) < kThreshold &&
        step.value("grad-norm-z-score", 0.0) < kThreshold)
      continue;
    ++spikes;
    EXPECT_EQ(CountOf(outcome.output,
                      absl::StrCat("WARNING: iteration ", step["iteration"].get<int>(), ": the ")),
              1)
        << outcome.output;
  }
  EXPECT_EQ(scored, 10);
  EXPECT_GT(spikes, 0);
  EXPECT_EQ(CountOf(outcome.output, "standard deviations above its mean of ") > 0, spikes > 0);
  EXPECT_EQ(CountOf(outcome.output, "WARNING: iteration "), spikes) << outcome.output;
  EXPECT_EQ(CountOf(ReadTextFile(Path("events")), "{\"event\":\"spike\""), spikes);
}

}  // namespace
}  // namespace megatron
