#include "megatron/train/preflight/check_world_size.h"

#include <optional>

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

TEST(CheckWorldSizeTest, DataParallelRanksAreWhatTheOtherAxesLeave) {
  config::ParallelConfig parallel;
  parallel.set_tensor_model_parallel_size(2);
  EXPECT_EQ(DataParallelSizeOfWorld(Processes(6), parallel), 3);
  EXPECT_EQ(DataParallelSizeOfWorld(Processes(2), parallel), 1);
  EXPECT_EQ(DataParallelSizeOfWorld(Processes(1), parallel), std::nullopt);
  EXPECT_EQ(DataParallelSizeOfWorld(Processes(3), parallel), std::nullopt);
  EXPECT_EQ(DataParallelSizeOfWorld(Processes(6), Tensor2Data2()), std::nullopt);
  parallel.set_tensor_model_parallel_size(0);
  EXPECT_EQ(DataParallelSizeOfWorld(Processes(6), parallel), std::nullopt);
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
