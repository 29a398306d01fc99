#include "megatron/train/planning/predict_run.h"

#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "megatron/base/memory_file_system.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/planning/planning_facts.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;

constexpr char kHardware[] =
    "hardware { name: 'mine' fp32_tflops: 20 bf16_tflops: 300 memory_gib: 80 memory_gb_per_s: 2000 "
    "link_gb_per_s: 300 domain: 8 network_gb_per_s: 50 ";

class PredictRunTest : public ::testing::Test {
 protected:
  absl::StatusOr<StepComparison> Predict(const std::string& hardware, const std::string& name,
                                         const std::vector<std::string>& set) {
    EXPECT_THAT(WriteFileAtomically(disk_, "hardware.textproto", hardware), IsOk());
    PlanningOptions options;
    options.hardware_file = "hardware.textproto";
    const auto facts = ReadPlanningFacts(disk_, options, /*is_gpu=*/true);
    EXPECT_THAT(facts, IsOk());
    const auto loaded = LoadConfig(name, set, ConfigPurpose::kDryRun);
    EXPECT_THAT(loaded, IsOk());
    return PredictRun(loaded->config, 50304, *facts);
  }

  MemoryFileSystem disk_;
};

double SumOf(const StepComparison& comparison) {
  double sum = 0;
  for (const ComparedPart& part : comparison.part()) sum += part.predicted_seconds();
  return sum;
}

TEST_F(PredictRunTest, ThePartsAddUpToTheStep) {
  for (const std::string end : {"}", "cores: 2 thread_efficiency: 0.9 }"}) {
    for (const std::string pipeline : {"1", "2", "4"}) {
      const auto predicted = Predict(
          absl::StrCat(kHardware, end), "gpt3_857m",
          {"parallel.pipeline_model_parallel_size=" + pipeline, "parallel.data_parallel_size=2"});
      ASSERT_THAT(predicted, IsOk());
      EXPECT_GT(predicted->predicted_seconds(), 0);
      EXPECT_NEAR(SumOf(*predicted), predicted->predicted_seconds(),
                  1e-6 * predicted->predicted_seconds());
      EXPECT_EQ(predicted->stage(), std::stoi(pipeline) - 1);  // that with the head
    }
  }
}

TEST_F(PredictRunTest, RanksThatShareCoresTakeLonger) {
  const std::vector<std::string> set = {"parallel.data_parallel_size=2"};
  const auto two =
      Predict(absl::StrCat(kHardware, "cores: 2 thread_efficiency: 1 }"), "gpt3_857m", set);
  const auto eight =
      Predict(absl::StrCat(kHardware, "cores: 8 thread_efficiency: 1 }"), "gpt3_857m", set);
  ASSERT_THAT(two, IsOk());
  ASSERT_THAT(eight, IsOk());
  EXPECT_GT(two->predicted_seconds(), 2 * eight->predicted_seconds());
}

TEST_F(PredictRunTest, StatesInHostMemoryArePredictedWhereNoDeviceIsWritten) {
  const auto seconds = [this](const std::string& rest, const std::vector<std::string>& set) {
    const auto predicted = Predict(absl::StrCat(kHardware, rest), "gpt3_857m", set);
    EXPECT_THAT(predicted, IsOk());
    return predicted.ok() ? predicted->predicted_seconds() : 0;
  };
  const std::string offloads = "optimizer.optimizer_cpu_offload=true";
  const std::string gpu = "host_link_gb_per_s: 10 host_memory_gb_per_s: 20 }";
  EXPECT_GT(seconds(gpu, {offloads}), seconds(gpu, {}));
  EXPECT_EQ(seconds(gpu, {offloads}), seconds(gpu, {offloads, "system.device=cuda"}));
  const std::string processor = "cores: 2 thread_efficiency: 0.9 }";
  EXPECT_EQ(seconds(processor, {offloads}), seconds(processor, {offloads, "system.device=cpu"}));
}

}  // namespace
}  // namespace megatron
