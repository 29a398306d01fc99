#include "megatron/train/preflight/check_world_size.h"

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

LaunchEnvironment Processes(int world_size) {
  LaunchEnvironment launch;
  launch.world_size = world_size;
  return launch;
}

config::ParallelConfig Tensor2Data2() {
  config::ParallelConfig parallel;
  parallel.set_tensor_model_parallel_size(2);
  parallel.set_context_parallel_size(1);
  parallel.set_pipeline_model_parallel_size(1);
  parallel.set_data_parallel_size(2);
  return parallel;
}

TEST(CheckWorldSizeTest, OneProcessForEachRankIsRight) {
  EXPECT_THAT(CheckWorldSize(Processes(4), Tensor2Data2()), IsOk());
}

TEST(CheckWorldSizeTest, AProcessAloneStartsTheRanks) {
  EXPECT_THAT(CheckWorldSize(Processes(1), Tensor2Data2()), IsOk());
}

TEST(CheckWorldSizeTest, SaysWhichSizeWouldFit) {
  EXPECT_THAT(CheckWorldSize(Processes(6), Tensor2Data2()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("asks for 4 ranks: parallel.data_parallel_size = 3 would fit")));
  EXPECT_THAT(CheckWorldSize(Processes(3), Tensor2Data2()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("they would have to be a multiple of 2")));
}

}  // namespace
}  // namespace megatron
