#include "tools/huggingface/mxfp4.h"

#include <cmath>

#include "glog/logging.h"

namespace megatron {
namespace {

constexpr float kValues[] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                             -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

float FromFloat(float value, float) { return value; }
BFloat16 FromFloat(float value, BFloat16) { return ToBFloat16(value); }
Float16 FromFloat(float value, Float16) { return ToFloat16(value); }

template <typename T>
void Dequantize(const HfTensor& tensor, const uint8_t* blocks, const uint8_t* scales, T* out) {
  constexpr int kBias = 127;
  const int64_t per_row = tensor.columns / kMxfp4Block;
  for (int64_t r = 0; r < tensor.rows; ++r) {
    T* to = out + tensor.row(r) * tensor.columns;
    for (int64_t b = 0; b < per_row; ++b) {
      const int exponent = int{scales[r * per_row + b]} - kBias;
      const uint8_t* const bytes = blocks + (r * per_row + b) * (kMxfp4Block / 2);
      for (int64_t i = 0; i < kMxfp4Block / 2; ++i) {
        *to++ = FromFloat(std::ldexp(kValues[bytes[i] & 15], exponent), T());
        *to++ = FromFloat(std::ldexp(kValues[bytes[i] >> 4], exponent), T());
      }
    }
  }
}

}  // namespace

void DequantizeMxfp4(const HfTensor& tensor, absl::string_view blocks, absl::string_view scales,
                     const Tensor& out) {
  const auto* const b = reinterpret_cast<const uint8_t*>(blocks.data());
  const auto* const s = reinterpret_cast<const uint8_t*>(scales.data());
  switch (out.dtype()) {
    case DType::kFloat32:
      return Dequantize(tensor, b, s, out.data<float>());
    case DType::kBFloat16:
      return Dequantize(tensor, b, s, out.data<BFloat16>());
    case DType::kFloat16:
      return Dequantize(tensor, b, s, out.data<Float16>());
    default:
      LOG(FATAL) << "weights of a type that is not floating";
  }
}

}  // namespace megatron
