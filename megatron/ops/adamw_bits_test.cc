// The CPU's kernels against the definition of AdamW (adamw_element.h), bit for bit; and the rounding
// by chance of that definition.
#include <cmath>
#include <cstdint>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/adamw_cases.h"
#include "megatron/ops/adamw_element.h"
#include "megatron/ops/optimizer.h"
#include "megatron/tensor/stream.h"

namespace megatron::ops {
namespace {

void ExpectTheDefinition(int64_t count, const AdamWDTypes& dtypes, const AdamWOptions& options,
                         const OptimizerSegment& segment) {
  ThreadPool pool(2);
  AdamWCase got = MakeAdamWCase(count, dtypes, 1), want = MakeAdamWCase(count, dtypes, 1);
  UpdateByElement(options, segment, &want);
  AdamWUpdate(Stream::Cpu(&pool), options, {segment}, got.grad, got.m, got.v, got.master, got.out);
  for (size_t i = 0; i < got.tensors().size(); ++i) {
    SCOPED_TRACE(testing::Message() << "tensor " << i << " of grad, m, v, master, out");
    ExpectSameBits(*got.tensors()[i], *want.tensors()[i]);
  }
}

TEST(AdamWBitsTest, TenMillionElementsAreTheDefinitions) {
  AdamWOptions options;
  options.beta2 = 0.95;
  options.step = 3;
  options.grad_scale = 0.7f;
  constexpr int64_t kCount = 10'000'000;
  ExpectTheDefinition(kCount, {DType::kBFloat16}, options, {0, kCount, 1e-3f, 0.1f});
}

// Vectors that are cut at either end, and scalars of other steps.
TEST(AdamWBitsTest, AnyPartAndAnyStepAreTheDefinitions) {
  for (const DType out_dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const int64_t step : {1, 10, 1'000'000}) {
      for (const int64_t begin : {0, 1, 7, 33}) {
        AdamWOptions options;
        options.step = step;
        options.grad_scale = step == 10 ? 1e-5f : 1;
        ExpectTheDefinition(60'013, {out_dtype}, options, {begin, 60'013 - begin / 2, 6e-4f, 0});
      }
    }
  }
}

TEST(AdamWBitsTest, MomentsInBFloat16AreTheDefinitions) {
  constexpr DType kFloat = DType::kFloat32, kHalf = DType::kBFloat16;
  AdamWOptions options;
  options.step = 7;
  for (const AdamWDTypes& dtypes :
       {AdamWDTypes{kHalf, kHalf, kHalf}, {kHalf, kHalf, kFloat}, {kFloat, kFloat, kHalf}}) {
    ExpectTheDefinition(300'013, dtypes, options, {7, 300'011, 6e-4f, 0.1f});
  }
}

// The mean over all random numbers is the value itself, and values of bf16 stay.
TEST(AdamWRoundingTest, RoundsToBothNeighboursByTheirDistance) {
  for (const float x : {1.0f, 1.001f, -3.7e-5f, 2.5e20f, 1e-39f}) {
    double sum = 0;
    for (uint32_t random = 0; random < 1 << 16; ++random) sum += RoundByChance(x, random);
    EXPECT_NEAR(sum / (1 << 16), x, std::abs(x) * 1e-6) << x;
  }
  EXPECT_EQ(RoundByChance(1.5f, 0xffff), 1.5f);
  EXPECT_EQ(RoundByChance(HUGE_VALF, 0xffff), HUGE_VALF);
  EXPECT_TRUE(std::isnan(RoundByChance(std::nanf(""), 0xffff)));
}

// A second moment far from its gradients' squares comes near them, as it does in fp32, although each
// step changes it by less than half of what bf16 can tell apart.
TEST(AdamWRoundingTest, ASecondMomentInBFloat16Follows) {
  ThreadPool pool(2);
  constexpr int64_t kCount = 4096;
  AdamWOptions options;
  const OptimizerSegment all = {0, kCount, 1e-4f, 0};
  AdamWCase half = MakeAdamWCase(kCount, {DType::kBFloat16, DType::kBFloat16, DType::kBFloat16}, 1),
            full = MakeAdamWCase(kCount, {DType::kBFloat16}, 1);
  for (AdamWCase* const moments : {&half, &full}) {
    for (int64_t i = 0; i < kCount; ++i) {
      moments->grad.Set(i, 1);
      moments->m.Set(i, 1);
      moments->v.Set(i, 1.3);
      moments->master.Set(i, 0.01 * static_cast<double>(i % 100));
    }
  }
  for (options.step = 1; options.step <= 1000; ++options.step) {
    for (AdamWCase* const at : {&half, &full})
      AdamWUpdate(Stream::Cpu(&pool), options, {all}, at->grad, at->m, at->v, at->master, at->out);
  }
  double mean = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    mean += half.v.Get(i) / kCount;
    EXPECT_NEAR(half.v.Get(i), full.v.Get(i), 0.15);
  }
  EXPECT_NEAR(full.v.Get(0), 1 + 0.3 * std::pow(0.999, 1000), 1e-3);
  EXPECT_NEAR(mean, full.v.Get(0), 3e-3);
}

}  // namespace
}  // namespace megatron::ops
