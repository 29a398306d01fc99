#include "megatron/ops/float8/flat_blocks.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/float8/float8_tensor.h"
#include "megatron/ops/float8/quantize_blocks.h"
#include "megatron/ops/host_tensor.h"
#include "megatron/tensor/float8.h"

namespace megatron::ops {
namespace {

constexpr Float8Format kE4M3 = Float8Format::kE4M3;
constexpr DType kF32 = DType::kFloat32;

struct Sizes {
  int64_t rows, columns;
};
const Sizes kSizes[] = {{1, 16}, {128, 128}, {130, 272}, {37, 400}, {300, 144}};

// Blocks differ by orders of magnitude; the first rows are zeros where there are many.
HostTensor Uneven(const Sizes& size, DType dtype, uint32_t seed) {
  HostTensor x = HostTensor::Normal({size.rows * size.columns}, dtype, seed);
  for (int64_t i = 0; i < x.numel(); ++i) {
    const int64_t r = i / size.columns, c = i % size.columns;
    const double factor = size.rows > 256 && r < 128 ? 0 : std::pow(2.0, r / 128 * 3 - c / 128 * 5);
    x.Set(i, x.Get(i) * factor);
  }
  return x;
}

// What products read of a matrix.
struct Quantized {
  std::vector<char> codes, transposed, scales, transposed_scales;
  bool operator==(const Quantized& other) const {
    return codes == other.codes && transposed == other.transposed && scales == other.scales &&
           transposed_scales == other.transposed_scales;
  }
};

class Float8FlatBlocksTest : public ::testing::Test {
 protected:
  Quantized Quantize(const HostTensor& x, const Sizes& size, bool power_of_two) {
    constexpr Float8Scaling kBlocks = Float8Scaling::kBlocks;
    const int64_t padded = Float8Padded(size.rows);
    const HostTensor codes({size.rows, size.columns}, DType::kUInt8),
        transposed({size.columns, padded}, DType::kUInt8),
        scales(Float8ScalesShape(kBlocks, size.rows, size.columns), kF32),
        transposed_scales(Float8ScalesShape(kBlocks, size.columns, padded), kF32);
    QuantizeBlocks(stream_, x.tensor().View({size.rows, size.columns}), power_of_two,
                   {kE4M3, codes, scales, kBlocks},
                   {kE4M3, transposed, transposed_scales, kBlocks});
    return {codes.Bytes(), transposed.Bytes(), scales.Bytes(), transposed_scales.Bytes()};
  }

  ThreadPool pool_{3};
  Stream stream_ = Stream::Cpu(&pool_);
};

// Each of three ranks has a part of the matrix and gets the codes of the others.
TEST_F(Float8FlatBlocksTest, WhatIsDecodedHasTheSameCodesAndScales) {
  for (const DType dtype : {kF32, DType::kBFloat16, DType::kFloat16}) {
    for (const Sizes& size : kSizes) {
      for (const bool power_of_two : {false, true}) {
        const HostTensor x = Uneven(size, dtype, 3);
        const int64_t n = x.numel(), ends[] = {0, n / 3 + 5, n / 2 + 3, n};
        const HostTensor largest({NumFloat8Blocks(size.rows, size.columns)}, kF32);
        const auto part = [&](const HostTensor& of, int rank) {
          return of.tensor().Slice(0, ends[rank], ends[rank + 1]);
        };
        const auto run = [&](int rank) { return MatrixRun{ends[rank], size.columns}; };
        for (int rank = 0; rank < 3; ++rank)
          AbsMaxOfBlocks(stream_, part(x, rank), run(rank), largest);
        const HostTensor codes({n}, DType::kUInt8);
        for (int rank = 0; rank < 3; ++rank) {
          EncodeFloat8Blocks(stream_, part(x, rank), run(rank), largest, power_of_two,
                             part(codes, rank));
        }
        const Quantized want = Quantize(x, size, power_of_two);
        EXPECT_EQ(codes.Bytes(), want.codes);
        for (int receiver = 0; receiver < 3; ++receiver) {
          HostTensor got({n}, dtype);
          for (int64_t i = 0; i < n; ++i) got.Set(i, x.Get(i));
          for (int rank = 0; rank < 3; ++rank) {
            if (rank == receiver) continue;
            DecodeFloat8Blocks(stream_, part(codes, rank), run(rank), largest, power_of_two,
                               part(got, rank));
          }
          EXPECT_TRUE(Quantize(got, size, power_of_two) == want)
              << Name(dtype) << " " << size.rows << " " << size.columns << " " << power_of_two
              << " " << receiver;
        }
      }
    }
  }
}

// Their code alone stands for 1.75, of which a block would get twice the scale.
TEST_F(Float8FlatBlocksTest, TheLargestMagnitudeIsDecodedExactly) {
  const double most = 227.0 / 128;
  const HostTensor x = HostTensor::Of({3}, DType::kBFloat16, {-most, 1, most});
  const HostTensor largest({1}, kF32), codes({3}, DType::kUInt8), decoded({3}, DType::kBFloat16);
  AbsMaxOfBlocks(stream_, x, {0, 16}, largest);
  EXPECT_EQ(largest.Get(0), most);
  EncodeFloat8Blocks(stream_, x, {0, 16}, largest, /*power_of_two=*/true, codes);
  EXPECT_EQ(Float8ToFloat(kE4M3, codes.tensor().data<uint8_t>()[2]), 1.75f * 128);
  DecodeFloat8Blocks(stream_, codes, {0, 16}, largest, /*power_of_two=*/true, decoded);
  EXPECT_EQ(decoded.Get(0), -most);
  EXPECT_EQ(decoded.Get(1), 1);
  EXPECT_EQ(decoded.Get(2), most);
}

TEST_F(Float8FlatBlocksTest, LargestMagnitudesAreRaisedWithoutNaN) {
  constexpr int64_t kColumns = 144, kBegin = 143;  // the last element of a row
  const HostTensor x =
      HostTensor::Of({4}, kF32, {-7, 2, std::numeric_limits<double>::quiet_NaN(), -0.5});
  const HostTensor largest = HostTensor::Of({2}, kF32, {0.25, 1});
  AbsMaxOfBlocks(stream_, x, {kBegin, kColumns}, largest);
  EXPECT_EQ(largest.Get(0), 2);
  EXPECT_EQ(largest.Get(1), 7);
  AbsMaxOfBlocks(stream_, x.tensor().Slice(0, 3, 4), {kBegin + 3, kColumns}, largest);
  EXPECT_EQ(largest.Get(0), 2);
}

// Codes of NaN are those of no magnitude, in a block whose largest is not finite either.
TEST_F(Float8FlatBlocksTest, WhatIsNotFiniteBecomesNaN) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double most : {1.0, infinity}) {
    const HostTensor x = HostTensor::Of({2}, DType::kBFloat16, {infinity, 1});
    const HostTensor largest = HostTensor::Of({1}, kF32, {most});
    const HostTensor codes({2}, DType::kUInt8), decoded({2}, DType::kBFloat16);
    EncodeFloat8Blocks(stream_, x, {0, 16}, largest, /*power_of_two=*/true, codes);
    DecodeFloat8Blocks(stream_, codes, {0, 16}, largest, /*power_of_two=*/true, decoded);
    EXPECT_FALSE(std::isfinite(decoded.Get(0)));
    EXPECT_EQ(decoded.Get(1), 1);
  }
}

}  // namespace
}  // namespace megatron::ops
