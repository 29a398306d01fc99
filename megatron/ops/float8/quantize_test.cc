#include "megatron/ops/float8/quantize.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/host_tensor.h"
#include "megatron/tensor/float8.h"

namespace megatron::ops {
namespace {

const DType kDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
const Float8Format kFormats[] = {Float8Format::kE4M3, Float8Format::kE5M2};
constexpr uint8_t kNan = 0x7f;

// Finds the code of the nearest value by trying all; between two equally near ones, the even one.
uint8_t NearestCode(Float8Format format, double value) {
  int best = 0;
  double best_distance = std::numeric_limits<double>::infinity();
  for (int code = 0; code < 128; ++code) {
    const double candidate = Float8ToFloat(format, static_cast<uint8_t>(code));
    if (!std::isfinite(candidate)) continue;
    const double distance = std::fabs(candidate - std::fabs(value));
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) {
      best = code;
      best_distance = distance;
    }
  }
  return static_cast<uint8_t>(best | (std::signbit(value) ? 0x80 : 0));
}

class QuantizeTest : public ::testing::Test {
 protected:
  float AmaxOf(const Tensor& x) {
    const HostTensor amax({1}, DType::kFloat32);
    AbsMax(stream_, x, amax);
    return static_cast<float>(amax.Get(0));
  }

  ThreadPool pool_{2};
  Stream stream_ = Stream::Cpu(&pool_);
};

TEST_F(QuantizeTest, TheLargestMagnitudeIsFoundWhereverItIs) {
  for (DType dtype : kDTypes) {
    for (int64_t rows : {1, 3, 700}) {
      HostTensor x = HostTensor::Normal({rows, 48}, dtype, 1);
      for (int64_t at : {int64_t{0}, x.numel() / 2, x.numel() - 1}) {
        const double before = x.Get(at);
        x.Set(at, -1000);
        EXPECT_EQ(AmaxOf(x), 1000) << dtype << " " << rows << " " << at;
        x.Set(at, before);
      }
    }
  }
  EXPECT_EQ(AmaxOf(HostTensor({0, 16}, DType::kBFloat16)), 0);
  EXPECT_EQ(AmaxOf(HostTensor({5, 16}, DType::kBFloat16)), 0);
}

TEST_F(QuantizeTest, TheLargestMagnitudePassesOverNanAndSeesInfinity) {
  HostTensor x = HostTensor::Normal({4, 16}, DType::kFloat32, 1);
  x.Set(0, 0);
  const float largest = AmaxOf(x);
  x.Set(0, std::nan(""));
  EXPECT_EQ(AmaxOf(x), largest);
  x.Set(9, -std::numeric_limits<double>::infinity());
  EXPECT_EQ(AmaxOf(x), std::numeric_limits<float>::infinity());
}

TEST_F(QuantizeTest, CodesAreTheNearestInBothForms) {
  for (DType dtype : kDTypes) {
    for (Float8Format format : kFormats) {
      for (int64_t rows : {1, 16, 37, 130}) {
        constexpr int64_t kColumns = 48;
        const int64_t padded = Float8Padded(rows);
        const HostTensor x = HostTensor::Normal({rows, kColumns}, dtype, 1);
        const HostTensor amax({1}, DType::kFloat32), inverse({1}, DType::kFloat32),
            codes({rows, kColumns}, DType::kUInt8), transposed({kColumns, padded}, DType::kUInt8);
        AbsMax(stream_, x, amax);
        std::fill_n(transposed.tensor().data<uint8_t>(), transposed.numel(), uint8_t{0x55});
        Quantize(stream_, x, amax, {format, codes, transposed, inverse});
        const float scale = Float8Max(format) / static_cast<float>(amax.Get(0));
        EXPECT_EQ(inverse.Get(0), 1.0f / scale);
        for (int64_t r = 0; r < padded; ++r) {
          for (int64_t c = 0; c < kColumns; ++c) {
            const uint8_t got = transposed.tensor().data<uint8_t>()[c * padded + r];
            if (r >= rows) {
              ASSERT_EQ(got, 0);
              continue;
            }
            const float scaled = static_cast<float>(x.Get(r * kColumns + c)) * scale;
            ASSERT_EQ(got, NearestCode(format, scaled)) << dtype << " " << scaled;
            ASSERT_EQ(codes.tensor().data<uint8_t>()[r * kColumns + c], got);
          }
        }
        EXPECT_EQ(*std::max_element(codes.tensor().data<uint8_t>(),
                                    codes.tensor().data<uint8_t>() + codes.numel(),
                                    [](uint8_t a, uint8_t b) { return (a & 127) < (b & 127); }) &
                      127,
                  format == Float8Format::kE4M3 ? 0x7e : 0x7b);
      }
    }
  }
}

TEST_F(QuantizeTest, AFormThatIsNotKeptIsNotWritten) {
  const HostTensor x = HostTensor::Normal({16, 16}, DType::kBFloat16, 1),
                   amax = HostTensor::Of({1}, DType::kFloat32, {4}), both({16, 16}, DType::kUInt8),
                   alone({16, 16}, DType::kUInt8), transposed({16, 16}, DType::kUInt8),
                   inverse({1}, DType::kFloat32);
  Quantize(stream_, x, amax, {Float8Format::kE4M3, both, transposed, inverse});
  Quantize(stream_, x, amax, {Float8Format::kE4M3, alone, Tensor(), inverse});
  EXPECT_EQ(alone.Bytes(), both.Bytes());
  Quantize(stream_, x, amax, {Float8Format::kE4M3, Tensor(), alone, inverse});
  EXPECT_EQ(alone.Bytes(), transposed.Bytes());
}

// If another rank's part of the tensor has a larger maximum, this rank does not use all codes.
TEST_F(QuantizeTest, TheScaleIsThatOfTheGivenMaximum) {
  const HostTensor x = HostTensor::Of({1, 16}, DType::kFloat32, std::vector<double>(16, 1.0)),
                   amax = HostTensor::Of({1}, DType::kFloat32, {7}), codes({1, 16}, DType::kUInt8),
                   inverse({1}, DType::kFloat32);
  Quantize(stream_, x, amax, {Float8Format::kE4M3, codes, Tensor(), inverse});
  EXPECT_EQ(Float8ToFloat(Float8Format::kE4M3, codes.tensor().data<uint8_t>()[0]), 64);
  EXPECT_EQ(inverse.Get(0), 1.0f / 64);
}

TEST_F(QuantizeTest, NonFiniteElementsBecomeNanAndDoNotChangeOthers) {
  for (Float8Format format : kFormats) {
    HostTensor x = HostTensor::Of({1, 16}, DType::kBFloat16, std::vector<double>(16, 1.5));
    x.Set(3, std::numeric_limits<double>::infinity());
    x.Set(5, std::nan(""));
    const HostTensor amax({1}, DType::kFloat32), codes({1, 16}, DType::kUInt8),
        inverse({1}, DType::kFloat32);
    AbsMax(stream_, x, amax);
    Quantize(stream_, x, amax, {format, codes, Tensor(), inverse});
    EXPECT_EQ(inverse.Get(0), 1);
    for (int i = 0; i < 16; ++i) {
      const uint8_t code = codes.tensor().data<uint8_t>()[i];
      EXPECT_EQ(code, i == 3 || i == 5 ? kNan : NearestCode(format, 1.5)) << i;
    }
  }
}

TEST_F(QuantizeTest, MeasuringRaisesTheMaximumAndGivesTheSameCodes) {
  HostTensor x = HostTensor::Normal({37, 48}, DType::kBFloat16, 1);
  x.Set(40, -9);
  const HostTensor amax = HostTensor::Of({1}, DType::kFloat32, {3}), codes({37, 48}, DType::kUInt8),
                   again({37, 48}, DType::kUInt8), inverse({1}, DType::kFloat32);
  HostTensor largest = HostTensor::Of({1}, DType::kFloat32, {2});
  Quantize(stream_, x, amax, {Float8Format::kE4M3, codes, Tensor(), inverse});
  QuantizeAndMeasure(stream_, x, amax, {Float8Format::kE4M3, again, Tensor(), inverse}, largest);
  EXPECT_EQ(again.Bytes(), codes.Bytes());
  EXPECT_EQ(largest.Get(0), 9);
  EXPECT_EQ(inverse.Get(0), 1 / (448.0f / 3));
  largest.Set(0, 12);
  QuantizeAndMeasure(stream_, x, amax, {Float8Format::kE4M3, again, Tensor(), inverse}, largest);
  EXPECT_EQ(largest.Get(0), 12);
}

TEST_F(QuantizeTest, ZerosStayZeros) {
  const HostTensor x({16, 16}, DType::kBFloat16), amax({1}, DType::kFloat32),
      codes = HostTensor({16, 16}, DType::kUInt8), inverse({1}, DType::kFloat32);
  Quantize(stream_, x, amax, {Float8Format::kE4M3, codes, Tensor(), inverse});
  EXPECT_EQ(inverse.Get(0), 1);
  EXPECT_EQ(codes.Bytes(), std::vector<char>(256, 0));
}

}  // namespace
}  // namespace megatron::ops
