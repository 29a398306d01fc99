#include "megatron/ops/optimizer.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/host_tensor.h"
#include "megatron/ops/tolerances.h"

namespace megatron::ops {
namespace {

constexpr int64_t kCount = 20001;
// Segments with gaps, as padding leaves them.
const std::vector<OptimizerSegment> kSegments = {
    {0, 1, 1e-2f, 0.1f}, {5, 22, 1e-3f, 0.0f, 4}, {64, 19000, 1e-2f, 0.01f, 0.5f}};

HostTensor Squared(uint32_t seed) {
  HostTensor out = HostTensor::Normal({kCount}, DType::kFloat32, seed);
  for (int64_t i = 0; i < kCount; ++i) out.Set(i, out.Get(i) * out.Get(i));
  return out;
}

class OptimizerTest : public ::testing::Test {
 protected:
  ThreadPool pool_{2};
  Stream stream_ = Stream::Cpu(&pool_);
};

TEST_F(OptimizerTest, AdamWIsTheFormulaInsideTheSegments) {
  for (DType out_dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (int64_t step : {1, 2, 1000}) {
      const HostTensor grad = HostTensor::Normal({kCount}, DType::kFloat32, 1);
      const HostTensor m = HostTensor::Normal({kCount}, DType::kFloat32, 2), v = Squared(3);
      const HostTensor w = HostTensor::Normal({kCount}, DType::kFloat32, 4);
      const HostTensor out({kCount}, out_dtype);
      std::vector<double> want_m = m.Values(), want_v = v.Values(), want_w = w.Values();
      std::vector<double> want_out(kCount);
      AdamWOptions options;
      options.beta2 = 0.95;
      options.step = step;
      options.grad_scale = 0.25f;
      options.epsilon = 0.125f;
      const double c1 = 1 - std::pow(0.9, step), c2 = 1 - std::pow(0.95, step);
      for (const OptimizerSegment& segment : kSegments) {
        for (int64_t i = segment.begin; i < segment.end; ++i) {
          const double g = 0.25 * grad.Get(i);
          want_m[i] = 0.9 * want_m[i] + 0.1 * g;
          want_v[i] = 0.95 * want_v[i] + 0.05 * g * g;
          want_w[i] -= segment.lr * segment.weight_decay * want_w[i] +
                       segment.lr * (want_m[i] / c1) /
                           (std::sqrt(want_v[i] / c2) + 0.125 * segment.epsilon_factor);
          want_out[i] = want_w[i];
        }
      }
      AdamWUpdate(stream_, options, kSegments, grad, m, v, w, out);
      ExpectNear(m, want_m, OpTolerance(DType::kFloat32));
      ExpectNear(v, want_v, OpTolerance(DType::kFloat32));
      ExpectNear(w, want_w, OpTolerance(DType::kFloat32));
      ExpectNear(out, want_out, OpTolerance(out_dtype));
    }
  }
}

TEST_F(OptimizerTest, TheCopyIsTheRoundedMaster) {
  const HostTensor grad = HostTensor::Normal({kCount}, DType::kFloat32, 1);
  const HostTensor m({kCount}, DType::kFloat32), v({kCount}, DType::kFloat32);
  const HostTensor w = HostTensor::Normal({kCount}, DType::kFloat32, 4);
  const HostTensor out({kCount}, DType::kBFloat16);
  const std::vector<OptimizerSegment> all = {{0, kCount, 1e-2f, 0.1f}};
  AdamWUpdate(stream_, AdamWOptions(), all, grad, m, v, w, out);
  EXPECT_EQ(out.Bytes(), HostTensor::Of({kCount}, DType::kBFloat16, w.Values()).Bytes());
}

TEST_F(OptimizerTest, SgdIsTheFormulaInsideTheSegments) {
  for (float momentum : {0.0f, 0.9f}) {
    const HostTensor grad = HostTensor::Normal({kCount}, DType::kFloat32, 1);
    const HostTensor buffer = HostTensor::Normal({kCount}, DType::kFloat32, 2);
    const HostTensor w = HostTensor::Normal({kCount}, DType::kFloat32, 4);
    std::vector<double> want_buffer = buffer.Values(), want_w = w.Values();
    for (const OptimizerSegment& segment : kSegments) {
      for (int64_t i = segment.begin; i < segment.end; ++i) {
        const double g = 0.5 * grad.Get(i) + segment.weight_decay * want_w[i];
        const double update = momentum == 0 ? g : momentum * want_buffer[i] + g;
        if (momentum != 0) want_buffer[i] = update;
        want_w[i] -= segment.lr * update;
      }
    }
    SgdUpdate(stream_, {momentum, 0.5f}, kSegments, grad,
              momentum == 0 ? Tensor() : buffer.tensor(), w, Tensor());
    ExpectNear(buffer, want_buffer, OpTolerance(DType::kFloat32));
    ExpectNear(w, want_w, OpTolerance(DType::kFloat32));
  }
}

TEST_F(OptimizerTest, LionIsTheFormulaInsideTheSegments) {
  for (DType out_dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    HostTensor grad = HostTensor::Normal({kCount}, DType::kFloat32, 1);
    HostTensor m = HostTensor::Normal({kCount}, DType::kFloat32, 2);
    const HostTensor w = HostTensor::Normal({kCount}, DType::kFloat32, 4);
    const HostTensor out({kCount}, out_dtype);
    for (int64_t i = 0; i < kCount; i += 10) {  // sign(0) is 0
      grad.Set(i, 0);
      m.Set(i, 0);
    }
    std::vector<double> want_m = m.Values(), want_w = w.Values(), want_out(kCount);
    LionOptions options;
    options.beta1 = 0.8;
    options.beta2 = 0.95;
    options.grad_scale = 0.25f;
    for (const OptimizerSegment& segment : kSegments) {
      for (int64_t i = segment.begin; i < segment.end; ++i) {
        const double g = 0.25 * grad.Get(i), c = 0.8 * want_m[i] + 0.2 * g;
        // Rounding may turn the sign of a sum closer to zero than this.
        ASSERT_TRUE(c == 0 || std::fabs(c) > 1e-6) << i;
        want_w[i] -= segment.lr * segment.weight_decay * want_w[i] + segment.lr * (c > 0   ? 1
                                                                                   : c < 0 ? -1
                                                                                           : 0);
        want_m[i] = 0.95 * want_m[i] + 0.05 * g;
        want_out[i] = want_w[i];
      }
    }
    LionUpdate(stream_, options, kSegments, grad, m, w, out);
    ExpectNear(m, want_m, OpTolerance(DType::kFloat32));
    ExpectNear(w, want_w, OpTolerance(DType::kFloat32));
    ExpectNear(out, want_out, OpTolerance(out_dtype));
  }
}

TEST_F(OptimizerTest, SumOfSquaresAddsUp) {
  for (int64_t count : {0, 1, 3, 17, 33, 16384, 100001}) {
    const HostTensor x = HostTensor::Normal({count}, DType::kFloat32, 1);
    const HostTensor out = HostTensor::Of({2}, DType::kFloat32, {3, 0});
    double want = 3;
    for (double value : x.Values()) want += 0.25 * value * value;
    SumOfSquares(stream_, 0.5f, x, out);
    EXPECT_NEAR(out.Get(0), want, want * OpTolerance(DType::kFloat32)) << count;
    EXPECT_EQ(out.Get(1), 0);
  }
}

TEST_F(OptimizerTest, SumOfSquaresFindsEveryNonFiniteElement) {
  for (double bad : {HUGE_VAL, -HUGE_VAL, static_cast<double>(NAN)}) {
    for (int64_t at : {0, 1, 63, 64, 20000}) {
      HostTensor x = HostTensor::Normal({kCount}, DType::kFloat32, 1);
      x.Set(at, bad);
      const HostTensor out({2}, DType::kFloat32);
      SumOfSquares(stream_, 1, x, out);
      EXPECT_EQ(out.Get(1), 1) << at;
    }
  }
}

TEST_F(OptimizerTest, AnOverflowingSumIsNotANonFiniteElement) {
  const HostTensor x = HostTensor::Of({2}, DType::kFloat32, {1e30, 1});
  const HostTensor out({2}, DType::kFloat32);
  SumOfSquares(stream_, 1, x, out);
  EXPECT_EQ(out.Get(1), 0);
}

TEST_F(OptimizerTest, CountZerosAddsUp) {
  for (int64_t count : {0, 1, 1000, 100001}) {
    HostTensor x = HostTensor::Normal({count}, DType::kFloat32, 1);
    for (int64_t i = 0; i < count; i += 7) x.Set(i, i % 2 == 0 ? 0.0 : -0.0);
    const HostTensor out = HostTensor::Of({1}, DType::kInt64, {5});
    CountZeros(stream_, x, out);
    EXPECT_EQ(*out.tensor().data<int64_t>(), 5 + (count + 6) / 7) << count;
  }
}

TEST_F(OptimizerTest, BitsDoNotDependOnTheNumberOfThreads) {
  std::vector<char> first_w, first_sum;
  for (int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    const Stream stream = Stream::Cpu(&pool);
    const HostTensor grad = HostTensor::Normal({kCount}, DType::kFloat32, 1);
    const HostTensor m({kCount}, DType::kFloat32), v({kCount}, DType::kFloat32);
    const HostTensor w = HostTensor::Normal({kCount}, DType::kFloat32, 4);
    const HostTensor sum({2}, DType::kFloat32);
    AdamWUpdate(stream, AdamWOptions(), kSegments, grad, m, v, w, Tensor());
    SumOfSquares(stream, 1, w, sum);
    if (first_w.empty()) {
      first_w = w.Bytes();
      first_sum = sum.Bytes();
    }
    EXPECT_EQ(w.Bytes(), first_w) << threads;
    EXPECT_EQ(sum.Bytes(), first_sum) << threads;
  }
}

}  // namespace
}  // namespace megatron::ops
