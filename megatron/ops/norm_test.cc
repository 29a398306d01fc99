#include "megatron/ops/norm.h"

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

const DType kDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

std::vector<Norm> AllNorms() {
  std::vector<Norm> out;
  for (Norm::Kind kind : {Norm::kLayerNorm, Norm::kRmsNorm}) {
    for (bool zero_centered : {false, true}) out.push_back({kind, 1e-5f, zero_centered});
  }
  out.push_back({Norm::kLayerNorm, 1e-5f, /*zero_centered_gamma=*/false, /*bias=*/false});
  return out;
}

bool HasBeta(const Norm& norm) { return norm.kind == Norm::kLayerNorm && norm.bias; }

// A norm's operands over [rows, columns].
struct Operands {
  int64_t rows, columns;
  HostTensor x, gamma, beta, mean, rstd, y;

  Operands(int64_t rows, int64_t columns, DType dtype)
      : rows(rows),
        columns(columns),
        x(HostTensor::Normal({rows, columns}, dtype, 1)),
        gamma(HostTensor::Normal({columns}, dtype, 2)),
        beta(HostTensor::Normal({columns}, dtype, 3)),
        mean({rows}, DType::kFloat32),
        rstd({rows}, DType::kFloat32),
        y({rows, columns}, dtype) {}

  NormTensors tensors(const Norm& norm) const {
    if (norm.kind == Norm::kRmsNorm) return {gamma, Tensor(), Tensor(), rstd};
    return {gamma, HasBeta(norm) ? beta.tensor() : Tensor(), mean, rstd};
  }

  std::vector<double> Want(const Norm& norm) const {
    const bool centered = norm.kind == Norm::kLayerNorm;
    std::vector<double> out;
    for (int64_t row = 0; row < rows; ++row) {
      double average = 0, variance = 0;
      for (int64_t i = 0; i < columns; ++i) average += x.Get(row * columns + i) / columns;
      if (!centered) average = 0;
      for (int64_t i = 0; i < columns; ++i) {
        variance += std::pow(x.Get(row * columns + i) - average, 2) / columns;
      }
      for (int64_t i = 0; i < columns; ++i) {
        out.push_back((x.Get(row * columns + i) - average) / std::sqrt(variance + norm.epsilon) *
                          (gamma.Get(i) + (norm.zero_centered_gamma ? 1 : 0)) +
                      (HasBeta(norm) ? beta.Get(i) : 0));
      }
    }
    return out;
  }
};

class NormTest : public ::testing::Test {
 protected:
  ThreadPool pool_{2};
  Stream stream_ = Stream::Cpu(&pool_);
};

TEST_F(NormTest, ForwardIsTheFormula) {
  for (DType dtype : kDTypes) {
    for (const Norm& norm : AllNorms()) {
      for (int64_t columns : {1, 3, 17, 33, 128, 1000}) {
        const Operands o(3, columns, dtype);
        NormForward(stream_, norm, o.x, o.tensors(norm), o.y);
        ExpectNear(o.y, o.Want(norm), OpTolerance(dtype));
      }
    }
  }
}

TEST_F(NormTest, LayerNormSurvivesALargeMean) {
  Operands o(2, 500, DType::kFloat32);
  for (int64_t i = 0; i < o.x.numel(); ++i) o.x.Set(i, o.x.Get(i) + 1000);
  NormForward(stream_, Norm(), o.x, o.tensors(Norm()), o.y);
  // x itself has a rounding error of 1000 * 2^-24, which Want sees, too; the mean adds a little
  // more.
  ExpectNear(o.y, o.Want(Norm()), 1e-4);
}

TEST_F(NormTest, BackwardIsTheDerivativeOfForward) {
  for (const Norm& norm : AllNorms()) {
    for (int64_t columns : {3, 17, 70}) {
      Operands o(4, columns, DType::kFloat32);
      const Shape shape = {4, columns};
      const HostTensor dy = HostTensor::Normal(shape, DType::kFloat32, 4);
      const HostTensor dresidual = HostTensor::Normal(shape, DType::kFloat32, 5);
      const HostTensor dx(shape, DType::kFloat32);
      const HostTensor dgamma({columns}, DType::kFloat32), dbeta({columns}, DType::kFloat32);
      const bool has_beta = HasBeta(norm);
      const auto loss = [&] {  // the norm, and the path around it
        NormForward(stream_, norm, o.x, o.tensors(norm), o.y);
        return Dot(o.y, dy) + Dot(o.x, dresidual);
      };
      loss();
      NormBackward(stream_, norm, dy, o.x, o.tensors(norm), dresidual, dx, dgamma,
                   has_beta ? dbeta.tensor() : Tensor());
      ExpectNear(dgamma, FiniteDifference(&o.gamma, loss), kFiniteDifferenceTolerance);
      if (has_beta) ExpectNear(dbeta, FiniteDifference(&o.beta, loss), kFiniteDifferenceTolerance);
      ExpectNear(dx, FiniteDifference(&o.x, loss, 1e-3), kFiniteDifferenceTolerance);
    }
  }
}

TEST_F(NormTest, SixteenBitBackwardFollowsFp32) {
  for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const Norm& norm : AllNorms()) {
      const Operands o(40, 33, dtype);
      Operands wide(40, 33, DType::kFloat32);
      wide.x = HostTensor::Of({40, 33}, DType::kFloat32, o.x.Values());
      wide.gamma = HostTensor::Of({33}, DType::kFloat32, o.gamma.Values());
      const HostTensor dy = HostTensor::Normal({40, 33}, dtype, 4);
      const HostTensor wide_dy = HostTensor::Of({40, 33}, DType::kFloat32, dy.Values());
      const HostTensor dx({40, 33}, dtype), wide_dx({40, 33}, DType::kFloat32);
      const HostTensor dgamma({33}, DType::kFloat32), wide_dgamma({33}, DType::kFloat32);
      NormForward(stream_, norm, o.x, o.tensors(norm), o.y);
      NormForward(stream_, norm, wide.x, wide.tensors(norm), wide.y);
      EXPECT_EQ(o.rstd.Bytes(), wide.rstd.Bytes());
      NormBackward(stream_, norm, dy, o.x, o.tensors(norm), Tensor(), dx, dgamma, Tensor());
      NormBackward(stream_, norm, wide_dy, wide.x, wide.tensors(norm), Tensor(), wide_dx,
                   wide_dgamma, Tensor());
      ExpectNear(dx, wide_dx.Values(), OpTolerance(dtype));
      EXPECT_EQ(dgamma.Bytes(), wide_dgamma.Bytes());
    }
  }
}

TEST_F(NormTest, TheSumsOfDxAreThoseOfTheBiasAlone) {
  const Operands o(700, 33, DType::kBFloat16);
  NormForward(stream_, Norm(), o.x, o.tensors(Norm()), o.y);
  const HostTensor dy = HostTensor::Normal({700, 33}, DType::kBFloat16, 4);
  const HostTensor dx({700, 33}, DType::kBFloat16);
  const HostTensor dgamma({33}, DType::kFloat32), dbeta({33}, DType::kFloat32);
  const HostTensor dbias = HostTensor::Normal({33}, DType::kFloat32, 5);
  const HostTensor want = HostTensor::Normal({33}, DType::kFloat32, 5);
  NormBackward(stream_, Norm(), dy, o.x, o.tensors(Norm()), Tensor(), dx, dgamma, dbeta, dbias);
  DropoutBackward(stream_, Dropout(), dx, dx, want);
  EXPECT_EQ(dbias.Bytes(), want.Bytes());
}

TEST_F(NormTest, BackwardAccumulatesParameterGradientsAndMayOverwriteItsInput) {
  const Operands o(700, 33, DType::kFloat32);
  const Norm norm;
  NormForward(stream_, norm, o.x, o.tensors(norm), o.y);
  const HostTensor dy = HostTensor::Normal({700, 33}, DType::kFloat32, 4);
  const HostTensor dx({700, 33}, DType::kFloat32);
  const HostTensor dgamma({33}, DType::kFloat32), dbeta({33}, DType::kFloat32);
  NormBackward(stream_, norm, dy, o.x, o.tensors(norm), Tensor(), dx, dgamma, dbeta);
  std::vector<double> want_dgamma(33), want_dbeta(33);
  for (int64_t i = 0; i < dy.numel(); ++i) {
    const int64_t row = i / 33;
    want_dbeta[i % 33] += dy.Get(i);
    want_dgamma[i % 33] += dy.Get(i) * (o.x.Get(i) - o.mean.Get(row)) * o.rstd.Get(row);
  }
  ExpectNear(dgamma, want_dgamma, OpTolerance(DType::kFloat32));
  ExpectNear(dbeta, want_dbeta, OpTolerance(DType::kFloat32));
  NormBackward(stream_, norm, dy, o.x, o.tensors(norm), Tensor(), dy, Tensor(), dbeta);
  for (double& value : want_dbeta) value *= 2;
  ExpectNear(dbeta, want_dbeta, OpTolerance(DType::kFloat32));
  EXPECT_EQ(dy.Bytes(), dx.Bytes());
}

TEST_F(NormTest, ResidualNormIsBiasDropoutAddThenNorm) {
  for (DType dtype : kDTypes) {
    for (const Norm& norm : AllNorms()) {
      for (float probability : {0.0f, 0.2f}) {
        const Operands o(5, 333, dtype), separate(5, 333, dtype);
        const HostTensor bias = HostTensor::Normal({333}, dtype, 5);
        const HostTensor residual = HostTensor::Normal({5, 333}, dtype, 6);
        const HostTensor sum({5, 333}, dtype), separate_sum({5, 333}, dtype);
        const HostTensor sample = HostTensor::Of({5}, DType::kInt64, {1, 1, 2, 2, 2});
        const HostTensor position = HostTensor::Of({5}, DType::kInt32, {0, 1, 0, 1, 2});
        const Dropout dropout = {probability, {1, 2}, sample, position, 0};
        ResidualNormForward(stream_, norm, dropout, o.x, bias, residual, sum, o.tensors(norm), o.y);
        BiasDropoutAdd(stream_, dropout, o.x, bias, residual, separate_sum);
        NormForward(stream_, norm, separate_sum, separate.tensors(norm), separate.y);
        EXPECT_EQ(sum.Bytes(), separate_sum.Bytes());
        EXPECT_EQ(o.y.Bytes(), separate.y.Bytes());
        EXPECT_EQ(o.mean.Bytes(), separate.mean.Bytes());
        EXPECT_EQ(o.rstd.Bytes(), separate.rstd.Bytes());
      }
    }
  }
}

TEST_F(NormTest, NormalizesHeadsInPlaceInsideAPackedProjection) {
  // [tokens, groups, heads, size] inside rows that hold more.
  const HostTensor packed = HostTensor::Normal({3, 2, 5, 16}, DType::kFloat32, 1);
  const std::vector<double> before = packed.Values();
  const Tensor heads = packed.tensor().Slice(2, 1, 4);
  const HostTensor gamma = HostTensor::Normal({16}, DType::kFloat32, 2);
  const HostTensor rstd({3, 2, 3}, DType::kFloat32), flat_rstd({18}, DType::kFloat32);
  Norm norm;
  norm.kind = Norm::kRmsNorm;
  HostTensor flat({18, 16}, DType::kFloat32);
  const auto place = [](int64_t row) { return (row / 3 * 5 + 1 + row % 3) * 16; };
  for (int64_t i = 0; i < flat.numel(); ++i) flat.Set(i, packed.Get(place(i / 16) + i % 16));
  NormForward(stream_, norm, flat, {gamma, Tensor(), Tensor(), flat_rstd}, flat);
  NormForward(stream_, norm, heads, {gamma, Tensor(), Tensor(), rstd}, heads);
  std::vector<double> want = before;
  for (int64_t i = 0; i < flat.numel(); ++i) want[place(i / 16) + i % 16] = flat.Get(i);
  EXPECT_EQ(packed.Values(), want);
  EXPECT_EQ(rstd.Bytes(), flat_rstd.Bytes());
}

TEST_F(NormTest, BitsDoNotDependOnTheNumberOfThreads) {
  std::vector<std::vector<char>> first;
  for (int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    const Stream stream = Stream::Cpu(&pool);
    const Operands o(1000, 130, DType::kBFloat16);
    const HostTensor dy = HostTensor::Normal({1000, 130}, DType::kBFloat16, 4);
    const HostTensor dgamma({130}, DType::kFloat32), dbeta({130}, DType::kFloat32);
    NormForward(stream, Norm(), o.x, o.tensors(Norm()), o.y);
    NormBackward(stream, Norm(), dy, o.x, o.tensors(Norm()), Tensor(), dy, dgamma, dbeta);
    const std::vector<std::vector<char>> bytes = {o.y.Bytes(), dy.Bytes(), dgamma.Bytes(),
                                                  dbeta.Bytes()};
    if (first.empty()) first = bytes;
    EXPECT_EQ(bytes, first) << threads;
  }
}

TEST_F(NormTest, ASecondCallAllocatesNothing) {
  const Operands o(100, 130, DType::kFloat32);
  const HostTensor dgamma({130}, DType::kFloat32), dbeta({130}, DType::kFloat32);
  const auto step = [&] {
    NormForward(stream_, Norm(), o.x, o.tensors(Norm()), o.y);
    NormBackward(stream_, Norm(), o.y, o.x, o.tensors(Norm()), Tensor(), o.y, dgamma, dbeta);
  };
  step();
  const int64_t before = AllocationCount();
  step();
  EXPECT_EQ(AllocationCount(), before);
}

}  // namespace
}  // namespace megatron::ops
