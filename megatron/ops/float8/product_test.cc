#include "megatron/ops/float8/product.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/allocation_counter.h"
#include "megatron/ops/float8/quantize.h"
#include "megatron/ops/host_tensor.h"
#include "megatron/ops/tolerances.h"
#include "megatron/tensor/float8.h"

namespace megatron::ops {
namespace {

constexpr Float8Format kE4M3 = Float8Format::kE4M3, kE5M2 = Float8Format::kE5M2;

struct Sizes {
  int64_t m, n, k;
};
// Sizes below, at and above those of panels and blocks of K.
const Sizes kSizes[] = {{1, 16, 16}, {33, 48, 400}, {130, 112, 800}};

// A matrix of random values in 8 bits, and the values.
struct Operand {
  Operand(const Stream& stream, const Shape& shape, Float8Format format, uint32_t seed)
      : codes(shape, DType::kUInt8), amax({1}, DType::kFloat32), inverse({1}, DType::kFloat32) {
    HostTensor x = HostTensor::Normal(shape, DType::kFloat32, seed);
    for (int64_t i = 0; i < x.numel(); ++i) x.Set(i, x.Get(i) * 3e-3 * seed);
    AbsMax(stream, x, amax);
    Quantize(stream, x, amax, {format, codes, Tensor(), inverse});
    matrix = {format, codes, inverse};
  }
  std::vector<double> Values() const {
    std::vector<double> values;
    for (int64_t i = 0; i < codes.numel(); ++i) {
      const uint8_t code = codes.tensor().data<uint8_t>()[i];
      values.push_back(Float8ToFloat(matrix.format, code) * inverse.Get(0));
    }
    return values;
  }

  HostTensor codes, amax, inverse;
  Float8Matrix matrix;
};

std::vector<double> Product(const Operand& a, const Operand& b, const Sizes& size) {
  const std::vector<double> x = a.Values(), y = b.Values();
  std::vector<double> c(static_cast<size_t>(size.m * size.n));
  for (int64_t i = 0; i < size.m; ++i) {
    for (int64_t j = 0; j < size.n; ++j) {
      for (int64_t k = 0; k < size.k; ++k)
        c[i * size.n + j] += x[i * size.k + k] * y[j * size.k + k];
    }
  }
  return c;
}

class Float8ProductTest : public ::testing::Test {
 protected:
  ThreadPool pool_{2};
  Stream stream_ = Stream::Cpu(&pool_);
};

TEST_F(Float8ProductTest, ForwardIsTheProductOfTheValuesPlusTheBias) {
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (Float8Format format : {kE4M3, kE5M2}) {
      for (const Sizes& size : kSizes) {
        SCOPED_TRACE(::testing::Message() << dtype << " " << Name(format) << " " << size.m);
        const Operand a(stream_, {size.m, size.k}, format, 1),
            b(stream_, {size.n, size.k}, kE4M3, 2);
        HostTensor bias = HostTensor::Normal({size.n}, dtype, 3);
        for (int64_t i = 0; i < size.n; ++i) bias.Set(i, bias.Get(i) * 1e-4);
        const HostTensor c({size.m, size.n}, dtype);
        std::vector<double> want = Product(a, b, size);
        Float8Product(stream_, a.matrix, b.matrix, Tensor(), c);
        ExpectNear(c, want, OpTolerance(dtype));
        for (size_t i = 0; i < want.size(); ++i)
          want[i] += bias.Get(static_cast<int64_t>(i) % size.n);
        Float8Product(stream_, a.matrix, b.matrix, bias, c);
        ExpectNear(c, want, OpTolerance(dtype));
      }
    }
  }
}

TEST_F(Float8ProductTest, AddIsInFp32) {
  for (const Sizes& size : kSizes) {
    const Operand a(stream_, {size.m, size.k}, kE5M2, 1), b(stream_, {size.n, size.k}, kE4M3, 2);
    HostTensor c = HostTensor::Normal({size.m, size.n}, DType::kFloat32, 3);
    for (int64_t i = 0; i < c.numel(); ++i) c.Set(i, c.Get(i) * 1e-4);
    std::vector<double> want = Product(a, b, size);
    for (size_t i = 0; i < want.size(); ++i) want[i] += c.Get(static_cast<int64_t>(i));
    AddFloat8Product(stream_, a.matrix, b.matrix, c);
    ExpectNear(c, want, OpTolerance(DType::kFloat32));
  }
}

// A NaN must be visible in the result, since a gradient that is not finite ends the step.
TEST_F(Float8ProductTest, NanInAnOperandIsNanInItsRow) {
  const Operand a(stream_, {2, 16}, kE4M3, 1), b(stream_, {16, 16}, kE4M3, 2);
  a.codes.tensor().data<uint8_t>()[3] = 0x7f;
  const HostTensor c({2, 16}, DType::kBFloat16);
  Float8Product(stream_, a.matrix, b.matrix, Tensor(), c);
  for (int64_t i = 0; i < 32; ++i) EXPECT_EQ(std::isnan(c.Get(i)), i < 16) << i;
}

TEST_F(Float8ProductTest, BitsDoNotDependOnThreads) {
  const Sizes size = {130, 112, 800};
  const Operand a(stream_, {size.m, size.k}, kE4M3, 1), b(stream_, {size.n, size.k}, kE4M3, 2);
  const HostTensor one({size.m, size.n}, DType::kFloat32), four({size.m, size.n}, DType::kFloat32);
  ThreadPool single(1), many(4);
  Float8Product(Stream::Cpu(&single), a.matrix, b.matrix, Tensor(), one);
  Float8Product(Stream::Cpu(&many), a.matrix, b.matrix, Tensor(), four);
  EXPECT_EQ(one.Bytes(), four.Bytes());
}

TEST_F(Float8ProductTest, ASteadyStepAllocatesNothing) {
  const Operand a(stream_, {33, 64}, kE4M3, 1), b(stream_, {48, 64}, kE4M3, 2);
  const HostTensor c({33, 48}, DType::kBFloat16), dw({33, 48}, DType::kFloat32);
  const auto step = [&] {
    Float8Product(stream_, a.matrix, b.matrix, Tensor(), c);
    AddFloat8Product(stream_, a.matrix, b.matrix, dw);
  };
  step();
  step();
  const int64_t before = AllocationCount();
  step();
  EXPECT_EQ(AllocationCount(), before);
}

}  // namespace
}  // namespace megatron::ops
