#include "megatron/ops/float8/quantize_blocks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/float8/product.h"
#include "megatron/ops/host_tensor.h"
#include "megatron/ops/tolerances.h"
#include "megatron/tensor/float8.h"

namespace megatron::ops {
namespace {

using Values = std::vector<double>;

constexpr Float8Format kE4M3 = Float8Format::kE4M3, kE5M2 = Float8Format::kE5M2;
constexpr Float8Scaling kVectors = Float8Scaling::kVectors, kBlocks = Float8Scaling::kBlocks;
constexpr DType kF32 = DType::kFloat32;

struct Sizes {
  int64_t rows, columns;
};
const Sizes kSizes[] = {{1, 16}, {128, 128}, {130, 272}, {37, 400}, {300, 144}};

// Room for a form, with what no writer leaves.
struct Form {
  Form(int64_t rows, int64_t columns, Float8Format format, Float8Scaling scaling)
      : codes({rows, columns}, DType::kUInt8),
        scales(Float8ScalesShape(scaling, rows, columns), kF32),
        matrix({format, codes, scales, scaling}) {
    std::fill_n(codes.tensor().data<uint8_t>(), codes.numel(), uint8_t{0x55});
    std::fill_n(scales.tensor().data<float>(), scales.numel(), -5.0f);
  }
  double Scale(int64_t r, int64_t c) const {
    const int64_t pitch = scales.tensor().dim(1);
    return matrix.scaling == kVectors ? scales.Get(c / 128 * pitch + r)
                                      : scales.Get(r / 128 * pitch + c / 128);
  }
  double Value(int64_t r, int64_t c) const {
    const uint8_t code = codes.tensor().data<uint8_t>()[r * codes.tensor().dim(1) + c];
    return Float8ToFloat(matrix.format, code) * Scale(r, c);
  }

  HostTensor codes, scales;
  Float8Matrix matrix;
};

// Parts differ by orders of magnitude.
HostTensor Uneven(const Sizes& size, DType dtype, uint32_t seed) {
  HostTensor x = HostTensor::Normal({size.rows, size.columns}, dtype, seed);
  for (int64_t i = 0; i < x.numel(); ++i) {
    const int64_t r = i / size.columns, c = i % size.columns;
    x.Set(i, x.Get(i) * std::pow(2.0, r % 7 - c / 128 * 5));
  }
  return x;
}

class QuantizeBlocksTest : public ::testing::Test {
 protected:
  ThreadPool pool_{2};
  Stream stream_ = Stream::Cpu(&pool_);
};

// Holds a form against a plain loop over its elements, which `at` gives.
template <typename At>
void ExpectForm(const Form& form, const Sizes& size, bool power_of_two, const At& at) {
  const Float8Format format = form.matrix.format;
  const int64_t pitch = form.codes.tensor().dim(1);
  const int64_t height = form.matrix.scaling == kBlocks ? 128 : 1;
  std::map<std::pair<int64_t, int64_t>, float> largest;
  for (int64_t r = 0; r < size.rows; ++r) {
    for (int64_t c = 0; c < size.columns; ++c) {
      float& of_part = largest[{r / height, c / 128}];
      of_part = std::max(of_part, static_cast<float>(std::fabs(at(r, c))));
    }
  }
  for (int64_t r = 0; r < size.rows; ++r) {
    for (int64_t c = 0; c < pitch; ++c) {
      const uint8_t got = form.codes.tensor().data<uint8_t>()[r * pitch + c];
      if (c >= size.columns) {
        ASSERT_EQ(got, 0) << r << " " << c;
        continue;
      }
      float scale = (format == kE4M3 ? 448.0f : 57344.0f) / largest[{r / height, c / 128}];
      if (power_of_two) scale = std::exp2(std::floor(std::log2(scale)));
      ASSERT_EQ(form.Scale(r, c), 1 / scale) << r << " " << c;
      ASSERT_EQ(got, FloatToFloat8(format, static_cast<float>(at(r, c)) * scale)) << r << " " << c;
    }
  }
}

TEST_F(QuantizeBlocksTest, EachPartHasTheScaleOfItsLargestMagnitude) {
  for (DType dtype : {kF32, DType::kBFloat16, DType::kFloat16}) {
    for (Float8Scaling scaling : {kVectors, kBlocks}) {
      for (const Sizes& size : kSizes) {
        for (bool power_of_two : {false, true}) {
          SCOPED_TRACE(::testing::Message() << dtype << " " << static_cast<int>(scaling) << " "
                                            << size.rows << " " << power_of_two);
          const Float8Format format = size.rows == 37 ? kE5M2 : kE4M3;
          const HostTensor x = Uneven(size, dtype, 1);
          const Form as_it_is(size.rows, size.columns, format, scaling),
              transposed(size.columns, Float8Padded(size.rows), format, scaling);
          QuantizeBlocks(stream_, x, power_of_two, as_it_is.matrix, transposed.matrix);
          ExpectForm(as_it_is, size, power_of_two,
                     [&](int64_t r, int64_t c) { return x.Get(r * size.columns + c); });
          ExpectForm(transposed, {size.columns, size.rows}, power_of_two,
                     [&](int64_t r, int64_t c) { return x.Get(c * size.columns + r); });
        }
      }
    }
  }
}

TEST_F(QuantizeBlocksTest, ScalesOfNoPartAreOne) {
  const HostTensor x = HostTensor::Normal({5, 16}, kF32, 1);
  const Form vectors(5, 16, kE4M3, kVectors), blocks(5, 16, kE4M3, kBlocks);
  QuantizeBlocks(stream_, x, true, vectors.matrix, Float8Matrix());
  QuantizeBlocks(stream_, x, true, blocks.matrix, Float8Matrix());
  for (int64_t i = 5; i < 8; ++i) EXPECT_EQ(vectors.scales.Get(i), 1);
  for (int64_t i = 1; i < 4; ++i) EXPECT_EQ(blocks.scales.Get(i), 1);
}

TEST_F(QuantizeBlocksTest, NonFiniteElementsBecomeNanAndChangeOnlyTheirPart) {
  HostTensor x = HostTensor::Normal({2, 256}, DType::kBFloat16, 1);
  const Form before(2, 256, kE4M3, kVectors), after(2, 256, kE4M3, kVectors);
  QuantizeBlocks(stream_, x, true, before.matrix, Float8Matrix());
  x.Set(3, std::numeric_limits<double>::infinity());
  x.Set(5, std::nan(""));
  QuantizeBlocks(stream_, x, true, after.matrix, Float8Matrix());
  EXPECT_EQ(after.Scale(0, 0), 1);
  EXPECT_TRUE(std::isnan(after.Value(0, 3)) && std::isnan(after.Value(0, 5)));
  EXPECT_FALSE(std::isnan(after.Value(0, 4)));
  for (int64_t r = 0; r < 2; ++r) {
    for (int64_t c = r == 0 ? 128 : 0; c < 256; ++c)
      EXPECT_EQ(after.Value(r, c), before.Value(r, c));
  }
}

TEST_F(QuantizeBlocksTest, ZerosStayZeros) {
  const HostTensor x({16, 16}, DType::kBFloat16);
  const Form form(16, 16, kE4M3, kBlocks);
  QuantizeBlocks(stream_, x, true, form.matrix, Float8Matrix());
  EXPECT_EQ(form.Scale(0, 0), 1);
  EXPECT_EQ(form.codes.Bytes(), std::vector<char>(256, 0));
}

// c [m, n] = a b^T of two forms, by a plain loop in double.
Values Product(const Form& a, const Form& b) {
  const int64_t m = a.codes.tensor().dim(0), n = b.codes.tensor().dim(0),
                k = a.codes.tensor().dim(1);
  Values c(static_cast<size_t>(m * n));
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t l = 0; l < k; ++l)
        c[static_cast<size_t>(i * n + j)] += a.Value(i, l) * b.Value(j, l);
    }
  }
  return c;
}

TEST_F(QuantizeBlocksTest, ProductsAreThoseOfTheValues) {
  for (bool power_of_two : {false, true}) {
    for (Float8Scaling scaling : {kVectors, kBlocks}) {
      const Sizes of_a = {130, 272}, of_b = {144, 272};
      const Form a(of_a.rows, of_a.columns, kE5M2, kVectors),
          b(of_b.rows, of_b.columns, kE4M3, scaling);
      QuantizeBlocks(stream_, Uneven(of_a, kF32, 1), power_of_two, a.matrix, Float8Matrix());
      QuantizeBlocks(stream_, Uneven(of_b, kF32, 2), power_of_two, b.matrix, Float8Matrix());
      const Values product = Product(a, b);
      for (DType dtype : {kF32, DType::kBFloat16}) {
        const HostTensor bias = HostTensor::Normal({144}, dtype, 3), c({130, 144}, dtype);
        Values want = product;
        Float8Product(stream_, a.matrix, b.matrix, Tensor(), c);
        ExpectNear(c, want, OpTolerance(dtype));
        for (size_t i = 0; i < want.size(); ++i) want[i] += bias.Get(static_cast<int64_t>(i) % 144);
        Float8Product(stream_, a.matrix, b.matrix, bias, c);
        ExpectNear(c, want, OpTolerance(dtype));
      }
      const HostTensor c = HostTensor::Normal({130, 144}, kF32, 4);
      Values want = product;
      for (size_t i = 0; i < want.size(); ++i) want[i] += c.Get(static_cast<int64_t>(i));
      AddFloat8Product(stream_, a.matrix, b.matrix, c);
      ExpectNear(c, want, OpTolerance(kF32));
    }
  }
}

}  // namespace
}  // namespace megatron::ops
