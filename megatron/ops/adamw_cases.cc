#include "megatron/ops/adamw_cases.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

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

AdamWCase MakeAdamWCase(int64_t count, const AdamWDTypes& dtypes, uint32_t seed) {
  AdamWCase made = {HostTensor({count}, DType::kFloat32), HostTensor({count}, dtypes.m),
                    HostTensor({count}, dtypes.v), HostTensor({count}, DType::kFloat32),
                    HostTensor({count}, dtypes.out)};
  std::mt19937 random(seed);
  int64_t operand = 0, period = 1;
  const int64_t specials = static_cast<int64_t>(kSpecials.size());
  const int64_t combinations = specials * specials * specials * specials;
  for (HostTensor* const tensor : {&made.grad, &made.m, &made.v, &made.master}) {
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t bits = random();
      if (i < combinations) {
        tensor->Set(i, kSpecials[i / period % specials]);
      } else if (i % 2 == 0) {
        tensor->Set(i, FromBits(bits));
      } else {  // a magnitude from 2^-36 to 2^-4 of either sign; second moments are positive
        const uint32_t exponent = 91 + (bits >> 23) % 32;
        const uint32_t sign = operand == 2 ? 0 : bits & 0x80000000u;
        tensor->Set(i, FromBits(sign | exponent << 23 | (random() & 0x7fffffu)));
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
  const auto is_bf16 = [](const HostTensor& tensor) {
    return tensor.tensor().dtype() == DType::kBFloat16;
  };
  const AdamWRounding rounding = {is_bf16(elements->m), is_bf16(elements->v)};
  const auto get = [](const HostTensor& tensor, int64_t i) {
    return static_cast<float>(tensor.Get(i));
  };
  for (int64_t i = segment.begin; i < segment.end; ++i) {
    float m = get(elements->m, i), v = get(elements->v, i);
    const float w =
        AdamWElement(step, rounding, get(elements->grad, i), get(elements->master, i), &m, &v);
    elements->m.Set(i, m);
    elements->v.Set(i, v);
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

}  // namespace megatron::ops
