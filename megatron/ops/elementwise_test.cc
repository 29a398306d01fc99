#include "megatron/ops/elementwise.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/host_tensor.h"
#include "megatron/ops/tolerances.h"

namespace megatron::ops {
namespace {

const DType kDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
const int64_t kCounts[] = {0, 1, 7, 17, 33, 20000};

class ElementwiseTest : public ::testing::Test {
 protected:
  ThreadPool pool_{2};
  Stream stream_ = Stream::Cpu(&pool_);
};

TEST_F(ElementwiseTest, CopyConvertsWithOneRounding) {
  for (DType from : kDTypes) {
    for (DType to : kDTypes) {
      for (int64_t count : kCounts) {
        const HostTensor in = HostTensor::Normal({count}, from, 1);
        const HostTensor out({count}, to);
        Copy(stream_, in, out);
        EXPECT_EQ(out.Bytes(), HostTensor::Of({count}, to, in.Values()).Bytes());
      }
    }
  }
}

TEST_F(ElementwiseTest, CopyFollowsStrides) {
  const HostTensor in = HostTensor::Normal({5, 4, 33}, DType::kFloat32, 1);
  const HostTensor middle({5, 33}, DType::kBFloat16), column({5, 4}, DType::kFloat32);
  Copy(stream_, in.tensor().Select(1, 2), middle);
  Copy(stream_, in.tensor().Select(2, 3), column);
  for (int64_t i = 0; i < 5; ++i) {
    for (int64_t j = 0; j < 33; ++j) {
      const float value = static_cast<float>(in.Get((i * 4 + 2) * 33 + j));
      ASSERT_EQ(middle.Get(i * 33 + j), ToFloat(ToBFloat16(value)));
    }
    for (int64_t j = 0; j < 4; ++j) ASSERT_EQ(column.Get(i * 4 + j), in.Get((i * 4 + j) * 33 + 3));
  }
  const HostTensor back({5, 4, 33}, DType::kFloat32);
  Copy(stream_, column, back.tensor().Select(2, 3));
  double sum = 0;
  for (double value : back.Values()) sum += value != 0;
  EXPECT_EQ(sum, 20);
  EXPECT_EQ(back.Get((3 * 4 + 1) * 33 + 3), in.Get((3 * 4 + 1) * 33 + 3));
}

TEST_F(ElementwiseTest, CopyMovesIntegers) {
  const HostTensor in = HostTensor::Of({2, 3}, DType::kInt64, {1, -2, 3, 4, 5, 1e15});
  const HostTensor out({2, 2}, DType::kInt64);
  Copy(stream_, in.tensor().Slice(1, 1, 3), out);
  EXPECT_EQ(out.Values(), (std::vector<double>{-2, 3, 5, 1e15}));
}

TEST_F(ElementwiseTest, AddRoundsTheSumOnce) {
  for (DType dtype : kDTypes) {
    for (int64_t count : kCounts) {
      const HostTensor in = HostTensor::Normal({count}, dtype, 1);
      const HostTensor out = HostTensor::Normal({count}, dtype, 2);
      std::vector<double> want = out.Values();
      for (int64_t i = 0; i < count; ++i) {
        want[i] = static_cast<float>(out.Get(i)) + static_cast<float>(in.Get(i));
      }
      Add(stream_, in, out);
      EXPECT_EQ(out.Bytes(), HostTensor::Of({count}, dtype, want).Bytes());
    }
  }
}

TEST_F(ElementwiseTest, AddTakesSummandsOfFp32) {
  for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (int64_t count : kCounts) {
      const HostTensor in = HostTensor::Normal({count}, DType::kFloat32, 1);
      const HostTensor out = HostTensor::Normal({count}, dtype, 2);
      std::vector<double> want = out.Values();
      for (int64_t i = 0; i < count; ++i) {
        want[i] = static_cast<float>(out.Get(i)) + static_cast<float>(in.Get(i));
      }
      Add(stream_, in, out);
      EXPECT_EQ(out.Bytes(), HostTensor::Of({count}, dtype, want).Bytes());
    }
  }
}

TEST_F(ElementwiseTest, ScaleMultiplies) {
  for (int64_t count : kCounts) {
    const HostTensor out = HostTensor::Normal({count}, DType::kFloat32, 2);
    std::vector<double> want = out.Values();
    for (double& value : want) value = static_cast<float>(value) * 0.3f;
    Scale(stream_, 0.3f, out);
    EXPECT_EQ(out.Values(), want);
    for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      const HostTensor half = HostTensor::Of({count}, dtype, want);
      std::vector<double> doubled = half.Values();
      for (double& value : doubled) value *= 2;
      Scale(stream_, 2, half);
      EXPECT_EQ(half.Values(), doubled);
    }
  }
}

// Also small numbers keep their digits.
TEST_F(ElementwiseTest, SoftCapIsTheFormula) {
  for (int64_t count : kCounts) {
    for (float cap : {0.5f, 3.0f, 1000.0f}) {
      const HostTensor x = HostTensor::Normal({count}, DType::kFloat32, 5);
      const std::vector<double> before = x.Values();
      SoftCap(stream_, cap, x);
      for (int64_t i = 0; i < count; ++i) {
        const double want = cap * std::tanh(before[i] / cap);
        EXPECT_NEAR(x.Get(i), want, 8e-7 * std::abs(want)) << before[i] << " of " << cap;
      }
    }
  }
  const HostTensor large = HostTensor::Of({3}, DType::kFloat32, {1e30, -1e30, 0});
  SoftCap(stream_, 2, large);
  EXPECT_EQ(large.Values(), (std::vector<double>{2, -2, 0}));
}

TEST_F(ElementwiseTest, ZeroClearsEveryDType) {
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kInt32, DType::kInt64}) {
    const HostTensor out = HostTensor::Of({3}, dtype, {1, 2, 3});
    Zero(stream_, out);
    EXPECT_EQ(out.Values(), std::vector<double>(3, 0.0));
  }
}

}  // namespace
}  // namespace megatron::ops
