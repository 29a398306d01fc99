#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/ops/bias_gradient.h"
#include "megatron/ops/cuda/agreement.h"
#include "megatron/ops/float8/flat.h"
#include "megatron/ops/float8/flat_blocks.h"
#include "megatron/ops/float8/product.h"
#include "megatron/ops/float8/quantize.h"
#include "megatron/ops/float8/quantize_blocks.h"
#include "megatron/ops/tolerances.h"

namespace megatron::ops {
namespace {

constexpr DType kF32 = DType::kFloat32, kCodes = DType::kUInt8;
constexpr Float8Format kE4M3 = Float8Format::kE4M3, kE5M2 = Float8Format::kE5M2;
using At = absl::Span<const Tensor>;

class Float8KernelsTest : public AgreementTest, public ::testing::WithParamInterface<DType> {};

INSTANTIATE_TEST_SUITE_P(DTypes, Float8KernelsTest,
                         ::testing::Values(kF32, DType::kBFloat16, DType::kFloat16),
                         [](const auto& info) { return std::string(Name(info.param)); });

TEST_P(Float8KernelsTest, TheLargestMagnitudeIsTheSame) {
  for (const Shape& shape : {Shape{1, 1}, Shape{3, 33}, Shape{64, 48}, Shape{500, 640}}) {
    HostTensor x = HostTensor::Normal(shape, GetParam(), 1), amax({1}, kF32), none({1}, kF32);
    ExpectAgreement({&x, &amax, &none}, 0, [](const Stream& stream, At at) {
      AbsMax(stream, at[0], at[1]);
      AbsMax(stream, at[0].Slice(0, 0, 0), at[2]);
    });
  }
}

// Codes agree to the bit, since both sides round to the same codes.
TEST_P(Float8KernelsTest, CodesAreTheSameInBothForms) {
  for (Float8Format format : {kE4M3, kE5M2}) {
    for (const Shape& shape : {Shape{1, 16}, Shape{37, 48}, Shape{64, 64}, Shape{150, 208}}) {
      HostTensor x = HostTensor::Normal(shape, GetParam(), 1), amax({1}, kF32), inverse({1}, kF32),
                 codes(shape, kCodes), transposed({shape[1], Float8Padded(shape[0])}, kCodes),
                 alone(shape, kCodes), alone_transposed(transposed.tensor().shape(), kCodes);
      ExpectAgreement({&x, &amax, &inverse, &codes, &transposed, &alone, &alone_transposed}, 0,
                      [&](const Stream& stream, At at) {
                        AbsMax(stream, at[0], at[1]);
                        Quantize(stream, at[0], at[1], {format, at[3], at[4], at[2]});
                        Quantize(stream, at[0], at[1], {format, at[5], Tensor(), at[2]});
                        Quantize(stream, at[0], at[1], {format, Tensor(), at[6], at[2]});
                      });
    }
  }
}

TEST_P(Float8KernelsTest, CodesAreTheSameOfAWeightThatIsNotAligned) {
  HostTensor memory = HostTensor::Normal({1 + 33 * 48}, GetParam(), 1), amax({1}, kF32),
             inverse({1}, kF32), codes({33, 48}, kCodes), transposed({48, 48}, kCodes);
  ExpectAgreement({&memory, &amax, &inverse, &codes, &transposed}, 0,
                  [](const Stream& stream, At at) {
                    const Tensor x = at[0].Slice(0, 1, 1 + 33 * 48).View({33, 48});
                    AbsMax(stream, x, at[1]);
                    Quantize(stream, x, at[1], {kE4M3, at[3], at[4], at[2]});
                  });
}

// Every bf16 there is, not finite ones included, under maxima of which some have no good scale.
TEST_F(AgreementTest, CodesOfEveryBf16AreTheSame) {
  std::vector<double> bits;
  for (int i = 0; i < 1 << 16; ++i) bits.push_back(i);
  HostTensor x = HostTensor::Of({256, 256}, DType::kUInt16, bits), codes({256, 256}, kCodes),
             inverse({1}, kF32);
  for (Float8Format format : {kE4M3, kE5M2}) {
    for (double maximum : {0.0, 1e-38, 1e-3, 1.0, 448.0, 3e38}) {
      HostTensor amax = HostTensor::Of({1}, kF32, {maximum});
      ExpectAgreement({&x, &amax, &codes, &inverse}, 0, [&](const Stream& stream, At at) {
        const Tensor values(at[0].raw(), DType::kBFloat16, {256, 256}, at[0].device());
        Quantize(stream, values, at[1], {format, at[2], Tensor(), at[3]});
      });
    }
  }
}

TEST_P(Float8KernelsTest, MeasuringRaisesTheMaximum) {
  for (const Shape& shape : {Shape{1, 16}, Shape{150, 208}}) {
    HostTensor x = HostTensor::Normal(shape, GetParam(), 1), amax = HostTensor::Of({1}, kF32, {3}),
               inverse({1}, kF32), codes(shape, kCodes),
               transposed({shape[1], Float8Padded(shape[0])}, kCodes),
               low = HostTensor::Of({1}, kF32, {0.01}), high = HostTensor::Of({1}, kF32, {100});
    ExpectAgreement(
        {&x, &amax, &inverse, &codes, &transposed, &low, &high}, 0,
        [](const Stream& stream, At at) {
          for (int i : {5, 6}) {
            QuantizeAndMeasure(stream, at[0], at[1], {kE5M2, at[3], at[4], at[2]}, at[i]);
          }
        });
  }
}

TEST_P(Float8KernelsTest, CodesAndScalesOfPartsAreTheSameInBothForms) {
  for (Float8Scaling scaling : {Float8Scaling::kVectors, Float8Scaling::kBlocks}) {
    for (const Shape& shape : {Shape{1, 16}, Shape{37, 144}, Shape{128, 128}, Shape{260, 400}}) {
      const Shape across = {shape[1], Float8Padded(shape[0])};
      HostTensor x = HostTensor::Normal(shape, GetParam(), 1), codes(shape, kCodes),
                 transposed(across, kCodes),
                 scales(Float8ScalesShape(scaling, shape[0], shape[1]), kF32),
                 scales_across(Float8ScalesShape(scaling, across[0], across[1]), kF32);
      for (bool power_of_two : {false, true}) {
        const Float8Format format = power_of_two ? kE4M3 : kE5M2;
        ExpectAgreement({&x, &codes, &transposed, &scales, &scales_across}, 0,
                        [&](const Stream& stream, At at) {
                          QuantizeBlocks(stream, at[0], power_of_two,
                                         {format, at[1], at[3], scaling},
                                         {format, at[2], at[4], scaling});
                        });
      }
    }
  }
}

TEST_P(Float8KernelsTest, RunsOfElementsAreTheSame) {
  HostTensor x = HostTensor::Normal({1001}, GetParam(), 1), amax = HostTensor::Of({1}, kF32, {1.7}),
             codes({1001}, kCodes), decoded({1001}, GetParam());
  ExpectAgreement({&x, &amax, &codes, &decoded}, 0, [](const Stream& stream, At at) {
    EncodeFloat8(stream, at[0].Slice(0, 1, 1001), at[1], at[2].Slice(0, 1, 1001));
    DecodeFloat8(stream, at[2], at[1], at[3]);
  });
}

// Runs that begin and end in the middle of rows and blocks.
TEST_P(Float8KernelsTest, RunsOfElementsInBlocksAreTheSame) {
  constexpr int64_t kBegin = 1000, kCount = 25001;
  for (int64_t columns : {1, 48, 144, 400}) {
    const int64_t rows = (kBegin + kCount + columns - 1) / columns;
    HostTensor x = HostTensor::Normal({kCount}, GetParam(), 1),
               largest({NumFloat8Blocks(rows, columns)}, kF32), codes({kCount}, kCodes),
               decoded({kCount}, GetParam());
    for (bool power_of_two : {false, true}) {
      ExpectAgreement({&x, &largest, &codes, &decoded}, 0, [&](const Stream& stream, At at) {
        const MatrixRun all = {kBegin, columns}, rest = {kBegin + 1, columns};
        AbsMaxOfBlocks(stream, at[0], all, at[1]);
        EncodeFloat8Blocks(stream, at[0].Slice(0, 1, kCount), rest, at[1], power_of_two,
                           at[2].Slice(0, 1, kCount));
        DecodeFloat8Blocks(stream, at[2], all, at[1], power_of_two, at[3]);
      });
    }
  }
}

TEST_P(Float8KernelsTest, BiasGradients) {
  HostTensor dy = HostTensor::Normal({77, 35}, GetParam(), 1),
             dbias = HostTensor::Normal({35}, kF32, 2);
  ExpectAgreement({&dy, &dbias}, OpTolerance(kF32),
                  [](const Stream& stream, At at) { BiasBackward(stream, at[0], at[1]); });
}

// The three products of a linear layer, from 16-bit tensors on.
TEST_F(AgreementTest, Float8Products) {
  for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (int64_t tokens : {1, 40, 256}) {
      constexpr int64_t kIn = 64, kOut = 176;
      const int64_t padded = Float8Padded(tokens);
      HostTensor x = HostTensor::Normal({tokens, kIn}, dtype, 1),
                 w = HostTensor::Normal({kOut, kIn}, dtype, 2),
                 dy = HostTensor::Normal({tokens, kOut}, dtype, 3),
                 bias = HostTensor::Normal({kOut}, dtype, 4), y({tokens, kOut}, dtype),
                 dx({tokens, kIn}, dtype), dw = HostTensor::Normal({kOut, kIn}, kF32, 5),
                 amax({3}, kF32), inverse({3}, kF32), x8({tokens, kIn}, kCodes),
                 xt8({kIn, padded}, kCodes), w8({kOut, kIn}, kCodes), wt8({kIn, kOut}, kCodes),
                 dy8({tokens, kOut}, kCodes), dyt8({kOut, padded}, kCodes);
      ExpectAgreement(
          {&x, &w, &dy, &bias, &y, &dx, &dw, &amax, &inverse, &x8, &xt8, &w8, &wt8, &dy8, &dyt8},
          4 * OpTolerance(dtype), [&](const Stream& stream, At at) {
            const Float8Tensor tensors[] = {{kE4M3, at[9], at[10], at[8].Slice(0, 0, 1)},
                                            {kE4M3, at[11], at[12], at[8].Slice(0, 1, 2)},
                                            {kE5M2, at[13], at[14], at[8].Slice(0, 2, 3)}};
            for (int i = 0; i < 3; ++i) {
              AbsMax(stream, at[i], at[7].Slice(0, i, i + 1));
              Quantize(stream, at[i], at[7].Slice(0, i, i + 1), tensors[i]);
            }
            Float8Product(stream, tensors[0].AsItIs(), tensors[1].AsItIs(), at[3], at[4]);
            Float8Product(stream, tensors[2].AsItIs(), tensors[1].Transposed(), Tensor(), at[5]);
            AddFloat8Product(stream, tensors[2].Transposed(), tensors[0].Transposed(), at[6]);
          });
    }
  }
}

}  // namespace
}  // namespace megatron::ops
