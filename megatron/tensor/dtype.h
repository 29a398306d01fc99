// Element types of tensors. The 16-bit floats are storage: arithmetic happens in fp32, conversions
// round to nearest even.
#ifndef MEGATRON_TENSOR_DTYPE_H_
#define MEGATRON_TENSOR_DTYPE_H_

#include <cstdint>
#include <cstring>
#include <ostream>
#include <string>

namespace megatron {

// Values are written to files: never renumber.
enum class DType : uint8_t {
  kFloat32 = 0,
  kBFloat16 = 1,
  kFloat16 = 2,
  kInt32 = 3,
  kInt64 = 4,
  kUInt8 = 5,
  kUInt16 = 6
};

struct BFloat16 {
  uint16_t bits = 0;
};
struct Float16 {
  uint16_t bits = 0;
};

float ToFloat(BFloat16 value);
float ToFloat(Float16 value);
BFloat16 ToBFloat16(float value);
Float16 ToFloat16(float value);  // overflow gives infinity, as IEEE 754 says

int64_t SizeOf(DType dtype);
const char* Name(DType dtype);  // "fp32", "bf16", "fp16", "int32", "int64", "uint8", "uint16"
bool FromName(const std::string& name, DType* dtype);
std::ostream& operator<<(std::ostream& out, DType dtype);

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kFloat32;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::kBFloat16;
};
template <>
struct DTypeOf<Float16> {
  static constexpr DType value = DType::kFloat16;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kInt32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::kInt64;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::kUInt8;
};
template <>
struct DTypeOf<uint16_t> {
  static constexpr DType value = DType::kUInt16;
};

// Implementation details follow.

inline float ToFloat(BFloat16 value) {
  const uint32_t bits = uint32_t{value.bits} << 16;
  float out;
  std::memcpy(&out, &bits, sizeof(out));
  return out;
}

inline BFloat16 ToBFloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return {static_cast<uint16_t>((bits >> 16) | 0x40u)};  // NaN stays NaN
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

}  // namespace megatron

#endif  // MEGATRON_TENSOR_DTYPE_H_
