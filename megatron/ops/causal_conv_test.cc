#include "megatron/ops/causal_conv.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/finite_difference.h"
#include "megatron/ops/host_tensor.h"
#include "megatron/ops/portions.h"
#include "megatron/ops/tolerances.h"

namespace megatron::ops {
namespace {

constexpr int64_t kTokens = 31, kGroups = 2, kChannels = 70;

class Problem {
 public:
  Problem(DType dtype, int64_t taps, bool has_bias, int64_t channels = kChannels)
      : channels_(channels),
        taps_(taps),
        x_(HostTensor::Normal({kTokens, kGroups, channels + 3}, dtype, 1)),
        weight_(HostTensor::Normal({kGroups, channels, taps}, dtype, 2)),
        bias_(HostTensor::Normal({kGroups, channels}, dtype, 3)),
        dy_(HostTensor::Normal({kTokens, kGroups, channels}, dtype, 4)),
        y_({kTokens, kGroups, channels}, dtype),
        dx_({kTokens, kGroups, channels + 3}, dtype),
        dweight_({kGroups, channels, taps}, DType::kFloat32),
        dbias_({kGroups, channels}, DType::kFloat32),
        cu_seqlens_({5}, DType::kInt32),
        has_bias_(has_bias) {
    const int32_t begins[] = {0, 1, 8, 8, kTokens};
    for (int i = 0; i < 5; ++i) cu_seqlens_.tensor().data<int32_t>()[i] = begins[i];
  }

  void Forward(const Stream& stream) { CausalConvForward(stream, cu_seqlens_, Inputs(), y_); }
  // Computes y in portions of up to `most` tokens of each sequence. What is in front of them is not
  // zero before.
  void Continue(const Stream& stream, int most) {
    const HostTensor recent =
        HostTensor::Normal({4, taps_ - 1, kGroups, channels_}, y_.tensor().dtype(), 9);
    ForEachPortions(
        {1, 7, 0, kTokens - 8}, most,
        [&](const std::vector<int64_t>& rows, const Tensor& cu_seqlens, const Tensor& position) {
          const HostTensor x = RowsOf(x_, rows), y = RowsOf(y_, rows);
          CausalConvInputs in = Inputs();
          in.x_TGK = Columns(x);
          CausalConvContinue(stream, cu_seqlens, position, in, recent, y);
          PutRows(y, rows, y_);
        });
  }
  void Backward(const Stream& stream) {
    CausalConvBackward(stream, cu_seqlens_, Inputs(), dy_,
                       {Columns(dx_), dweight_.tensor(), has_bias_ ? dbias_.tensor() : Tensor()});
  }
  std::vector<double> Want() const {
    std::vector<double> want;
    for (int64_t t = 0; t < kTokens; ++t) {
      const int64_t begin = t < 1 ? 0 : t < 8 ? 1 : 8;
      for (int64_t c = 0; c < kGroups * channels_; ++c) {
        double sum = has_bias_ ? bias_.Get(c) : 0;
        for (int64_t i = 0; i < taps_; ++i) {
          const int64_t from = t - taps_ + 1 + i;
          if (from < begin) continue;
          sum += weight_.Get(c * taps_ + i) *
                 x_.Get((from * kGroups + c / channels_) * (channels_ + 3) + c % channels_);
        }
        want.push_back(sum / (1 + std::exp(-sum)));
      }
    }
    return want;
  }

  HostTensor& inputs() { return x_; }
  HostTensor& weight() { return weight_; }
  HostTensor& bias() { return bias_; }
  const HostTensor& y() const { return y_; }
  const HostTensor& dy() const { return dy_; }
  const HostTensor& dx() const { return dx_; }
  const HostTensor& dweight() const { return dweight_; }
  const HostTensor& dbias() const { return dbias_; }

 private:
  Tensor Columns(const HostTensor& x) const { return x.tensor().Slice(2, 0, channels_); }
  CausalConvInputs Inputs() const {
    return {Columns(x_), weight_.tensor(), has_bias_ ? bias_.tensor() : Tensor()};
  }

  int64_t channels_, taps_;
  HostTensor x_, weight_, bias_, dy_, y_, dx_, dweight_, dbias_, cu_seqlens_;
  bool has_bias_;
};

class CausalConvTest : public testing::TestWithParam<DType> {
 protected:
  ThreadPool pool_{2};
};

TEST_P(CausalConvTest, IsTheFormula) {
  for (int64_t taps : {1, 2, 4, 16}) {
    for (bool has_bias : {false, true}) {
      Problem problem(GetParam(), taps, has_bias);
      problem.Forward(Stream::Cpu(&pool_));
      ExpectNear(problem.y(), problem.Want(), OpTolerance(GetParam()));
    }
  }
}

// A token's results do not depend on which tokens come with it.
TEST_P(CausalConvTest, SequencesInPortionsHaveTheSameBits) {
  for (int64_t taps : {1, 2, 4, 16}) {
    Problem whole(GetParam(), taps, /*has_bias=*/taps != 2);
    whole.Forward(Stream::Cpu(&pool_));
    for (int most : {1, 3, 7}) {
      Problem in_portions(GetParam(), taps, /*has_bias=*/taps != 2);
      in_portions.Continue(Stream::Cpu(&pool_), most);
      EXPECT_EQ(in_portions.y().Bytes(), whole.y().Bytes()) << taps << " taps, " << most;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, CausalConvTest,
                         testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16));

TEST(CausalConvBitsTest, GradientsAreThoseOfFiniteDifferences) {
  ThreadPool pool(1);
  const Stream stream = Stream::Cpu(&pool);
  for (int64_t taps : {1, 4, 9}) {
    Problem problem(DType::kFloat32, taps, /*has_bias=*/taps != 9, /*channels=*/6);
    problem.Backward(stream);
    const auto loss = [&] {
      problem.Forward(stream);
      return Dot(problem.y(), problem.dy());
    };
    ExpectNear(problem.dx(), FiniteDifference(&problem.inputs(), loss), kFiniteDifferenceTolerance);
    ExpectNear(problem.dweight(), FiniteDifference(&problem.weight(), loss),
               kFiniteDifferenceTolerance);
    if (taps != 9)
      ExpectNear(problem.dbias(), FiniteDifference(&problem.bias(), loss),
                 kFiniteDifferenceTolerance);
  }
}

TEST(CausalConvBitsTest, DoesNotDependOnThreads) {
  ThreadPool one(1), three(3);
  Problem a(DType::kBFloat16, 4, true), b(DType::kBFloat16, 4, true);
  for (Problem* problem : {&a, &b}) {
    const Stream stream = Stream::Cpu(problem == &a ? &one : &three);
    problem->Forward(stream);
    problem->Backward(stream);
  }
  EXPECT_EQ(a.y().Bytes(), b.y().Bytes());
  EXPECT_EQ(a.dx().Bytes(), b.dx().Bytes());
  EXPECT_EQ(a.dweight().Bytes(), b.dweight().Bytes());
}

}  // namespace
}  // namespace megatron::ops
