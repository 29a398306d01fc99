#include "megatron/ops/weighted_sum.h"

#include <cmath>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"

namespace megatron::ops {
namespace {

TEST(WeightedSumTest, AddsToWhatIsThereAndLeavesMaskedValuesOut) {
  ThreadPool pool(1);
  float x[] = {1.5f, std::nanf(""), 4.0f};
  float weight[] = {1.0f, 0.0f, 0.5f};
  float out[] = {10.0f, 1.0f};
  WeightedSum(Stream::Cpu(&pool), Tensor(x, DType::kFloat32, {3}),
              Tensor(weight, DType::kFloat32, {3}), Tensor(out, DType::kFloat32, {2}));
  EXPECT_EQ(out[0], 13.5f);
  EXPECT_EQ(out[1], 2.5f);
}

}  // namespace
}  // namespace megatron::ops
