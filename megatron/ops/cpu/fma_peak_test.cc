#include "megatron/ops/cpu/fma_peak.h"

#include <algorithm>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/cpu/isa.h"

namespace megatron::ops {
namespace {

// The bounds are a slow clock on a busy machine, and 6 GHz: two 512-bit units, or one of AMX.
TEST(FmaPeakTest, IsThatOfAProcessor) {
  ThreadPool pool(1);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const bool amx = dtype == DType::kBFloat16 && ActiveBf16Products() == Bf16Products::kAmx;
    double best = 0;
    for (int i = 0; i < 5; ++i) best = std::max(best, MeasureFmaPeak(&pool, dtype));
    EXPECT_GT(best, 1e9);
    EXPECT_LT(best, (amx ? 1024 : 128) * 6e9);
  }
}

}  // namespace
}  // namespace megatron::ops
