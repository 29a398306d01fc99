// Floating-point numbers of 8 bits, for the matrix products of FP8 training: their codes, and the
// scale that a tensor is multiplied by to lie among them.
//
// A code is a sign, an exponent and a mantissa; below the smallest normal numbers there are
// subnormal ones. E4M3 has no infinity. A tensor of codes has DType::kUInt8 and means nothing
// without its format and scale: so no other op takes it for numbers. (P. Micikevicius et al., "FP8
// Formats for Deep Learning", arXiv 2209.05433; E4M3 is what others call e4m3fn.)
#ifndef MEGATRON_TENSOR_FLOAT8_H_
#define MEGATRON_TENSOR_FLOAT8_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "megatron/tensor/float8_format.h"

namespace megatron {

constexpr float Float8Max(Float8Format format) {
  return format == Float8Format::kE4M3 ? 448.0f : 57344.0f;
}

// Converts a code, exactly.
float Float8ToFloat(Float8Format format, uint8_t code);

// Rounds to nearest even; numbers beyond the largest become the largest. What is not finite becomes
// NaN, so that it shows in whatever the code is multiplied with.
uint8_t FloatToFloat8(Float8Format format, float value);

// The scale that takes a tensor whose largest magnitude is `amax` to the format's largest number.
// It is 1 where amax is 0 or not finite, and never infinite.
float Float8Scale(Float8Format format, float amax);

// The largest power of two that is not above `scale`, a positive normal number.
float Float8PowerOfTwoBelow(float scale);

// Implementation details follow.

namespace float8_internal {

constexpr int MantissaBits(Float8Format format) { return format == Float8Format::kE4M3 ? 3 : 2; }
constexpr int Bias(Float8Format format) { return format == Float8Format::kE4M3 ? 7 : 15; }

inline uint32_t Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
inline float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
// 2^exponent, of a normal number.
inline float PowerOfTwo(int exponent) {
  return FromBits(static_cast<uint32_t>(127 + exponent) << 23);
}

}  // namespace float8_internal

inline uint8_t FloatToFloat8(Float8Format format, float value) {
  using float8_internal::Bits;
  using float8_internal::PowerOfTwo;
  const int mantissa = float8_internal::MantissaBits(format), bias = float8_internal::Bias(format);
  const uint32_t sign = Bits(value) >> 31 << 7;
  uint32_t magnitude = Bits(value) & 0x7fffffffu;
  if (magnitude >= 0x7f800000u) return 0x7f;
  const uint32_t largest = Bits(Float8Max(format));
  if (magnitude > largest) magnitude = largest;
  if (magnitude < Bits(PowerOfTwo(1 - bias))) {  // let the adder of fp32 round to whole steps
    const float steps = PowerOfTwo(24 - bias - mantissa);
    const uint32_t sum = Bits(float8_internal::FromBits(magnitude) + steps);
    return static_cast<uint8_t>(sign | (sum - Bits(steps)));
  }
  const int dropped = 23 - mantissa;
  magnitude += (1u << (dropped - 1)) - 1 + ((magnitude >> dropped) & 1u);
  return static_cast<uint8_t>(
      sign | ((magnitude >> dropped) - (static_cast<uint32_t>(127 - bias) << mantissa)));
}

inline float Float8Scale(Float8Format format, float amax) {
  if (!(amax > 0) || !std::isfinite(amax)) return 1;
  const float scale = Float8Max(format) / amax;
  return std::isfinite(scale) ? scale : std::numeric_limits<float>::max();
}

inline float Float8PowerOfTwoBelow(float scale) {
  return float8_internal::FromBits(float8_internal::Bits(scale) & 0xff800000u);
}

}  // namespace megatron

#endif  // MEGATRON_TENSOR_FLOAT8_H_
