#include "tools/huggingface/block_float8.h"

#include <cstring>

#include "glog/logging.h"
#include "megatron/tensor/float8.h"

namespace megatron {
namespace {

constexpr int64_t kSide = 128;

int64_t Blocks(int64_t count) { return (count + kSide - 1) / kSide; }

void Set(float value, float* out) { *out = value; }
void Set(float value, BFloat16* out) { *out = ToBFloat16(value); }
void Set(float value, Float16* out) { *out = ToFloat16(value); }

template <typename T>
void Dequantize(const HfTensor& tensor, absl::string_view codes, absl::string_view scales, T* out) {
  float values[256];
  for (int code = 0; code < 256; ++code)
    values[code] = Float8ToFloat(Float8Format::kE4M3, static_cast<uint8_t>(code));
  const int64_t columns = tensor.columns;
  for (int64_t r = 0; r < tensor.rows; ++r) {
    T* const to = out + tensor.row(r) * columns;
    for (int64_t c = 0; c < columns; ++c) {
      // The bytes may stand at any address.
      const int64_t block = r / kSide * Blocks(columns) + c / kSide;
      float scale;
      std::memcpy(&scale, scales.data() + block * static_cast<int64_t>(sizeof(scale)),
                  sizeof(scale));
      const auto code = static_cast<uint8_t>(codes[static_cast<size_t>(r * columns + c)]);
      Set(values[code] * scale, to + c);
    }
  }
}

}  // namespace

std::vector<int64_t> Float8ScalesShape(const HfTensor& tensor) {
  return {Blocks(tensor.rows), Blocks(tensor.columns)};
}

void DequantizeFloat8Blocks(const HfTensor& tensor, absl::string_view codes,
                            absl::string_view scales, const Tensor& out) {
  switch (out.dtype()) {
    case DType::kFloat32:
      return Dequantize(tensor, codes, scales, out.data<float>());
    case DType::kBFloat16:
      return Dequantize(tensor, codes, scales, out.data<BFloat16>());
    case DType::kFloat16:
      return Dequantize(tensor, codes, scales, out.data<Float16>());
    default:
      LOG(FATAL) << "weights of a type that is not floating";
  }
}

}  // namespace megatron
