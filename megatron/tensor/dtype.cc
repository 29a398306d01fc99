#include "megatron/tensor/dtype.h"

#include "glog/logging.h"

namespace megatron {
namespace {

struct Info {
  DType dtype;
  int64_t size;
  const char* name;
};
constexpr Info kInfos[] = {{DType::kFloat32, 4, "fp32"}, {DType::kBFloat16, 2, "bf16"},
                           {DType::kFloat16, 2, "fp16"}, {DType::kInt32, 4, "int32"},
                           {DType::kInt64, 8, "int64"},  {DType::kUInt8, 1, "uint8"},
                           {DType::kUInt16, 2, "uint16"}};

const Info& InfoOf(DType dtype) {
  const size_t index = static_cast<size_t>(dtype);
  CHECK_LT(index, sizeof(kInfos) / sizeof(kInfos[0]));
  return kInfos[index];
}

}  // namespace

int64_t SizeOf(DType dtype) { return InfoOf(dtype).size; }
const char* Name(DType dtype) { return InfoOf(dtype).name; }

bool FromName(const std::string& name, DType* dtype) {
  for (const Info& info : kInfos) {
    if (name != info.name) continue;
    *dtype = info.dtype;
    return true;
  }
  return false;
}

std::ostream& operator<<(std::ostream& out, DType dtype) { return out << Name(dtype); }

float ToFloat(Float16 value) {
  const uint32_t sign = uint32_t{value.bits & 0x8000u} << 16;
  uint32_t exponent = (value.bits >> 10) & 0x1fu;
  uint32_t mantissa = value.bits & 0x3ffu;
  uint32_t bits;
  if (exponent == 0x1f) {
    bits = sign | 0x7f800000u | (mantissa << 13);
  } else if (exponent == 0 && mantissa == 0) {
    bits = sign;
  } else {
    if (exponent == 0) {  // subnormal: normalize
      exponent = 1;
      while ((mantissa & 0x400u) == 0) {
        mantissa <<= 1;
        --exponent;
      }
      mantissa &= 0x3ffu;
    }
    bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
  }
  float out;
  std::memcpy(&out, &bits, sizeof(out));
  return out;
}

Float16 ToFloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u)};
  if (bits >= 0x477ff000u)
    return {static_cast<uint16_t>(sign | 0x7c00u)};  // rounds past the largest, 65504
  if (bits < 0x38800000u) {  // subnormal result: let the adder of fp32 round at 2^-24
    float magnitude;
    std::memcpy(&magnitude, &bits, sizeof(bits));
    magnitude += 0.5f;
    std::memcpy(&bits, &magnitude, sizeof(bits));
    return {static_cast<uint16_t>(sign | (bits - 0x3f000000u))};
  }
  bits += 0xfffu + ((bits >> 13) & 1u);
  return {static_cast<uint16_t>(sign | ((bits - 0x38000000u) >> 13))};
}

}  // namespace megatron
