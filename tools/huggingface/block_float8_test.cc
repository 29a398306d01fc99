#include "tools/huggingface/block_float8.h"

#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/tensor/float8.h"

namespace megatron {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kRows = 130, kColumns = 300;

// Its rows stand in reverse order here.
HfTensor Reversed() {
  HfTensor tensor;
  tensor.parameter_shape = {kRows, kColumns};
  tensor.rows = kRows;
  tensor.columns = kColumns;
  tensor.row = [](int64_t r) { return kRows - 1 - r; };
  return tensor;
}

// Codes without NaN.
std::string Codes() {
  std::string codes;
  for (int64_t i = 0; i < kRows * kColumns; ++i) {
    const auto code = static_cast<uint8_t>(i * 7 % 256);
    codes.push_back(static_cast<char>((code & 0x7f) == 0x7f ? 0 : code));
  }
  return codes;
}

std::string Bytes(const std::vector<float>& values) {
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(&bytes[0], values.data(), bytes.size());
  return bytes;
}

TEST(BlockFloat8Test, EachCodeIsTimesTheScaleOfItsBlock) {
  EXPECT_THAT(Float8ScalesShape(Reversed()), ElementsAre(2, 3));
  const std::vector<float> scales = {1, 0.5f, 3e-3f, -2, 0, 1.7f};
  const std::string codes = Codes();
  std::vector<float> out(static_cast<size_t>(kRows * kColumns));
  DequantizeFloat8Blocks(Reversed(), codes, Bytes(scales),
                         Tensor(out.data(), DType::kFloat32, {kRows, kColumns}));
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t c = 0; c < kColumns; ++c) {
      const auto code = static_cast<uint8_t>(codes[static_cast<size_t>(r * kColumns + c)]);
      const float scale = scales[static_cast<size_t>(r / 128 * 3 + c / 128)];
      ASSERT_EQ(out[static_cast<size_t>((kRows - 1 - r) * kColumns + c)],
                Float8ToFloat(Float8Format::kE4M3, code) * scale)
          << r << " " << c;
    }
  }
}

TEST(BlockFloat8Test, ProductsAreRoundedOnce) {
  const std::string scales = Bytes({0.013f, 0.7f, 1.1f, 5, 0.3f, 1e-4f}), codes = Codes();
  std::vector<float> wide(static_cast<size_t>(kRows * kColumns));
  std::vector<BFloat16> narrow(wide.size());
  const Shape shape = {kRows, kColumns};
  DequantizeFloat8Blocks(Reversed(), codes, scales, Tensor(wide.data(), DType::kFloat32, shape));
  DequantizeFloat8Blocks(Reversed(), codes, scales, Tensor(narrow.data(), DType::kBFloat16, shape));
  for (size_t i = 0; i < wide.size(); ++i)
    ASSERT_EQ(ToFloat(narrow[i]), ToFloat(ToBFloat16(wide[i]))) << i;
}

}  // namespace
}  // namespace megatron
