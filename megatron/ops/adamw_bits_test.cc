// The CPU's kernels against the definition of AdamW (adamw_element.h), bit for bit; and the
// rounding by chance of that definition.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/adamw_cases.h"
#include "megatron/ops/adamw_element.h"
#include "megatron/ops/adamw_step.h"
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
  AdamWOptions options;
  options.step = 7;
  for (const AdamWDTypes& dtypes : WithMomentsInBFloat16())
    ExpectTheDefinition(300'013, dtypes, options, {7, 300'011, 6e-4f, 0.1f});
}

TEST(AdamWBitsTest, MomentsInFloat8AreTheDefinitions) {
  AdamWOptions options;
  options.step = 7;
  for (const AdamWDTypes& dtypes : WithMomentsInFloat8())
    ExpectTheDefinition(300'013, dtypes, options, {7, 300'011, 6e-4f, 0.1f});
}

// Masters that are kept as weights and remainders are what they are as fp32.
TEST(AdamWBitsTest, RemaindersMakeTheDefinitionsMasters) {
  ThreadPool pool(2);
  AdamWOptions options;
  options.step = 7;
  std::vector<AdamWDTypes> all_dtypes = {{DType::kBFloat16}};
  for (const auto& some : {WithMomentsInBFloat16(), WithMomentsInFloat8()})
    all_dtypes.insert(all_dtypes.end(), some.begin(), some.end());
  for (const AdamWDTypes& dtypes : all_dtypes) {
    const OptimizerSegment segment = {7, 300'011, 6e-4f, 0.1f};
    AdamWCase want = MakeAdamWCase(300'013, dtypes, 1),
              got = WithRemainders(MakeAdamWCase(300'013, dtypes, 1));
    UpdateByElement(options, segment, &want);
    AdamWUpdate(Stream::Cpu(&pool), options, {segment}, got.grad, got.m, got.v, got.master,
                got.out);
    ExpectSameMasters(got, want);
    HostTensor joined({300'013}, DType::kFloat32);
    JoinMasters(Stream::Cpu(&pool), got.out, got.master, joined);
    ExpectSameBits(joined, want.master);
  }
}

// All numbers that bf16 cuts off between two neighbours, one of which is a power of two, and the
// largest numbers.
TEST(AdamWRoundingTest, WeightsAndRemaindersAreMasters) {
  for (const uint32_t high : {0x3f7fu, 0x3f80u, 0x3f81u, 0xbf81u, 0x0000u, 0x8000u, 0x7f7fu}) {
    for (uint32_t low = 0; low < 1 << 16; ++low) {
      const uint32_t bits = high << 16 | low;
      float master;
      std::memcpy(&master, &bits, sizeof(master));
      const uint16_t weight = WeightOfMaster(master), remainder = RemainderOfMaster(master);
      ASSERT_EQ(BitsOf(MasterOf(weight, remainder)), bits);
      ASSERT_EQ(weight, high + (low >= 0x8000));
    }
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

template <typename Format>
void ExpectCodesAreNumbers() {
  float last = -1;
  for (uint32_t code = 0; code <= Format::kLargest; ++code) {
    const float x = FromMoment8<Format>(static_cast<uint8_t>(code));
    EXPECT_GT(x, last);
    EXPECT_EQ(ToMoment8<Format>(x, 0), code);
    EXPECT_EQ(RoundToMoment8<Format>(x, 0), x);
    EXPECT_EQ(RoundToMoment8<Format>(x, 0xffff), x);
    if (Format::kSign != 0) {
      EXPECT_EQ(FromMoment8<Format>(static_cast<uint8_t>(code | Format::kSign)), -x);
      EXPECT_EQ(RoundToMoment8<Format>(-x, 0xffff), -x);
    }
    last = x;
  }
  EXPECT_EQ(RoundToMoment8<Format>(2 * last, 0xffff), last);
  EXPECT_EQ(RoundToMoment8<Format>(HUGE_VALF, 0), last);
  EXPECT_EQ(RoundToMoment8<Format>(std::nanf(""), 0), last);
}

TEST(AdamWRoundingTest, EachCodeOfAnEightBitFloatIsANumberThatStays) {
  ExpectCodesAreNumbers<FirstMoment8>();
  ExpectCodesAreNumbers<SecondMoment8>();
  EXPECT_EQ(FromMoment8<FirstMoment8>(1), 0x1p-28f);
  EXPECT_EQ(FromMoment8<FirstMoment8>(4), 0x1p-26f);
  EXPECT_EQ(FromMoment8<FirstMoment8>(0x7f), 28);
  EXPECT_EQ(FromMoment8<SecondMoment8>(1), 0x1p-56f);
  EXPECT_EQ(FromMoment8<SecondMoment8>(4), 0x1p-54f);
  EXPECT_EQ(FromMoment8<SecondMoment8>(0xff), 448);
}

template <typename Format>
double MeanOfAllRoundings(float x) {
  double sum = 0;
  for (uint32_t random = 0; random < 1 << 16; ++random) sum += RoundToMoment8<Format>(x, random);
  return sum / (1 << 16);
}

// Numbers far below the smallest one too, which become 0 or that one. Chance has 16 bits for a
// distance of up to a quarter of the number, so that the mean is right to 2^-19 of it.
TEST(AdamWRoundingTest, TheMeanOfEightBitFloatsIsTheNumber) {
  for (const float x : {1.1f, -3.7e-5f, 15.9f, -2e-8f, 1e-9f, 1e-11f}) {
    EXPECT_NEAR(MeanOfAllRoundings<FirstMoment8>(x), x, std::abs(x) * 0x1p-19 + 1e-14) << x;
  }
  for (const float x : {1.1f, 3.7e-5f, 255.0f, 1e-12f, 1e-16f, 1e-17f}) {
    EXPECT_NEAR(MeanOfAllRoundings<SecondMoment8>(x), x, x * 0x1p-19 + 1e-22) << x;
  }
}

// A second moment far from its gradients' squares comes near them, as it does in fp32, although
// each step changes it by less than half of what the type can tell apart.
void ExpectASecondMomentFollows(DType dtype, double error_of_element, double error_of_mean) {
  ThreadPool pool(2);
  constexpr int64_t kCount = 4096;
  AdamWOptions options;
  const OptimizerSegment all = {0, kCount, 1e-4f, 0};
  AdamWCase narrow = MakeAdamWCase(kCount, {DType::kBFloat16, dtype, dtype}, 1),
            full = MakeAdamWCase(kCount, {DType::kBFloat16}, 1);
  for (AdamWCase* const moments : {&narrow, &full}) {
    for (int64_t i = 0; i < kCount; ++i) {
      moments->grad.Set(i, 1);
      SetMoment<FirstMoment8>(1, i, &moments->m);
      SetMoment<SecondMoment8>(moments == &full ? GetMoment<SecondMoment8>(narrow.v, i) : 1.3f, i,
                               &moments->v);
      moments->master.Set(i, 0.01 * static_cast<double>(i % 100));
    }
  }
  const double first = full.v.Get(0);
  for (options.step = 1; options.step <= 1000; ++options.step) {
    for (AdamWCase* const at : {&narrow, &full})
      AdamWUpdate(Stream::Cpu(&pool), options, {all}, at->grad, at->m, at->v, at->master, at->out);
  }
  double mean = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    const double v = GetMoment<SecondMoment8>(narrow.v, i);
    mean += v / kCount;
    EXPECT_NEAR(v, full.v.Get(i), error_of_element);
  }
  EXPECT_NEAR(full.v.Get(0), 1 + (first - 1) * std::pow(0.999, 1000), 1e-3);
  EXPECT_NEAR(mean, full.v.Get(0), error_of_mean);
}

TEST(AdamWRoundingTest, ASecondMomentInBFloat16Follows) {
  ExpectASecondMomentFollows(DType::kBFloat16, 0.15, 3e-3);
}

TEST(AdamWRoundingTest, ASecondMomentInFloat8Follows) {
  ExpectASecondMomentFollows(DType::kUInt8, 2, 0.03);
}

// Root mean squares of what moments in fewer bytes, and the step that they make, are off from those
// in fp32, relative to these.
struct MomentErrors {
  double m = 0, v = 0, step = 0;
};

MomentErrors ErrorsOf(MomentType type, double beta2, float scale) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  constexpr int kElements = 2000;
  AdamWOptions options;
  options.beta2 = beta2;
  const OptimizerSegment segment = {0, 1, 1e-3f, 0};
  std::vector<AdamWStep> steps;
  for (options.step = 1; options.step <= std::lround(6 / (1 - beta2)); ++options.step)
    steps.push_back(StepOf(options, segment));
  MomentErrors errors;
  double m_squares = 0, step_squares = 0;
  for (int i = 0; i < kElements; ++i) {
    float m = 0, v = 0, narrow_m = 0, narrow_v = 0, step = 0, narrow_step = 0;
    const float w = 1e-4f * static_cast<float>(i);
    for (const AdamWStep& at : steps) {
      const float grad = scale * normal(random);
      step = w - AdamWElement(at, grad, w, &m, &v);
      narrow_step = w - AdamWElement(at, {type, type}, grad, w, &narrow_m, &narrow_v);
    }
    errors.m += std::pow(narrow_m - m, 2);
    m_squares += std::pow(m, 2);
    errors.v += std::pow(narrow_v / v - 1, 2) / kElements;
    errors.step += std::pow(narrow_step - step, 2);
    step_squares += std::pow(step, 2);
  }
  return {std::sqrt(errors.m / m_squares), std::sqrt(errors.v),
          std::sqrt(errors.step / step_squares)};
}

// The table of docs/numerics.md. What neighbours in bf16 differ by, relative to them, depends on
// where second moments lie between two powers of two: 1 is one itself, 1e-12 lies just above one.
TEST(AdamWRoundingTest, ErrorsOfMomentsThatFollowNormalGradients) {
  struct Case {
    float scale;
    double v_in_bf16, step_in_bf16;  // with a beta2 of 0.999
  };
  for (const Case& c :
       {Case{1, 0.042, 0.021}, Case{1e-4f, 0.044, 0.022}, Case{1e-6f, 0.049, 0.025}}) {
    for (const double beta2 : {0.95, 0.999}) {
      SCOPED_TRACE(testing::Message() << "scale " << c.scale << ", beta2 " << beta2);
      const bool fast = beta2 == 0.95;
      const MomentErrors half = ErrorsOf(MomentType::kBFloat16, beta2, c.scale);
      EXPECT_NEAR(half.m, 0.005, 0.001);
      EXPECT_NEAR(half.v, fast ? 0.008 : c.v_in_bf16, 0.002);
      EXPECT_NEAR(half.step, fast ? 0.006 : c.step_in_bf16, 0.002);
      const MomentErrors codes = ErrorsOf(MomentType::kFloat8, beta2, c.scale);
      EXPECT_NEAR(codes.m, 0.17, 0.02);
      EXPECT_NEAR(codes.v, fast ? 0.23 : 0.30, 0.02);
      EXPECT_NEAR(codes.step, fast ? 0.19 : 0.23, 0.02);
    }
  }
}

}  // namespace
}  // namespace megatron::ops
