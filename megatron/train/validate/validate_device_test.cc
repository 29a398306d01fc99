// What is refused on a machine with a GPU, which the CPU plays.
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/validate/validation_errors.h"

namespace megatron {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kRanks[] = "parallel.data_parallel_size=4";
constexpr char kTakenDevice[] = "system.device = cuda (computed)";

// What runs on processors alone.
std::vector<std::pair<ConfigOverrides, std::string>> ForProcessors() {
  return {
      {{"gradient_compression.type=topk", kRanks}, "cannot be used with "},
      {{"gradient_compression.type=threshold", "gradient_compression.threshold=1e-4", kRanks},
       "cannot be used with "},
      {{"gradient_compression.type=powersgd", kRanks}, "cannot be used with "},
      {{"parallel.sparse_gradients=true", "model.untie_embeddings_and_output_weights=true", kRanks},
       "cannot be used with "},
      {{"optimizer.optimizer=onebit_adam", "optimizer.freeze_step=4"},
       "onebit_adam cannot be used with "},
      {{"train.rerun_mode=validate_results"}, "has no effect with "},
      {{"parallel.in_process_recovery=true", "parallel.ranks_as=processes",
        "train.global_batch_size=8", kRanks},
       "has no effect with "},
      {{"logging.pipeline_timeline_file=timeline", "parallel.pipeline_model_parallel_size=2"},
       "is measured on the CPU only, not with "}};
}

TEST(ValidateDeviceTest, ARunThatWillTakeAGpuIsRefusedWhatGpusLack) {
  EXPECT_THAT(ErrorsOf(kGoodConfig, {}, ConfigPurpose::kRun), IsEmpty());
  for (const auto& [overrides, text] : ForProcessors()) {
    EXPECT_THAT(ErrorsOf(kGoodConfig, overrides, ConfigPurpose::kRun),
                ElementsAre(HasSubstr(text + kTakenDevice)))
        << overrides.front();
  }
  EXPECT_THAT(ErrorsOf(kGoodConfig,
                       {"parallel.overlap_grad_reduce=true", "parallel.distributed_backend=host",
                        "parallel.data_parallel_size=2"},
                       ConfigPurpose::kRun),
              ElementsAre(HasSubstr("on GPUs NCCL alone overlaps")));
}

TEST(ValidateDeviceTest, ARunThatIsToTakeTheProcessorIsNot) {
  for (auto [overrides, text] : ForProcessors()) {
    overrides.push_back("system.device=cpu");
    EXPECT_THAT(ErrorsOf(kGoodConfig, overrides, ConfigPurpose::kRun), IsEmpty())
        << overrides.front();
  }
}

// A plan may be for another machine.
TEST(ValidateDeviceTest, APlanThatNamesNoDeviceIsNot) {
  for (const auto& [overrides, text] : ForProcessors()) {
    EXPECT_THAT(ErrorsOf(kGoodConfig, overrides, ConfigPurpose::kDryRun), IsEmpty())
        << overrides.front();
  }
}

TEST(ValidateDeviceTest, WhatRunsOnGpusIsAccepted) {
  EXPECT_THAT(
      ErrorsOf(kGoodConfig, {"gradient_compression.type=int8", kRanks}, ConfigPurpose::kRun),
      IsEmpty());
  EXPECT_THAT(ErrorsOf(kGoodConfig, {"precision.bf16=true", "system.cuda_graph_impl=local"},
                       ConfigPurpose::kRun),
              IsEmpty());
}

}  // namespace
}  // namespace megatron
