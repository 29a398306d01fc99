#include "megatron/ops/cuda/kernel_table.h"

#include "gtest/gtest.h"

namespace megatron::ops {

// An op of this test only.
void Increment(int* x) { *x += 1; }
void Decrement(int* x) { *x -= 1; }

namespace cuda {
namespace {

void Increment(int* x) { *x += 2; }
MEGATRON_CUDA_KERNEL(Increment);

TEST(CudaKernelTableTest, AnOpRunsTheKernelThatIsRegisteredForIt) {
  int x = 0;
  OnCuda<ops::Increment>(&x);
  EXPECT_EQ(x, 2);
}

TEST(CudaKernelTableDeathTest, AnOpWithoutAKernelEndsTheProgramAndIsNamed) {
  int x = 0;
  EXPECT_DEATH(OnCuda<ops::Decrement>(&x), "no CUDA kernel is linked for Decrement");
}

TEST(CudaKernelTableDeathTest, AnOpHasOneKernel) {
  EXPECT_DEATH(RegisterCudaKernel<ops::Increment>(Increment), "two CUDA kernels.*for Increment");
}

}  // namespace
}  // namespace cuda
}  // namespace megatron::ops
