#include "megatron/optim/outer/outer_codec.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "glog/logging.h"
#include "megatron/ops/compression/group_codes.h"

namespace megatron {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
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

constexpr int64_t BytesOfE3M0(int64_t count) { return 1 + (count + 1) / 2; }

// Calls body(first element, number of elements, first byte) for each block.
template <typename Body>
void ForEachBlock(int64_t elements, Body body) {
  for (int64_t begin = 0; begin < elements; begin += kE3M0Block)
    body(begin, std::min(kE3M0Block, elements - begin),
         begin / kE3M0Block * BytesOfE3M0(kE3M0Block));
}

}  // namespace

int64_t OuterCodeBytes(OuterGradientType type, int64_t elements) {
  CHECK(type != OuterGradientType::kFloat32);
  if (type == OuterGradientType::kInt8) return ops::GroupMessageBytes(ops::CodeBits::k8, elements);
  const int64_t rest = elements % kE3M0Block;
  return elements / kE3M0Block * BytesOfE3M0(kE3M0Block) + (rest > 0 ? BytesOfE3M0(rest) : 0);
}

void EncodeOuter(const Stream& stream, OuterGradientType type, const Tensor& elements_N,
                 const Tensor& codes_M) {
  if (type == OuterGradientType::kInt8)
    return ops::EncodeGroups(stream, ops::CodeBits::k8, elements_N, codes_M);
  ForEachBlock(elements_N.numel(), [&](int64_t begin, int64_t count, int64_t at) {
    EncodeE3M0(elements_N.data<float>() + begin, count, codes_M.data<uint8_t>() + at);
  });
}

void DecodeOuter(const Stream& stream, OuterGradientType type, const Tensor& codes_M,
                 const Tensor& elements_N) {
  if (type == OuterGradientType::kInt8)
    return ops::DecodeGroups(stream, ops::CodeBits::k8, codes_M, elements_N);
  ForEachBlock(elements_N.numel(), [&](int64_t begin, int64_t count, int64_t at) {
    DecodeE3M0(codes_M.data<uint8_t>() + at, count, elements_N.data<float>() + begin);
  });
}

}  // namespace megatron
