#include "tools/calibration/refit_from_run.h"

#include <cmath>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/memory_file_system.h"
#include "megatron/plan/plan_facts.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/metrics/step_comparer.h"
#include "megatron/train/planning/planning_facts.h"
#include "megatron/train/planning/predict_run.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kConfig[] =
    "model { num_layers: 2 hidden_size: 64 num_attention_heads: 4 seq_length: 64 }\n"
    "optimizer { lr: 0.9 lr_warmup_iters: 2 }\n"
    "train { micro_batch_size: 1 global_batch_size: 4 train_iters: 16 }\n"
    "system { device: cpu }\n"
    "data { stories {} }\n";

constexpr char kHardware[] =
    "hardware { name: 'mine' fp32_tflops: 0.1 bf16_tflops: 0.1 memory_gib: 16 memory_gb_per_s: 20 "
    "link_gb_per_s: 8 domain: 64 network_gb_per_s: 1 cores: 2 thread_efficiency: 0.9 }\n";

class RefitFromRunTest : public ::testing::Test {
 protected:
  RefitFromRunTest() {
    EXPECT_THAT(disk_.CreateDirs("run"), IsOk());
    Write("hardware.textproto", kHardware);
    std::string table = "gpu,kernel,pass,m,n,k,share_of_peak\n";
    for (const char* pass : {"forward", "input_gradient", "weight_gradient"})
      absl::StrAppend(&table, "mine,product,", pass, ",64,128,64,0.5\n");
    Write("kernels.csv", table);
  }

  void Write(const std::string& path, const std::string& text) {
    ASSERT_THAT(WriteFileAtomically(disk_, path, text), IsOk());
  }
  // A run that has measured what is predicted with this efficiency, and a rest.
  StepComparison RunWith(double efficiency, double rest,
                         const std::vector<std::string>& overrides = {}) {
    const auto loaded = LoadConfigFromString(kConfig, "x", overrides, ConfigPurpose::kDryRun);
    EXPECT_THAT(loaded, IsOk());
    PlanningOptions options;
    options.hardware_file = "hardware.textproto";
    auto facts = ReadPlanningFacts(disk_, options, /*is_gpu=*/false);
    EXPECT_THAT(facts, IsOk());
    facts->program.set_measured_efficiency(efficiency);
    StepComparison run = *PredictRun(loaded->config, 384, *facts);
    for (ComparedPart& part : *run.mutable_part()) {
      part.set_measured_seconds(part.name() == kRestOfStep ? rest : part.predicted_seconds());
    }
    run.set_measured_seconds(run.predicted_seconds() + rest);
    run.set_steps(kComparedSteps);
    return run;
  }
  absl::StatusOr<std::string> Refit() {
    return RefitFromRun(disk_, {"run", "hardware.textproto", ""});
  }

  MemoryFileSystem disk_;
};

TEST_F(RefitFromRunTest, FindsTheConstantsThatTheRunWasMadeWith) {
  Write("run/prediction.textproto", ComparisonText(RunWith(0.37, 0.004)));
  EXPECT_THAT(Refit(), absl_testing::IsOkAndHolds(HasSubstr("measured_efficiency 0.370")));
  const auto facts = ParsePlanFacts(*ReadFileToString(disk_, "hardware.textproto"));
  ASSERT_THAT(facts, IsOk());
  const auto program = FindImplementation(*facts, "megatron_cc");
  ASSERT_THAT(program, IsOk());
  EXPECT_NEAR((*program)->measured_efficiency(), 0.37, 1e-6);
  EXPECT_NEAR((*program)->step_seconds(), 0.004, 1e-9);
  EXPECT_EQ(facts->hardware(0).name(), "mine");
  // The same run changes nothing more.
  EXPECT_THAT(Refit(), absl_testing::IsOkAndHolds(HasSubstr("(was 0.370), step_seconds 0.0040 (was "
                                                            "0.0040)")));
}

TEST_F(RefitFromRunTest, CommentsOfTheFileStay) {
  Write("hardware.textproto", absl::StrCat("# Written by me.\n", kHardware, "# The end.\n"));
  Write("run/prediction.textproto", ComparisonText(RunWith(0.37, 0.004)));
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(Refit(), IsOk());
    EXPECT_THAT(*ReadFileToString(disk_, "hardware.textproto"),
                StartsWith(absl::StrCat("# measured_efficiency and step_seconds are fitted to the "
                                        "run in run.\n# Written by me.\n",
                                        kHardware, "# The end.\nimplementation {\n")));
  }
}

// Such ranks have waited where they would have computed.
TEST_F(RefitFromRunTest, OfRanksThatShareCoresTheWholeStepIsFitted) {
  StepComparison run = RunWith(0.37, 0.004, {"parallel.data_parallel_size=4"});
  for (ComparedPart& part : *run.mutable_part()) {
    if (part.name() == "compute") part.set_measured_seconds(part.measured_seconds() / 3);
  }
  Write("run/prediction.textproto", ComparisonText(run));
  EXPECT_THAT(Refit(), absl_testing::IsOkAndHolds(HasSubstr("measured_efficiency 0.370")));
}

TEST_F(RefitFromRunTest, WhatNoEfficiencyExplainsIsRefused) {
  for (const double seconds : {1e-9, 1e8}) {
    StepComparison run = RunWith(1, 0);
    for (ComparedPart& part : *run.mutable_part()) part.set_measured_seconds(seconds);
    Write("run/prediction.textproto", ComparisonText(run));
    EXPECT_THAT(Refit(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                  HasSubstr("any measured_efficiency from 0.01 to 2")));
  }
  for (const double seconds : {-1.0, 1e300, std::nan("")}) {
    StepComparison run = RunWith(1, 0);
    run.mutable_part(0)->set_measured_seconds(seconds);
    Write("run/prediction.textproto", ComparisonText(run));
    EXPECT_THAT(Refit(), StatusIs(absl::StatusCode::kInvalidArgument,
                                  HasSubstr("run/prediction.textproto: measured_seconds")));
  }
  EXPECT_EQ(*ReadFileToString(disk_, "hardware.textproto"), kHardware);
}

TEST_F(RefitFromRunTest, WithoutMeasuredKernelsThereIsNothingToFit) {
  Write("run/prediction.textproto", ComparisonText(RunWith(0.37, 0)));
  Write("kernels.csv",
        "gpu,kernel,pass,m,n,k,share_of_peak\nother,product,forward,64,128,64,0.5\n");
  EXPECT_THAT(Refit(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                HasSubstr("no measured kernel is near")));
}

TEST_F(RefitFromRunTest, WrongFilesAreNamed) {
  EXPECT_THAT(Refit(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("run/prediction.textproto")));
  StepComparison run = RunWith(0.5, 0);
  for (const std::string text : {"steps: x", "\x01", "steps: 3"}) {
    Write("run/prediction.textproto", text);
    EXPECT_THAT(Refit(), StatusIs(absl::StatusCode::kInvalidArgument)) << text;
  }
  run.set_config("model { num_layers: -1 }");
  Write("run/prediction.textproto", ComparisonText(run));
  EXPECT_THAT(Refit(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("num_layers")));
}

}  // namespace
}  // namespace megatron
