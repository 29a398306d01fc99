#include "megatron/ops/cuda/dynamic_shared.cuh"

#include "gtest/gtest.h"
#include "megatron/ops/cuda/emulation/block.h"

namespace megatron::ops::cuda {
namespace {

constexpr size_t kLess = size_t{60} << 10, kMore = size_t{100} << 10;

template <int kName>
void Kernel() {
  emulation::DynamicShared();
}

// Ends the program if the kernel may not have that much.
template <int kName>
void LaunchWith(size_t shared_bytes) {
  emulation::Launch(emulation::Address(Kernel<kName>), Kernel<kName>, dim3(1), dim3(32),
                    shared_bytes, nullptr)();
}

// So it is if one thread allows more, and another allows less before the first one launches.
TEST(DynamicSharedTest, WhoNeedsLessTakesNothingFromWhoNeedsMore) {
  ASSERT_EQ(AllowDynamicShared(Kernel<0>, kMore), cudaSuccess);
  ASSERT_EQ(AllowDynamicShared(Kernel<0>, kLess), cudaSuccess);
  LaunchWith<0>(kLess);
  LaunchWith<0>(kMore);
}

TEST(DynamicSharedTest, MoreMayBeAskedForLater) {
  ASSERT_EQ(AllowDynamicShared(Kernel<1>, kLess), cudaSuccess);
  LaunchWith<1>(kLess);
  ASSERT_EQ(AllowDynamicShared(Kernel<1>, kMore), cudaSuccess);
  LaunchWith<1>(kMore);
}

TEST(DynamicSharedDeathTest, EachKernelAsksForItself) {
  ASSERT_EQ(AllowDynamicShared(Kernel<2>, kMore), cudaSuccess);
  ASSERT_EQ(AllowDynamicShared(Kernel<3>, kLess), cudaSuccess);
  LaunchWith<3>(kLess);
  EXPECT_DEATH(LaunchWith<3>(kMore), "without cudaFuncSetAttribute");
}

TEST(DynamicSharedTest, MoreThanADeviceHasIsAnError) {
  ASSERT_EQ(AllowDynamicShared(Kernel<4>, kMore), cudaSuccess);
  EXPECT_NE(AllowDynamicShared(Kernel<4>, size_t{228} << 10), cudaSuccess);
  LaunchWith<4>(kMore);
}

}  // namespace
}  // namespace megatron::ops::cuda
