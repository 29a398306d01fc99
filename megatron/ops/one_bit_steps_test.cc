#include "megatron/ops/one_bit_steps.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/host_tensor.h"

namespace megatron::ops {
namespace {

using Floats = std::vector<float>;

constexpr int64_t kMany = 20000;  // several tiles, for threads

Tensor Of(Floats& x) { return {x.data(), DType::kFloat32, {static_cast<int64_t>(x.size())}}; }

Floats Random(int64_t count, uint64_t seed) {
  const HostTensor x = HostTensor::Normal({count}, DType::kFloat32, seed);
  return {x.tensor().data<float>(), x.tensor().data<float>() + count};
}

Floats Squares(Floats x) {
  for (float& value : x) value *= value;
  return x;
}

// Calls body(stream) with one thread and with three.
template <typename Body>
void OnThreads(const Body& body) {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    body(Stream::Cpu(&pool));
  }
}

TEST(OneBitStepsTest, MomentumIsMadeInPlaceOfTheGradient) {
  const Floats gradient = Random(kMany, 1);
  Floats m = Random(kMany, 2);
  const Floats before = m;
  OnThreads([&](const Stream& stream) {
    Floats made = gradient;
    MakeMomentum(stream, 0.9, 0.5f, Of(m), Of(made));
    for (int64_t i = 0; i < kMany; ++i)
      ASSERT_NEAR(made[i], 0.9 * m[i] + 0.1 * 0.5 * gradient[i], 1e-6) << i;
  });
  EXPECT_EQ(m, before);
}

TEST(OneBitStepsTest, TheFreshMomentIsThatOfTheGradientsThatMomentumSpeaksOf) {
  const Floats last = Random(kMany, 1), fresh = Squares(Random(kMany, 2));
  const Floats gradient = Random(kMany, 3);
  OnThreads([&](const Stream& stream) {
    Floats next(kMany), m = last, v = fresh;
    for (int64_t i = 0; i < kMany; ++i) next[i] = 0.9f * last[i] + 0.1f * gradient[i];
    TakeMomentum(stream, 0.9, 0.99, Of(next), Of(m), Of(v));
    EXPECT_EQ(m, next);
    for (int64_t i = 0; i < kMany; ++i) {
      ASSERT_NEAR(v[i], 0.99 * fresh[i] + 0.01 * gradient[i] * gradient[i], 1e-5 * (1 + fresh[i]))
          << i;
    }
  });
}

TEST(OneBitStepsTest, TheLargestRatioIsThatOfElementsWithASecondMoment) {
  Floats v = Squares(Random(kMany, 1)), fresh = Squares(Random(kMany, 2));
  v[7] = 0;
  fresh[7] = 0;
  double want = 0;
  for (int64_t i = 0; i < kMany; ++i) {
    if (i != 7)
      want = std::max(want, (std::sqrt(double{v[i]}) + 0.5) / (std::sqrt(double{fresh[i]}) + 0.5));
  }
  OnThreads([&](const Stream& stream) {
    Floats largest = {-1};
    LargestRatio(stream, 0.5f, Of(v), Of(fresh), Of(largest));
    EXPECT_NEAR(largest[0], want, 1e-6 * want);
  });
  Floats none = {0, 0}, some = {1, 2}, largest = {-1};
  ThreadPool pool(1);
  LargestRatio(Stream::Cpu(&pool), 0.5f, Of(none), Of(some), Of(largest));
  EXPECT_EQ(largest[0], 0);
}

TEST(OneBitStepsTest, ProductsWithRoots) {
  Floats v = {4, 0, 9}, x = {2, 3, -1};
  ThreadPool pool(1);
  MultiplyByRoot(Stream::Cpu(&pool), 0.5f, Of(v), Of(x));
  EXPECT_EQ(x, (Floats{5, 1.5, -3.5}));
}

TEST(OneBitStepsTest, SumsAreRoundedOnce) {
  Floats a = {1, 2, 1}, b = {0.5f, -2, 1.0f / 256}, sum(3);
  ThreadPool pool(1);
  const Stream stream = Stream::Cpu(&pool);
  Sum(stream, Of(a), Of(b), Of(sum));
  EXPECT_EQ(sum, (Floats{1.5f, 0, 1 + 1.0f / 256}));
  std::vector<BFloat16> short_sum(3);
  Sum(stream, Of(a), Of(b), Tensor(short_sum.data(), DType::kBFloat16, {3}));
  // bf16 has 8 bits: 1 + 1/256 lies between 1 and 1 + 1/128, and is rounded to the even one.
  EXPECT_EQ(ToFloat(short_sum[0]), 1.5f);
  EXPECT_EQ(ToFloat(short_sum[1]), 0);
  EXPECT_EQ(ToFloat(short_sum[2]), 1);
  std::vector<Float16> half_sum(3);
  Sum(stream, Of(a), Of(b), Tensor(half_sum.data(), DType::kFloat16, {3}));
  EXPECT_EQ(ToFloat(half_sum[2]), 1 + 1.0f / 256);
}

}  // namespace
}  // namespace megatron::ops
