#include "tools/huggingface/mxfp4.h"

#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

// Two rows of one block each, which change places here.
HfTensor TwoRows() {
  HfTensor tensor;
  tensor.parameter_shape = {2, kMxfp4Block};
  tensor.rows = 2;
  tensor.columns = kMxfp4Block;
  tensor.row = [](int64_t r) { return 1 - r; };
  return tensor;
}

TEST(Mxfp4Test, EachFourBitsAreTimesThePowerOfTheirBlock) {
  // The first row counts from 0 to 15, twice; the second is 6 all through.
  std::string blocks;
  for (int i = 0; i < 16; ++i) {
    const int low = 2 * i % 16;
    blocks.push_back(static_cast<char>(low | (low + 1) << 4));
  }
  blocks += std::string(16, '\x77');
  const std::string scales = {static_cast<char>(128), static_cast<char>(124)};
  std::vector<float> out(64, -1);
  DequantizeMxfp4(TwoRows(), blocks, scales, Tensor(out.data(), DType::kFloat32, {2, 32}));
  EXPECT_EQ(std::vector<float>(out.begin(), out.begin() + 32), std::vector<float>(32, 0.75f));
  const std::vector<float> values = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  for (size_t i = 0; i < 32; ++i) EXPECT_EQ(out[32 + i], values[i % 16]) << i;
  EXPECT_TRUE(std::signbit(out[32 + 8]));
}

TEST(Mxfp4Test, AllOfThemAreExactInBf16) {
  std::string blocks(32, '\0');
  for (size_t i = 0; i < 32; ++i) blocks[i] = static_cast<char>(i * 37);
  const std::string scales = {static_cast<char>(1), static_cast<char>(250)};
  std::vector<float> wide(64);
  std::vector<BFloat16> narrow(64);
  DequantizeMxfp4(TwoRows(), blocks, scales, Tensor(wide.data(), DType::kFloat32, {2, 32}));
  DequantizeMxfp4(TwoRows(), blocks, scales, Tensor(narrow.data(), DType::kBFloat16, {2, 32}));
  for (size_t i = 0; i < 64; ++i) EXPECT_EQ(ToFloat(narrow[i]), wide[i]) << i;
}

}  // namespace
}  // namespace megatron
