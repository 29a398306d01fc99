#include "megatron/optim/outer_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "glog/logging.h"

namespace megatron {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr int kMostInt8 = 127;
constexpr int kE3M0Magnitudes = 7;
// Scales of blocks of nothing that is a normal number, and of blocks that are not finite.
constexpr int kLeastExponent = -119, kNotFinite = -128;

// Returns the largest magnitude, or a NaN if an element is not finite.
float LargestOf(const float* values, int64_t count) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(values[i])) return kNaN;
    largest = std::max(largest, std::abs(values[i]));
  }
  return largest;
}

// Returns the exponent of the power of two that is nearest to a positive number.
int NearestExponent(float value) {
  int exponent = 0;
  const float fraction = std::frexp(value, &exponent);  // from 0.5 to 1, excluded
  return fraction < 0.75f ? exponent - 1 : exponent;
}

void EncodeInt8(const float* values, int64_t count, uint8_t* codes) {
  const float scale = LargestOf(values, count) / kMostInt8;
  std::memcpy(codes, &scale, sizeof(scale));
  int8_t* const out = reinterpret_cast<int8_t*>(codes + sizeof(scale));
  for (int64_t i = 0; i < count; ++i) {
    // The scale of very small numbers is rounded to so few bits that more than 127 may result.
    out[i] = scale > 0 ? static_cast<int8_t>(std::clamp(
                             static_cast<int>(std::lround(values[i] / scale)), -127, 127))
                       : int8_t{0};
  }
}

void DecodeInt8(const uint8_t* codes, int64_t count, float* values) {
  float scale = 0;
  std::memcpy(&scale, codes, sizeof(scale));
  const int8_t* const in = reinterpret_cast<const int8_t*>(codes + sizeof(scale));
  for (int64_t i = 0; i < count; ++i) values[i] = scale * static_cast<float>(in[i]);
}

uint8_t E3M0Code(float value, int exponent) {
  const float magnitude = std::abs(value);
  if (magnitude < std::ldexp(0.5f, exponent - kE3M0Magnitudes + 1)) return 0;
  const int from_top = std::max(0, exponent - NearestExponent(magnitude));
  const int code = std::max(1, kE3M0Magnitudes - from_top);
  return static_cast<uint8_t>(code | (value < 0 ? 8 : 0));
}

void EncodeE3M0(const float* values, int64_t count, uint8_t* codes) {
  const float largest = LargestOf(values, count);
  const int exponent = std::isnan(largest) ? kNotFinite
                       : largest == 0      ? kLeastExponent
                                      : std::clamp(NearestExponent(largest), kLeastExponent, 127);
  codes[0] = static_cast<uint8_t>(static_cast<int8_t>(exponent));
  uint8_t* const out = codes + 1;
  for (int64_t i = 0; i < count; i += 2) {
    const uint8_t low = exponent == kNotFinite ? 0 : E3M0Code(values[i], exponent);
    const uint8_t high =
        exponent == kNotFinite || i + 1 == count ? 0 : E3M0Code(values[i + 1], exponent);
    out[i / 2] = static_cast<uint8_t>(low | high << 4);
  }
}

void DecodeE3M0(const uint8_t* codes, int64_t count, float* values) {
  const int exponent = static_cast<int8_t>(codes[0]);
  for (int64_t i = 0; i < count; ++i) {
    const int code = codes[1 + i / 2] >> (i % 2 * 4) & 15;
    const int magnitude = code & 7;
    const float value = exponent == kNotFinite ? kNaN
                        : magnitude == 0       ? 0
                                         : std::ldexp(1.0f, exponent - kE3M0Magnitudes + magnitude);
    values[i] = (code & 8) != 0 ? -value : value;
  }
}

int64_t BytesOfBlock(OuterGradientType type, int64_t count) {
  return type == OuterGradientType::kInt8 ? static_cast<int64_t>(sizeof(float)) + count
                                          : 1 + (count + 1) / 2;
}

// Calls body(first element, number of elements, first byte) for each block.
template <typename Body>
void ForEachBlock(OuterGradientType type, int64_t elements, Body body) {
  const int64_t bytes = BytesOfBlock(type, kOuterBlock);
  for (int64_t begin = 0; begin < elements; begin += kOuterBlock)
    body(begin, std::min(kOuterBlock, elements - begin), begin / kOuterBlock * bytes);
}

}  // namespace

int64_t OuterCodeBytes(OuterGradientType type, int64_t elements) {
  CHECK(type != OuterGradientType::kFloat32);
  const int64_t rest = elements % kOuterBlock;
  return elements / kOuterBlock * BytesOfBlock(type, kOuterBlock) +
         (rest > 0 ? BytesOfBlock(type, rest) : 0);
}

void EncodeOuter(OuterGradientType type, const float* values, int64_t elements, uint8_t* codes) {
  ForEachBlock(type, elements, [&](int64_t begin, int64_t count, int64_t at) {
    (type == OuterGradientType::kInt8 ? EncodeInt8 : EncodeE3M0)(values + begin, count, codes + at);
  });
}

void DecodeOuter(OuterGradientType type, const uint8_t* codes, int64_t elements, float* values) {
  ForEachBlock(type, elements, [&](int64_t begin, int64_t count, int64_t at) {
    (type == OuterGradientType::kInt8 ? DecodeInt8 : DecodeE3M0)(codes + at, count, values + begin);
  });
}

}  // namespace megatron
