// The CUDA device is emulated; all ranks share it.
#include "megatron/train/preflight/open_devices.h"

#include <string>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "megatron/comm/launch/launch_env.h"
#include "megatron/train/attention/choose_attention.h"
#include "megatron/train/config/config.pb.h"
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

// The emulated device has compute capability 9.0.
TEST(OpenDevicesTest, WhatProductsComputeBesideIsDecidedByTheGpuAndDescribed) {
  RunOptions options;
  EXPECT_EQ(OpenEpilogues(options, {}, {}).fuse_gelu, config::FuseGelu::auto_);
  EXPECT_EQ(DescribeProducts(options, ""), "");
  options.device = DeviceType::kCuda;
  options.parallel.data = 2;
  for (const int processes : {1, 2}) {
    LaunchEnvironment launch;
    launch.world_size = processes;
    RunOptions opened = options;
    opened.gemms = OpenEpilogues(options, launch, {});
    EXPECT_EQ(opened.gemms.fuse_gelu, config::FuseGelu::backward);
    EXPECT_EQ(opened.gemms.fuse_bias_gradients, true);
    const std::string products = DescribeProducts(opened, "");
    EXPECT_EQ(products, "cuBLASLt's first choice, with gradients of biases, with GELU: backward");
    AttentionChoice attention;
    attention.order = "local";
    EXPECT_EQ(DescribeKernels(opened, attention, products),
              absl::StrCat("attention: local\nproducts: ", products, "\n"));
  }
  options.gemms.fuse_gelu = config::FuseGelu::none;
  options.gemms.fuse_bias_gradients = false;
  options.gemms = OpenEpilogues(options, {}, {});
  EXPECT_EQ(DescribeProducts(options, ""), "cuBLASLt's first choice");
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
