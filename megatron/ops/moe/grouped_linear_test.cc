#include "megatron/ops/moe/grouped_linear.h"

#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/finite_difference.h"
#include "megatron/ops/host_tensor.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/tolerances.h"

namespace megatron::ops {
namespace {

constexpr int64_t kRows = 23, kIn = 20, kOut = 33, kExperts = 3;

// Expert 1 has two groups, expert 2 an empty one.
const std::vector<RowGroup>& Groups() {
  static const auto* const groups =
      new std::vector<RowGroup>{{1, 0, 4}, {0, 4, 5}, {2, 5, 5}, {1, 5, 23}};
  return *groups;
}

int64_t ExpertOf(int64_t row) { return row == 4 ? 0 : 1; }

class GroupedLinearTest : public testing::TestWithParam<DType> {
 protected:
  ThreadPool pool_{2};
  Stream stream_ = Stream::Cpu(&pool_);
};

TEST_P(GroupedLinearTest, MultipliesEachRowWithItsExpertToTheBitOfALoneRow) {
  const HostTensor x = HostTensor::Normal({kRows, kIn}, GetParam(), 1);
  const HostTensor w = HostTensor::Normal({kExperts, kOut, kIn}, GetParam(), 2);
  const HostTensor y = HostTensor::Normal({kRows, kOut}, GetParam(), 3);
  HostTensor want({kRows, kOut}, GetParam());
  GroupedLinearForward(stream_, Groups(), x, w, y);
  for (int64_t r = 0; r < kRows; ++r) {
    LinearForward(stream_, x.tensor().Slice(0, r, r + 1), w.tensor().Select(0, ExpertOf(r)),
                  Tensor(), want.tensor().Slice(0, r, r + 1));
  }
  EXPECT_EQ(y.Bytes(), want.Bytes());
}

TEST_P(GroupedLinearTest, InputGradientsAreThoseOfEachRowAlone) {
  const HostTensor dy = HostTensor::Normal({kRows, kOut}, GetParam(), 1);
  const HostTensor w = HostTensor::Normal({kExperts, kOut, kIn}, GetParam(), 2);
  const HostTensor dx = HostTensor::Normal({kRows, kIn}, GetParam(), 3);
  HostTensor want({kRows, kIn}, GetParam());
  GroupedLinearBackwardInput(stream_, Groups(), dy, w, dx);
  for (int64_t r = 0; r < kRows; ++r) {
    LinearBackwardInput(stream_, dy.tensor().Slice(0, r, r + 1), w.tensor().Select(0, ExpertOf(r)),
                        want.tensor().Slice(0, r, r + 1));
  }
  EXPECT_EQ(dx.Bytes(), want.Bytes());
}

TEST_P(GroupedLinearTest, WeightGradientsAccumulateOverAllGroupsOfAnExpert) {
  const HostTensor dy = HostTensor::Normal({kRows, kOut}, GetParam(), 1);
  const HostTensor x = HostTensor::Normal({kRows, kIn}, GetParam(), 2);
  const HostTensor dw = HostTensor::Normal({kExperts, kOut, kIn}, DType::kFloat32, 3);
  std::vector<double> want = dw.Values();
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t i = 0; i < kOut * kIn; ++i)
      want[ExpertOf(r) * kOut * kIn + i] += dy.Get(r * kOut + i / kIn) * x.Get(r * kIn + i % kIn);
  }
  GroupedLinearBackwardWeight(stream_, Groups(), dy, x, dw);
  ExpectNear(dw, want, OpTolerance(DType::kFloat32));
}

INSTANTIATE_TEST_SUITE_P(DTypes, GroupedLinearTest,
                         testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16));

TEST_F(GroupedLinearTest, GradientsAreThoseOfFiniteDifferences) {
  HostTensor x = HostTensor::Normal({kRows, 4}, DType::kFloat32, 1);
  HostTensor w = HostTensor::Normal({kExperts, 3, 4}, DType::kFloat32, 2);
  const HostTensor dy = HostTensor::Normal({kRows, 3}, DType::kFloat32, 3);
  const HostTensor y({kRows, 3}, DType::kFloat32), dx({kRows, 4}, DType::kFloat32);
  const HostTensor dw({kExperts, 3, 4}, DType::kFloat32);
  GroupedLinearBackwardInput(stream_, Groups(), dy, w, dx);
  GroupedLinearBackwardWeight(stream_, Groups(), dy, x, dw);
  const auto loss = [&] {
    GroupedLinearForward(stream_, Groups(), x, w, y);
    return Dot(y, dy);
  };
  ExpectNear(dx, FiniteDifference(&x, loss), kFiniteDifferenceTolerance);
  ExpectNear(dw, FiniteDifference(&w, loss), kFiniteDifferenceTolerance);
}

}  // namespace
}  // namespace megatron::ops
