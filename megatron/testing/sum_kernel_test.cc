#include "megatron/testing/sum_kernel.h"

#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace megatron::testing {
namespace {

std::vector<float> FirstIntegers(int n) {
  std::vector<float> x(n);
  std::iota(x.begin(), x.end(), 1.0f);
  return x;
}

TEST(SumKernelTest, Avx2SumsEveryElement) {
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "this CPU has no AVX2";
  EXPECT_EQ(avx2::Sum(FirstIntegers(100).data(), 100), 5050);
}

TEST(SumKernelTest, Avx512SumsEveryElement) {
  if (!__builtin_cpu_supports("avx512f")) GTEST_SKIP() << "this CPU has no AVX-512";
  EXPECT_EQ(avx512::Sum(FirstIntegers(100).data(), 100), 5050);
}

}  // namespace
}  // namespace megatron::testing
