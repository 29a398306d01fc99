#include "megatron/ops/adamw_cases.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>

#include "gtest/gtest.h"
#include "megatron/ops/adamw_step.h"

namespace megatron::ops {
namespace {

using Limits = std::numeric_limits<float>;
const std::vector<float> kSpecials = {0.0f,
                                      -0.0f,
                                      Limits::denorm_min(),
                                      -1e-40f,
                                      Limits::min(),
                                      1e-20f,
                                      -1e-8f,
                                      1.0f,
                                      -3.0f,
                                      1e20f,
                                      Limits::max(),
                                      Limits::lowest(),
                                      Limits::infinity(),
                                      -Limits::infinity(),
                                      Limits::quiet_NaN()};

float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

bool IsSame(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

}  // namespace

template <typename Format>
float GetMoment(const HostTensor& moment, int64_t i) {
  if (moment.tensor().dtype() != DType::kUInt8) return static_cast<float>(moment.Get(i));
  return FromMoment8<Format>(moment.tensor().data<uint8_t>()[i]);
}

template <typename Format>
void SetMoment(float x, int64_t i, HostTensor* moment) {
  moment->Set(i, moment->tensor().dtype() == DType::kUInt8 ? ToMoment8<Format>(x, 0) : x);
}

template float GetMoment<FirstMoment8>(const HostTensor& moment, int64_t i);
template float GetMoment<SecondMoment8>(const HostTensor& moment, int64_t i);
template void SetMoment<FirstMoment8>(float x, int64_t i, HostTensor* moment);
template void SetMoment<SecondMoment8>(float x, int64_t i, HostTensor* moment);

std::vector<AdamWDTypes> WithMomentsInBFloat16() {
  constexpr DType kFloat = DType::kFloat32, kHalf = DType::kBFloat16;
  return {{kHalf, kHalf, kHalf}, {kHalf, kHalf, kFloat}, {kFloat, kFloat, kHalf}};
}

std::vector<AdamWDTypes> WithMomentsInFloat8() {
  constexpr DType kFloat = DType::kFloat32, kHalf = DType::kBFloat16, kCodes = DType::kUInt8;
  return {{kHalf, kCodes, kCodes},
          {kHalf, kCodes, kFloat},
          {kFloat, kFloat, kCodes},
          {kHalf, kCodes, kHalf},
          {kHalf, kHalf, kCodes}};
}

AdamWCase MakeAdamWCase(int64_t count, const AdamWDTypes& dtypes, uint32_t seed) {
  AdamWCase made = {HostTensor({count}, DType::kFloat32), HostTensor({count}, dtypes.m),
                    HostTensor({count}, dtypes.v), HostTensor({count}, DType::kFloat32),
                    HostTensor({count}, dtypes.out)};
  std::mt19937 random(seed);
  int64_t operand = 0, period = 1;
  const int64_t specials = static_cast<int64_t>(kSpecials.size());
  const int64_t combinations = specials * specials * specials * specials;
  for (HostTensor* const tensor : {&made.grad, &made.m, &made.v, &made.master}) {
    const auto set = [&](int64_t i, float x) {
      if (tensor == &made.m) return SetMoment<FirstMoment8>(x, i, tensor);
      if (tensor == &made.v) return SetMoment<SecondMoment8>(x, i, tensor);
      tensor->Set(i, x);
    };
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t bits = random();
      if (i < combinations) {
        set(i, kSpecials[i / period % specials]);
      } else if (i % 2 == 0) {
        set(i, FromBits(bits));
      } else {  // a magnitude from 2^-36 to 2^-4 of either sign; second moments are positive
        const uint32_t exponent = 91 + (bits >> 23) % 32;
        const uint32_t sign = operand == 2 ? 0 : bits & 0x80000000u;
        set(i, FromBits(sign | exponent << 23 | (random() & 0x7fffffu)));
      }
    }
    period *= specials;
    ++operand;
  }
  return made;
}

void UpdateByElement(const AdamWOptions& options, const OptimizerSegment& segment,
                     AdamWCase* elements) {
  const AdamWStep step = StepOf(options, segment);
  const AdamWMoments moments = {MomentTypeOf(elements->m.tensor().dtype()),
                                MomentTypeOf(elements->v.tensor().dtype())};
  for (int64_t i = segment.begin; i < segment.end; ++i) {
    float m = GetMoment<FirstMoment8>(elements->m, i), v = GetMoment<SecondMoment8>(elements->v, i);
    const float grad = static_cast<float>(elements->grad.Get(i));
    const float w =
        AdamWElement(step, moments, grad, static_cast<float>(elements->master.Get(i)), &m, &v);
    SetMoment<FirstMoment8>(m, i, &elements->m);
    SetMoment<SecondMoment8>(v, i, &elements->v);
    elements->master.Set(i, w);
    elements->out.Set(i, w);
  }
}

void ExpectSameBits(const HostTensor& got, const HostTensor& want) {
  ASSERT_EQ(got.numel(), want.numel());
  int64_t different = 0;
  for (int64_t i = 0; i < got.numel(); ++i) {
    const double a = got.Get(i), b = want.Get(i);
    if (IsSame(a, b)) continue;
    if (different++ < 3) ADD_FAILURE() << "element " << i << " is " << a << ", not " << b;
  }
  EXPECT_EQ(different, 0) << "of " << got.numel();
}

AdamWCase WithRemainders(AdamWCase whole) {
  const int64_t count = whole.master.numel();
  HostTensor remainders({count}, DType::kUInt16), weights({count}, DType::kBFloat16);
  for (int64_t i = 0; i < count; ++i) {
    const float master = whole.master.tensor().data<float>()[i];
    remainders.tensor().data<uint16_t>()[i] = RemainderOfMaster(master);
    weights.tensor().data<BFloat16>()[i].bits = WeightOfMaster(master);
  }
  whole.master = std::move(remainders);
  whole.out = std::move(weights);
  return whole;
}

void ExpectSameMasters(const AdamWCase& with_remainders, const AdamWCase& want) {
  ExpectSameBits(with_remainders.m, want.m);
  ExpectSameBits(with_remainders.v, want.v);
  const BFloat16* const weights = with_remainders.out.tensor().data<BFloat16>();
  const uint16_t* const remainders = with_remainders.master.tensor().data<uint16_t>();
  const float* const masters = want.master.tensor().data<float>();
  int64_t differences = 0;
  for (int64_t i = 0; i < want.master.tensor().numel(); ++i) {
    if (std::isnan(masters[i])) continue;
    differences += weights[i].bits != WeightOfMaster(masters[i]) ||
                   remainders[i] != RemainderOfMaster(masters[i]);
  }
  EXPECT_EQ(differences, 0);
}

}  // namespace megatron::ops
