#include "megatron/ops/linear.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/allocation_counter.h"
#include "megatron/ops/finite_difference.h"
#include "megatron/ops/host_tensor.h"
#include "megatron/ops/tolerances.h"

namespace megatron::ops {
namespace {

struct Sizes {
  int64_t tokens, in, out;
};
// Sizes below, at and just above those of panels, blocks of K and groups.
const Sizes kSizes[] = {{1, 1, 1},      {1, 17, 33},   {3, 33, 17},   {14, 384, 32},
                        {15, 385, 31},  {33, 16, 100}, {113, 40, 65}, {97, 800, 130},
                        {130, 97, 800}, {800, 130, 97}};
const DType kDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
const Activation kActivations[] = {
    Activation::kNone,        Activation::kGeluTanh,  Activation::kGeluErf,
    Activation::kSquaredRelu, Activation::kTanh,      Activation::kRelu,
    Activation::kSilu,        Activation::kQuickGelu, Activation::kSigmoid};

double Activate(Activation activation, double x) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::kGeluErf:
      return 0.5 * x * (1 + std::erf(x / std::sqrt(2)));
    case Activation::kSquaredRelu:
      return x > 0 ? x * x : 0;
    case Activation::kTanh:
      return std::tanh(x);
    case Activation::kRelu:
      return std::max(x, 0.0);
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kQuickGelu:
      return x / (1 + std::exp(-1.702 * x));
    case Activation::kSigmoid:
      return 1 / (1 + std::exp(-x));
  }
  return NAN;
}

double Slope(Activation activation, double x) {
  const double step = 1e-5;
  return (Activate(activation, x + step) - Activate(activation, x - step)) / (2 * step);
}

// c[m, n] = sum over k of a[m * am + k * ak] b[n * bn + k * bk].
struct Strides {
  int64_t m, k, n;
};
std::vector<double> Product(const std::vector<double>& a, int64_t am, int64_t ak,
                            const std::vector<double>& b, int64_t bk, int64_t bn,
                            const Strides& size) {
  std::vector<double> c(size.m * size.n);
  for (int64_t m = 0; m < size.m; ++m) {
    for (int64_t k = 0; k < size.k; ++k) {
      for (int64_t n = 0; n < size.n; ++n)
        c[m * size.n + n] += a[m * am + k * ak] * b[k * bk + n * bn];
    }
  }
  return c;
}

std::vector<double> Forward(const HostTensor& x, const HostTensor& w, const HostTensor& bias,
                            const Sizes& size) {
  std::vector<double> y =
      Product(x.Values(), size.in, 1, w.Values(), 1, size.in, {size.tokens, size.in, size.out});
  for (int64_t i = 0; i < size.tokens * size.out; ++i) y[i] += bias.Get(i % size.out);
  return y;
}

std::vector<double> Zip(double (*f)(Activation, double), Activation activation,
                        const std::vector<double>& x) {
  std::vector<double> y;
  for (double value : x) y.push_back(f(activation, value));
  return y;
}

class LinearTest : public ::testing::Test {
 protected:
  ThreadPool pool_{2};
  Stream stream_ = Stream::Cpu(&pool_);
};

TEST_F(LinearTest, ForwardIsTheProductPlusTheBias) {
  for (DType dtype : kDTypes) {
    for (const Sizes& size : kSizes) {
      SCOPED_TRACE(::testing::Message()
                   << dtype << " " << size.tokens << " " << size.in << " " << size.out);
      const HostTensor x = HostTensor::Normal({size.tokens, size.in}, dtype, 1);
      const HostTensor w = HostTensor::Normal({size.out, size.in}, dtype, 2);
      const HostTensor bias = HostTensor::Normal({size.out}, dtype, 3);
      const HostTensor y({size.tokens, size.out}, dtype);
      LinearForward(stream_, x, w, bias, y);
      ExpectNear(y, Forward(x, w, bias, size), OpTolerance(dtype));
      LinearForward(stream_, x, w, Tensor(), y);
      ExpectNear(y, Forward(x, w, HostTensor({size.out}, dtype), size), OpTolerance(dtype));
    }
  }
}

TEST_F(LinearTest, FusedActivationIsThatOfTheStoredSum) {
  for (DType dtype : kDTypes) {
    for (Activation activation : kActivations) {
      const Sizes size = {33, 400, 65};
      const HostTensor x = HostTensor::Normal({size.tokens, size.in}, dtype, 1);
      HostTensor w = HostTensor::Normal({size.out, size.in}, dtype, 2);
      for (int64_t i = 0; i < w.numel(); ++i) w.Set(i, w.Get(i) / 20);  // sums of about one
      const HostTensor bias = HostTensor::Normal({size.out}, dtype, 3);
      const HostTensor pre({size.tokens, size.out}, dtype), y({size.tokens, size.out}, dtype);
      const HostTensor plain({size.tokens, size.out}, dtype);
      LinearActivationForward(stream_, activation, x, w, bias, pre, y);
      LinearForward(stream_, x, w, bias, plain);
      EXPECT_EQ(pre.Bytes(), plain.Bytes());
      ExpectNear(y, Zip(Activate, activation, pre.Values()), OpTolerance(dtype));
    }
  }
}

TEST_F(LinearTest, BackwardInputIsTheProductWithTheWeights) {
  for (DType dtype : kDTypes) {
    for (const Sizes& size : kSizes) {
      SCOPED_TRACE(::testing::Message()
                   << dtype << " " << size.tokens << " " << size.in << " " << size.out);
      const HostTensor dy = HostTensor::Normal({size.tokens, size.out}, dtype, 4);
      const HostTensor w = HostTensor::Normal({size.out, size.in}, dtype, 2);
      const HostTensor dx({size.tokens, size.in}, dtype);
      LinearBackwardInput(stream_, dy, w, dx);
      ExpectNear(dx,
                 Product(dy.Values(), size.out, 1, w.Values(), size.in, 1,
                         {size.tokens, size.out, size.in}),
                 OpTolerance(dtype));
    }
  }
}

TEST_F(LinearTest, BackwardInputMultipliesByTheSlope) {
  for (DType dtype : kDTypes) {
    for (Activation activation : kActivations) {
      const Sizes size = {33, 65, 400};
      const HostTensor dy = HostTensor::Normal({size.tokens, size.out}, dtype, 4);
      const HostTensor w = HostTensor::Normal({size.out, size.in}, dtype, 2);
      const HostTensor pre = HostTensor::Normal({size.tokens, size.in}, dtype, 5);
      const HostTensor dx({size.tokens, size.in}, dtype);
      LinearActivationBackwardInput(stream_, activation, dy, w, pre, dx, Tensor());
      std::vector<double> want = Product(dy.Values(), size.out, 1, w.Values(), size.in, 1,
                                         {size.tokens, size.out, size.in});
      const std::vector<double> slope = Zip(Slope, activation, pre.Values());
      for (size_t i = 0; i < want.size(); ++i) want[i] *= slope[i];
      ExpectNear(dx, want, OpTolerance(dtype));
    }
  }
}

TEST_F(LinearTest, BackwardWeightAccumulatesInFp32) {
  for (DType dtype : kDTypes) {
    for (const Sizes& size : kSizes) {
      SCOPED_TRACE(::testing::Message()
                   << dtype << " " << size.tokens << " " << size.in << " " << size.out);
      const HostTensor dy = HostTensor::Normal({size.tokens, size.out}, dtype, 4);
      const HostTensor x = HostTensor::Normal({size.tokens, size.in}, dtype, 1);
      const HostTensor dw = HostTensor::Normal({size.out, size.in}, DType::kFloat32, 6);
      const HostTensor dbias = HostTensor::Normal({size.out}, DType::kFloat32, 7);
      std::vector<double> want_dw = Product(dy.Values(), 1, size.out, x.Values(), size.in, 1,
                                            {size.out, size.tokens, size.in});
      std::vector<double> want_dbias = dbias.Values();
      for (int64_t i = 0; i < dw.numel(); ++i) want_dw[i] += dw.Get(i);
      for (int64_t i = 0; i < dy.numel(); ++i) want_dbias[i % size.out] += dy.Get(i);
      LinearBackwardWeight(stream_, dy, x, dw, dbias);
      ExpectNear(dw, want_dw, OpTolerance(DType::kFloat32));
      ExpectNear(dbias, want_dbias, OpTolerance(DType::kFloat32));
    }
  }
}

TEST_F(LinearTest, BackwardIsTheDerivativeOfForward) {
  for (Activation activation : kActivations) {
    HostTensor x = HostTensor::Normal({5, 7}, DType::kFloat32, 1);
    HostTensor w = HostTensor::Normal({3, 7}, DType::kFloat32, 2);
    HostTensor bias = HostTensor::Normal({3}, DType::kFloat32, 3);
    const HostTensor after({5, 7}, DType::kFloat32), y({5, 3}, DType::kFloat32);
    const HostTensor identity = [] {
      HostTensor out({7, 7}, DType::kFloat32);
      for (int i = 0; i < 7; ++i) out.Set(i * 8, 1);
      return out;
    }();
    const HostTensor pre({5, 7}, DType::kFloat32);
    const HostTensor dy = HostTensor::Normal({5, 3}, DType::kFloat32, 4);
    // y = activation(x) w^T + bias.
    const auto loss = [&] {
      LinearActivationForward(stream_, activation, x, identity, Tensor(), pre, after);
      LinearForward(stream_, after, w, bias, y);
      return Dot(y, dy);
    };
    loss();
    const HostTensor dx({5, 7}, DType::kFloat32), dw({3, 7}, DType::kFloat32),
        dbias({3}, DType::kFloat32);
    LinearActivationBackwardInput(stream_, activation, dy, w, pre, dx, Tensor());
    LinearBackwardWeight(stream_, dy, after, dw, dbias);
    ExpectNear(dx, FiniteDifference(&x, loss), kFiniteDifferenceTolerance);
    ExpectNear(dw, FiniteDifference(&w, loss), kFiniteDifferenceTolerance);
    ExpectNear(dbias, FiniteDifference(&bias, loss), kFiniteDifferenceTolerance);
  }
}

TEST_F(LinearTest, BitsDoNotDependOnTheNumberOfThreads) {
  for (const Sizes& size : {Sizes{113, 800, 130}, Sizes{1, 800, 1000}, Sizes{700, 33, 65}}) {
    const HostTensor x = HostTensor::Normal({size.tokens, size.in}, DType::kBFloat16, 1);
    const HostTensor w = HostTensor::Normal({size.out, size.in}, DType::kBFloat16, 2);
    const HostTensor dy = HostTensor::Normal({size.tokens, size.out}, DType::kBFloat16, 4);
    std::vector<std::vector<char>> first;
    for (int threads : {1, 2, 3, 5, 8}) {
      ThreadPool pool(threads);
      const Stream stream = Stream::Cpu(&pool);
      const HostTensor y({size.tokens, size.out}, DType::kBFloat16);
      const HostTensor dx({size.tokens, size.in}, DType::kBFloat16);
      const HostTensor dw({size.out, size.in}, DType::kFloat32), dbias({size.out}, DType::kFloat32);
      LinearForward(stream, x, w, Tensor(), y);
      LinearBackwardInput(stream, dy, w, dx);
      LinearBackwardWeight(stream, dy, x, dw, dbias);
      const std::vector<std::vector<char>> bytes = {y.Bytes(), dx.Bytes(), dw.Bytes(),
                                                    dbias.Bytes()};
      if (first.empty()) first = bytes;
      EXPECT_EQ(bytes, first) << threads << " threads";
    }
  }
}

TEST_F(LinearTest, ATokenAloneGetsTheBitsItGetsInABatch) {
  for (DType dtype : kDTypes) {
    const HostTensor x = HostTensor::Normal({100, 800}, dtype, 1);
    const HostTensor w = HostTensor::Normal({70, 800}, dtype, 2);
    const HostTensor batch({100, 70}, dtype), alone({1, 70}, dtype);
    LinearForward(stream_, x, w, Tensor(), batch);
    for (int64_t t = 0; t < 100; ++t) {
      LinearForward(stream_, x.tensor().Slice(0, t, t + 1), w, Tensor(), alone);
      for (int64_t o = 0; o < 70; ++o) {
        ASSERT_EQ(alone.Get(o), batch.Get(t * 70 + o)) << dtype << " " << t << " " << o;
      }
    }
  }
}

TEST_F(LinearTest, TakesRowsWithAStride) {
  for (DType dtype : kDTypes) {
    SCOPED_TRACE(dtype);
    const HostTensor wide_x = HostTensor::Normal({9, 50}, dtype, 1);
    const HostTensor w = HostTensor::Normal({20, 33}, dtype, 2);
    HostTensor x({9, 33}, dtype);
    for (int64_t i = 0; i < x.numel(); ++i) x.Set(i, wide_x.Get(i / 33 * 50 + 7 + i % 33));
    const HostTensor y({9, 20}, dtype), wide_y({9, 64}, dtype);
    const Tensor strided_x = wide_x.tensor().Slice(1, 7, 40),
                 strided_y = wide_y.tensor().Slice(1, 11, 31);
    LinearForward(stream_, x, w, Tensor(), y);
    LinearForward(stream_, strided_x, w, Tensor(), strided_y);
    for (int64_t i = 0; i < wide_y.numel(); ++i) {
      const int64_t column = i % 64 - 11;
      const bool inside = column >= 0 && column < 20;
      ASSERT_EQ(wide_y.Get(i), inside ? y.Get(i / 64 * 20 + column) : 0) << i;
    }
    const HostTensor dw({20, 33}, DType::kFloat32), strided_dw({20, 33}, DType::kFloat32);
    LinearBackwardWeight(stream_, y, x, dw, Tensor());
    LinearBackwardWeight(stream_, strided_y, strided_x, strided_dw, Tensor());
    EXPECT_EQ(strided_dw.Bytes(), dw.Bytes());
  }
}

TEST_F(LinearTest, NoInputFeaturesGiveTheBias) {
  const HostTensor x({2, 0}, DType::kFloat32), w({3, 0}, DType::kFloat32);
  const HostTensor bias = HostTensor::Of({3}, DType::kFloat32, {1, 2, 3});
  const HostTensor y({2, 3}, DType::kFloat32);
  LinearForward(stream_, x, w, bias, y);
  EXPECT_EQ(y.Values(), (std::vector<double>{1, 2, 3, 1, 2, 3}));
}

TEST_F(LinearTest, ASecondCallAllocatesNothing) {
  const HostTensor x = HostTensor::Normal({100, 800}, DType::kFloat32, 1);
  const HostTensor w = HostTensor::Normal({70, 800}, DType::kFloat32, 2);
  const HostTensor y({100, 70}, DType::kFloat32), dw({70, 800}, DType::kFloat32);
  const auto step = [&] {
    LinearForward(stream_, x, w, Tensor(), y);
    LinearBackwardInput(stream_, y, w, x);
    LinearBackwardWeight(stream_, y, x, dw, Tensor());
  };
  step();
  const int64_t before = AllocationCount();
  step();
  EXPECT_EQ(AllocationCount(), before);
}

TEST(LinearMetaTest, ChecksShapesAndDoesNothing) {
  const Device meta = {DeviceType::kMeta, 0};
  const Tensor x(nullptr, DType::kBFloat16, {8, 16}, meta),
      w(nullptr, DType::kBFloat16, {4, 16}, meta);
  const Tensor y(nullptr, DType::kBFloat16, {8, 4}, meta),
      wrong(nullptr, DType::kBFloat16, {8, 5}, meta);
  LinearForward(Stream::Meta(), x, w, Tensor(), y);
  EXPECT_DEATH(LinearForward(Stream::Meta(), x, w, Tensor(), wrong), "\\[8, 5\\]");
}

}  // namespace
}  // namespace megatron::ops
