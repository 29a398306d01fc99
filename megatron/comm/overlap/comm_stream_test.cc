#include "megatron/comm/overlap/comm_stream.h"

#include <cmath>
#include <cstdlib>

#include "gtest/gtest.h"
#include "megatron/ops/elementwise.h"
#include "megatron/tensor/host_mirror.h"
#include "megatron/tensor/memory.h"

namespace megatron {
namespace {

class CommStreamTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (CudaDeviceCount() > 0) return;
    if (std::getenv("MEGATRON_REQUIRE_GPU") != nullptr) GTEST_FAIL() << "there is no GPU";
    GTEST_SKIP() << "there is no GPU";
  }
};

// The two streams take turns doubling each other's tensor, so one that ran ahead would read another
// number. The tensors are so large that a kernel takes longer than the host needs to enqueue the
// next one.
TEST_F(CommStreamTest, JobsFollowEarlierWorkAndPrecedeWorkThatWaitsForThem) {
  constexpr int64_t kCount = 1 << 22;
  constexpr int kRounds = 40;  // 2^80 is a float
  CudaStream cuda(0);
  const Stream compute = Stream::Cuda(0, &cuda);
  const Buffer buffer(compute.device(), 2 * kCount * sizeof(float), "test", nullptr);
  const Tensor x = buffer.At(0, DType::kFloat32, {kCount});
  const Tensor y = buffer.At(kCount * sizeof(float), DType::kFloat32, {kCount});
  const HostMirror host(x, "test");
  for (int64_t i = 0; i < kCount; ++i) host.host().data<float>()[i] = 1;
  host.Send(compute);
  CommStream lane(compute, "lane");
  for (int i = 0; i < kRounds; ++i) {
    const int64_t number = lane.Add([&](const Stream& stream) {
      ops::Scale(stream, 2, x);
      ops::Copy(stream, x, y);
    });
    EXPECT_EQ(number, i + 1);
    lane.Wait(number);
    ops::Scale(compute, 2, y);
    ops::Copy(compute, y, x);
  }
  host.Fetch(compute);
  const float expected = std::ldexp(1.0f, 2 * kRounds);
  for (int64_t i = 0; i < kCount; i += 4099) ASSERT_EQ(host.host().data<float>()[i], expected);
}

TEST_F(CommStreamTest, WaitingForJobZeroReturnsAtOnce) {
  CudaStream cuda(0);
  CommStream lane(Stream::Cuda(0, &cuda), "lane");
  lane.Wait(0);
}

}  // namespace
}  // namespace megatron
