#include "megatron/ops/dropout.h"

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
constexpr int64_t kTokens = 5;

// A dropout over tokens of samples 7 and 2^32 + 8.
struct Case {
  HostTensor sample =
      HostTensor::Of({kTokens}, DType::kInt64, {7, 7, 7, 4294967304.0, 4294967304.0});
  HostTensor position = HostTensor::Of({kTokens}, DType::kInt32, {0, 1, 2, 0, 1});
  Dropout dropout;

  explicit Case(float probability, int64_t first_column = 0) {
    dropout.probability = probability;
    dropout.key = {0x1234u, 0x5678u};
    dropout.sample_T = sample;
    dropout.position_T = position;
    dropout.first_column = first_column;
  }

  // The factor of element (token, column), by the definition in the header.
  double Scale(int64_t token, int64_t column) const {
    if (dropout.probability == 0) return 1;
    const uint64_t ordinal = static_cast<uint64_t>(sample.Get(token));
    const uint64_t c = static_cast<uint64_t>(dropout.first_column + column);
    const PhiloxBlock block = Philox(
        dropout.key, {{static_cast<uint32_t>(ordinal), static_cast<uint32_t>(ordinal >> 32),
                       static_cast<uint32_t>(position.Get(token)), static_cast<uint32_t>(c / 4)}});
    const bool kept =
        block.word[c % 4] >= std::floor(static_cast<double>(dropout.probability) * 4294967296.0);
    return kept ? 1 / (1 - static_cast<double>(dropout.probability)) : 0;
  }
};

class DropoutTest : public ::testing::Test {
 protected:
  ThreadPool pool_{2};
  Stream stream_ = Stream::Cpu(&pool_);
};

TEST_F(DropoutTest, ForwardIsTheFormulaForAnyPartOfTheRow) {
  for (DType dtype : kDTypes) {
    for (float probability : {0.0f, 0.1f, 0.75f}) {
      for (int64_t columns : {1, 3, 17, 33, 700}) {
        for (int64_t first : {0, 4, 7}) {
          const Case c(probability, first);
          const HostTensor x = HostTensor::Normal({kTokens, columns}, dtype, 1);
          const HostTensor bias = HostTensor::Normal({columns}, dtype, 2);
          const HostTensor residual = HostTensor::Normal({kTokens, columns}, dtype, 3);
          const HostTensor out({kTokens, columns}, dtype), bare({kTokens, columns}, dtype);
          std::vector<double> want, want_bare;
          for (int64_t i = 0; i < x.numel(); ++i) {
            const double scale = c.Scale(i / columns, i % columns);
            want.push_back(residual.Get(i) + scale * (x.Get(i) + bias.Get(i % columns)));
            want_bare.push_back(scale * x.Get(i));
          }
          BiasDropoutAdd(stream_, c.dropout, x, bias, residual, out);
          ExpectNear(out, want, OpTolerance(dtype));
          BiasDropoutAdd(stream_, c.dropout, x, Tensor(), Tensor(), bare);
          ExpectNear(bare, want_bare, OpTolerance(dtype));
        }
      }
    }
  }
}

TEST_F(DropoutTest, JitterScalesByTheElementsOwnNumber) {
  constexpr float kEps = 0.25f;
  for (int64_t columns : {1, 6, 64}) {
    const Case c(0);
    const HostTensor x = HostTensor::Normal({kTokens, columns}, DType::kFloat32, 1);
    const HostTensor out({kTokens, columns}, DType::kFloat32);
    Jitter(stream_, kEps, c.dropout, x, out);
    for (int64_t i = 0; i < x.numel(); ++i) {
      const uint64_t ordinal = static_cast<uint64_t>(c.sample.Get(i / columns));
      const uint32_t column = static_cast<uint32_t>(i % columns);
      const PhiloxBlock block = Philox(
          c.dropout.key, {{static_cast<uint32_t>(ordinal), static_cast<uint32_t>(ordinal >> 32),
                           static_cast<uint32_t>(c.position.Get(i / columns)), column / 4}});
      const double u = (static_cast<double>(block.word[column % 4] >> 8) + 1) / 16777216;
      EXPECT_NEAR(out.Get(i), x.Get(i) * (1 + kEps * (2 * u - 1)), 1e-6);
    }
  }
}

TEST_F(DropoutTest, JitterIsAsOftenUpAsDownAndStaysWithinItsBounds) {
  const Case c(0);
  const int64_t columns = 20000;
  HostTensor x({kTokens, columns}, DType::kFloat32);
  for (int64_t i = 0; i < x.numel(); ++i) x.Set(i, 1);
  Jitter(stream_, 0.5f, c.dropout, x, x);
  double sum = 0, least = 1, most = 1;
  for (int64_t i = 0; i < x.numel(); ++i) {
    sum += x.Get(i);
    least = std::min(least, x.Get(i));
    most = std::max(most, x.Get(i));
  }
  EXPECT_NEAR(sum / static_cast<double>(x.numel()), 1, 5e-3);
  EXPECT_GE(least, 0.5);
  EXPECT_LE(most, 1.5);
  EXPECT_LT(least, 0.501);
  EXPECT_GT(most, 1.499);
}

TEST_F(DropoutTest, KeepsTheShareThatTheProbabilitySays) {
  const int64_t columns = 20000;
  const Case c(0.3f);
  const HostTensor ones = HostTensor::Of({kTokens, columns}, DType::kFloat32,
                                         std::vector<double>(kTokens * columns, 1));
  const HostTensor out({kTokens, columns}, DType::kFloat32);
  BiasDropoutAdd(stream_, c.dropout, ones, Tensor(), Tensor(), out);
  double kept = 0;
  for (double value : out.Values()) kept += value != 0;
  const double count = kTokens * columns;
  EXPECT_NEAR(kept / count, 0.7, 5 * std::sqrt(0.3 * 0.7 / count));
}

TEST_F(DropoutTest, ARowCutInTwoHasTheMaskOfTheWhole) {
  const HostTensor x = HostTensor::Normal({kTokens, 100}, DType::kFloat32, 1);
  const HostTensor whole({kTokens, 100}, DType::kFloat32);
  BiasDropoutAdd(stream_, Case(0.5f).dropout, x, Tensor(), Tensor(), whole);
  const HostTensor left({kTokens, 100}, DType::kFloat32);
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 37}, {37, 100}}) {
    const Case c(0.5f, begin);
    HostTensor part({kTokens, end - begin}, DType::kFloat32);
    for (int64_t i = 0; i < part.numel(); ++i) {
      part.Set(i, x.Get(i / (end - begin) * 100 + begin + i % (end - begin)));
    }
    BiasDropoutAdd(stream_, c.dropout, part, Tensor(), Tensor(), part);
    for (int64_t i = 0; i < part.numel(); ++i) {
      ASSERT_EQ(part.Get(i), whole.Get(i / (end - begin) * 100 + begin + i % (end - begin)));
    }
  }
}

TEST_F(DropoutTest, OutputMayReplaceTheResidual) {
  const Case c(0.1f);
  const HostTensor x = HostTensor::Normal({kTokens, 33}, DType::kFloat32, 1);
  const HostTensor residual = HostTensor::Normal({kTokens, 33}, DType::kFloat32, 3);
  const HostTensor out({kTokens, 33}, DType::kFloat32);
  BiasDropoutAdd(stream_, c.dropout, x, Tensor(), residual, out);
  BiasDropoutAdd(stream_, c.dropout, x, Tensor(), residual, residual);
  EXPECT_EQ(residual.Bytes(), out.Bytes());
}

TEST_F(DropoutTest, BackwardIsTheDerivativeOfForward) {
  for (float probability : {0.0f, 0.4f}) {
    const Case c(probability);
    HostTensor x = HostTensor::Normal({kTokens, 33}, DType::kFloat32, 1);
    HostTensor bias = HostTensor::Normal({33}, DType::kFloat32, 2);
    const HostTensor dy = HostTensor::Normal({kTokens, 33}, DType::kFloat32, 4);
    const HostTensor y({kTokens, 33}, DType::kFloat32), dx({kTokens, 33}, DType::kFloat32);
    const HostTensor dbias({33}, DType::kFloat32);
    DropoutBackward(stream_, c.dropout, dy, dx, dbias);
    const auto loss = [&] {
      BiasDropoutAdd(stream_, c.dropout, x, bias, Tensor(), y);
      return Dot(y, dy);
    };
    ExpectNear(dx, FiniteDifference(&x, loss), kFiniteDifferenceTolerance);
    ExpectNear(dbias, FiniteDifference(&bias, loss), kFiniteDifferenceTolerance);
  }
}

TEST_F(DropoutTest, BackwardAddsUpTheBiasGradientOfManyTokens) {
  for (DType dtype : kDTypes) {
    const int64_t tokens = 2500, columns = 33;
    const HostTensor dy = HostTensor::Normal({tokens, columns}, dtype, 4);
    const HostTensor dbias = HostTensor::Normal({columns}, DType::kFloat32, 5);
    std::vector<double> want = dbias.Values();
    for (int64_t i = 0; i < dy.numel(); ++i) want[i % columns] += dy.Get(i);
    DropoutBackward(stream_, Dropout(), dy, dy, dbias);
    ExpectNear(dbias, want, OpTolerance(DType::kFloat32));
  }
}

TEST_F(DropoutTest, BitsDoNotDependOnTheNumberOfThreads) {
  const int64_t tokens = 1000, columns = 130;
  HostTensor sample({tokens}, DType::kInt64), position({tokens}, DType::kInt32);
  for (int64_t t = 0; t < tokens; ++t) position.Set(t, static_cast<double>(t));
  Case c(0.1f);
  c.dropout.sample_T = sample;
  c.dropout.position_T = position;
  const HostTensor dy = HostTensor::Normal({tokens, columns}, DType::kFloat32, 4);
  std::vector<char> first_dx, first_dbias;
  for (int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    const HostTensor dx({tokens, columns}, DType::kFloat32), dbias({columns}, DType::kFloat32);
    DropoutBackward(Stream::Cpu(&pool), c.dropout, dy, dx, dbias);
    if (first_dx.empty()) {
      first_dx = dx.Bytes();
      first_dbias = dbias.Bytes();
    }
    EXPECT_EQ(dx.Bytes(), first_dx) << threads;
    EXPECT_EQ(dbias.Bytes(), first_dbias) << threads;
  }
}

TEST_F(DropoutTest, ASecondCallAllocatesNothing) {
  const Case c(0.1f);
  const HostTensor dy = HostTensor::Normal({kTokens, 3000}, DType::kFloat32, 4);
  const HostTensor dbias({3000}, DType::kFloat32);
  const auto step = [&] {
    BiasDropoutAdd(stream_, c.dropout, dy, Tensor(), Tensor(), dy);
    DropoutBackward(stream_, c.dropout, dy, dy, dbias);
  };
  step();
  const int64_t before = AllocationCount();
  step();
  EXPECT_EQ(AllocationCount(), before);
}

}  // namespace
}  // namespace megatron::ops
