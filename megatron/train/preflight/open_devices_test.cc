// The CUDA device is emulated; all ranks share it.
#include "megatron/train/preflight/open_devices.h"

#include "absl/status/status_matchers.h"
#include "gtest/gtest.h"
#include "megatron/train/failure/exit_status.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;

TEST(OpenDevicesTest, OnTheCpuThereIsNothingToOpen) {
  RunOptions options;
  options.parallel.data = 2;
  options.gemms.plan_file = "/nowhere/plans.textproto";
  const auto links = OpenDeviceLinks(options, {}, {});
  ASSERT_THAT(links, IsOk());
  EXPECT_FALSE(links->nccl);
  EXPECT_FALSE(PeakFlops(options, 2).has_value());
  EXPECT_THAT(OpenGemmPlans(PosixFileSystem(), options), IsOkAndHolds(""));
}

TEST(OpenDevicesTest, AMissingPlanFileIsAMistakeOfTheConfiguration) {
  RunOptions options;
  options.device = DeviceType::kCuda;
  options.gemms.plan_file = "/nowhere/plans.textproto";
  EXPECT_EQ(ExitCodeOf(OpenGemmPlans(PosixFileSystem(), options).status()), kExitConfig);
}

TEST(OpenDevicesTest, RanksThatShareAGpuCannotUseNccl) {
  RunOptions options;
  options.device = DeviceType::kCuda;
  options.parallel.data = 2;
  options.ranks.backend = DistributedBackend::kNccl;
  EXPECT_EQ(ExitCodeOf(OpenDeviceLinks(options, {}, {}).status()), kExitConfig);
}

}  // namespace
}  // namespace megatron
