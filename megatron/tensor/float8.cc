#include "megatron/tensor/float8.h"

namespace megatron {

float Float8ToFloat(Float8Format format, uint8_t code) {
  using float8_internal::PowerOfTwo;
  const int mantissa = float8_internal::MantissaBits(format), bias = float8_internal::Bias(format);
  const float sign = (code & 0x80) != 0 ? -1.0f : 1.0f;
  const int magnitude = code & 0x7f, fraction = magnitude & ((1 << mantissa) - 1);
  const int exponent = magnitude >> mantissa;
  if (format == Float8Format::kE4M3 && magnitude == 0x7f) return std::nanf("");
  if (format == Float8Format::kE5M2 && exponent == 31) {
    return fraction == 0 ? sign * std::numeric_limits<float>::infinity() : std::nanf("");
  }
  if (exponent == 0) return sign * static_cast<float>(fraction) * PowerOfTwo(1 - bias - mantissa);
  return sign * static_cast<float>((1 << mantissa) + fraction) *
         PowerOfTwo(exponent - bias - mantissa);
}

}  // namespace megatron
