#include "megatron/ops/cpu/fma_peak.h"

#include <algorithm>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"

namespace megatron::ops {
namespace {

// The bounds are a slow clock on a busy machine, and two 512-bit units at 6 GHz.
TEST(FmaPeakTest, IsThatOfAProcessor) {
  ThreadPool pool(1);
  double best = 0;
  for (int i = 0; i < 5; ++i) best = std::max(best, MeasureFmaPeak(&pool));
  EXPECT_GT(best, 1e9);
  EXPECT_LT(best, 64 * 6e9);
}

}  // namespace
}  // namespace megatron::ops
