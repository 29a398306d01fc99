// Kernels on tensors of more than 2^31 elements, as the logits of a large micro-batch are: what
// lies behind the reach of 32-bit indices must be read and written like the rest.
#include <cmath>
#include <cstdlib>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/ops/activation.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/optimizer.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/memory.h"

namespace megatron::ops {
namespace {

constexpr DType kF32 = DType::kFloat32, kBf16 = DType::kBFloat16;
constexpr int64_t kRows = 70000, kColumns = 32768, kElements = kRows * kColumns;
static_assert(kElements > int64_t{1} << 31, "");
constexpr int64_t kBehind = int64_t{1} << 31;  // the first element out of reach

class LargeTensorsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (CudaDeviceCount() == 0) {
      if (std::getenv("MEGATRON_REQUIRE_GPU") != nullptr) GTEST_FAIL() << "there is no GPU";
      GTEST_SKIP() << "there is no GPU";
    }
    cuda_ = std::make_unique<CudaStream>(0);
  }

  Stream stream() { return Stream::Cuda(0, cuda_.get()); }

  // Allocates zeros.
  Tensor Allocate(DType dtype, const Shape& shape) {
    buffers_.emplace_back(Device{DeviceType::kCuda, 0}, shape.numel() * SizeOf(dtype), "large",
                          nullptr);
    return buffers_.back().At(0, dtype, shape);
  }
  void Put(float value, const Tensor& x) {
    std::vector<float> values(x.numel(), value);
    const Tensor whole = Allocate(kF32, x.shape());
    CopyOnCuda(cuda_.get(), Tensor(values.data(), kF32, x.shape()), whole);
    Copy(stream(), whole, x);
  }
  std::vector<float> Get(const Tensor& x) {
    const Tensor whole = Allocate(kF32, x.shape());
    Copy(stream(), x, whole);
    std::vector<float> values(x.numel());
    CopyOnCuda(cuda_.get(), whole, Tensor(values.data(), kF32, x.shape()));
    return values;
  }
  float GetAt(const Tensor& x_N, int64_t index) { return Get(x_N.Slice(0, index, index + 1))[0]; }

  std::unique_ptr<CudaStream> cuda_;
  std::vector<Buffer> buffers_;
};

TEST_F(LargeTensorsTest, CrossEntropyReachesTheLastRow) {
  const Tensor logits_TV = Allocate(kBf16, {kRows, kColumns});
  const Tensor labels_T = Allocate(DType::kInt32, {kRows});
  const Tensor max_T = Allocate(kF32, {kRows}), sum_T = Allocate(kF32, {kRows}),
               target_T = Allocate(kF32, {kRows}), weight_T = Allocate(kF32, {kRows});
  Put(1, weight_T);
  for (int64_t row : {int64_t{0}, kRows - 1}) Put(5, logits_TV.Select(0, row).Slice(0, 0, 1));
  const VocabRange range = {0, kColumns};
  CrossEntropyStatistics(stream(), logits_TV, labels_T, range, max_T, sum_T, target_T);
  CrossEntropyBackward(stream(), logits_TV, labels_T, range, max_T, sum_T, weight_T);
  const double sum = 1 + (kColumns - 1) * std::exp(-5.0);
  for (int64_t row : {int64_t{0}, kRows - 1}) {
    EXPECT_EQ(GetAt(max_T, row), 5);
    EXPECT_NEAR(GetAt(sum_T, row), sum, 1e-4 * sum);
    EXPECT_EQ(GetAt(target_T, row), 5);
    const std::vector<float> gradient = Get(logits_TV.Select(0, row));
    EXPECT_NEAR(gradient.front(), 1 / sum - 1, 4e-3);
    EXPECT_NEAR(gradient.back(), std::exp(-5.0) / sum, 4e-3 * std::exp(-5.0) / sum);
  }
  EXPECT_EQ(GetAt(max_T, kRows / 2), 0);
}

TEST_F(LargeTensorsTest, CrossEntropyOfWholeRowsReachesTheLastRow) {
  const Tensor logits_TV = Allocate(kBf16, {kRows, kColumns});
  const Tensor labels_T = Allocate(DType::kInt32, {kRows});
  const Tensor weight_T = Allocate(kF32, {kRows}), loss_T = Allocate(kF32, {kRows});
  Put(1, weight_T);
  for (int64_t row : {int64_t{0}, kRows - 1}) Put(5, logits_TV.Select(0, row).Slice(0, 0, 1));
  CrossEntropy(stream(), logits_TV, labels_T, {0, kColumns}, weight_T, loss_T, Tensor());
  const double sum = 1 + (kColumns - 1) * std::exp(-5.0);
  for (int64_t row : {int64_t{0}, kRows - 1}) {
    EXPECT_NEAR(GetAt(loss_T, row), std::log(sum), 1e-3);
    const std::vector<float> gradient = Get(logits_TV.Select(0, row));
    EXPECT_NEAR(gradient.front(), 1 / sum - 1, 4e-3);
    EXPECT_NEAR(gradient.back(), std::exp(-5.0) / sum, 4e-3 * std::exp(-5.0) / sum);
  }
  EXPECT_NEAR(GetAt(loss_T, kRows / 2), std::log(kColumns), 1e-3);
}

TEST_F(LargeTensorsTest, ElementsAreCopiedAddedAndActivated) {
  const Tensor x = Allocate(kBf16, {kElements}), y = Allocate(kBf16, {kElements});
  for (int64_t at : {int64_t{3}, kBehind, kElements - 1}) Put(2, x.Slice(0, at, at + 1));
  Copy(stream(), x, y);
  Add(stream(), x, y);
  Scale(stream(), 0.5f, y);
  ActivationForward(stream(), Activation::kSquaredRelu, x.View({kRows, kColumns}),
                    x.View({kRows, kColumns}));
  for (int64_t at : {int64_t{3}, kBehind, kElements - 1}) {
    EXPECT_EQ(GetAt(y, at), 2) << at;
    EXPECT_EQ(GetAt(x, at), 4) << at;
  }
  for (int64_t at : {int64_t{2}, kBehind + 1, kElements - 2}) EXPECT_EQ(GetAt(y, at), 0) << at;
}

TEST_F(LargeTensorsTest, OptimizersReachTheLastParameter) {
  const Tensor grad = Allocate(kF32, {kElements}), m = Allocate(kF32, {kElements}),
               v = Allocate(kF32, {kElements}), master = Allocate(kF32, {kElements}),
               out = Allocate(kBf16, {kElements}), squares = Allocate(kF32, {2});
  const int64_t places[] = {0, kBehind, kElements - 1};
  for (int64_t at : places) Put(3, grad.Slice(0, at, at + 1));
  SumOfSquares(stream(), 1, grad, squares);
  EXPECT_EQ(GetAt(squares, 0), 27);
  AdamWUpdate(stream(), {}, {{0, kElements, 0.25f, 0}}, grad, m, v, master, out);
  for (int64_t at : places) {
    EXPECT_NEAR(GetAt(master, at), -0.25, 1e-5) << at;
    EXPECT_EQ(GetAt(out, at), -0.25) << at;
  }
  EXPECT_EQ(GetAt(master, kBehind + 1), 0);
}

}  // namespace
}  // namespace megatron::ops
