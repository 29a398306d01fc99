#include "megatron/base/philox.h"

#include <cmath>

namespace megatron {
namespace {

// Returns ln(x) for x in (0, 1], by the series of atanh on the mantissa. The results of libm's logf
// differ between versions; those of this function do not.
float Log(float x) {
  int exponent;
  float mantissa = std::frexp(x, &exponent);  // exact: [0.5, 1)
  if (mantissa < 0.70710678f) {
    mantissa *= 2.0f;
    --exponent;
  }
  const float z = (mantissa - 1.0f) / (mantissa + 1.0f);
  const float z2 = z * z;
  float series = 1.0f / 11.0f;
  for (float divisor : {9.0f, 7.0f, 5.0f, 3.0f, 1.0f}) series = series * z2 + 1.0f / divisor;
  return 2.0f * z * series + static_cast<float>(exponent) * 0.69314718f;
}

// Computes sin and cos of 2 pi t for t in (0, 1]: the octant is found exactly, then Taylor's series
// is used on |angle| <= pi / 4.
void SinCosTurns(float t, float* sine, float* cosine) {
  const float quarter = std::floor(t * 4.0f + 0.5f);
  const float angle = (t - quarter * 0.25f) * 6.2831853f;
  const float a2 = angle * angle;
  const float s =
      angle *
      (1.0f + a2 * (-1.0f / 6 + a2 * (1.0f / 120 + a2 * (-1.0f / 5040 + a2 * (1.0f / 362880)))));
  const float c = 1.0f + a2 * (-0.5f + a2 * (1.0f / 24 + a2 * (-1.0f / 720 + a2 * (1.0f / 40320))));
  switch (static_cast<int>(quarter) & 3) {
    case 0:
      *sine = s;
      *cosine = c;
      break;
    case 1:
      *sine = c;
      *cosine = -s;
      break;
    case 2:
      *sine = -s;
      *cosine = -c;
      break;
    default:
      *sine = -c;
      *cosine = s;
      break;
  }
}

}  // namespace

void BoxMuller(uint32_t first, uint32_t second, float* x, float* y) {
  const float radius =
      std::sqrt(-2.0f * Log(UniformOpenZero(first)));  // sqrt is correctly rounded everywhere
  float sine, cosine;
  SinCosTurns(UniformOpenZero(second), &sine, &cosine);
  *x = radius * cosine;
  *y = radius * sine;
}

void FillNormal(PhiloxKey key, int64_t begin, int64_t count, float* out) {
  for (int64_t i = begin; i < begin + count;) {
    const uint64_t block = static_cast<uint64_t>(i) / 4;
    const PhiloxBlock words =
        Philox(key, {{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, 0}});
    float normal[4];
    BoxMuller(words.word[0], words.word[1], &normal[0], &normal[1]);
    BoxMuller(words.word[2], words.word[3], &normal[2], &normal[3]);
    for (int lane = static_cast<int>(i % 4); lane < 4 && i < begin + count; ++lane, ++i)
      out[i - begin] = normal[lane];
  }
}

}  // namespace megatron
