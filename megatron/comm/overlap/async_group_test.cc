#include "megatron/comm/overlap/async_group.h"

#include <memory>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gtest/gtest.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/nccl/fake_nccl.h"
#include "megatron/comm/nccl/nccl_communicator.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/ops/elementwise.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/host_mirror.h"
#include "megatron/tensor/memory.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;

constexpr int64_t kCount = 1000;
constexpr auto kTensor = TimeCategory::kTensorParallel;

AsyncCall StartSum(const ProcessGroup& group, const Stream& stream, const Tensor& x) {
  return StartAsync(group, stream, kTensor, [x](const ProcessGroup& beside, const Stream& lane) {
    beside.AllReduce(x, ReduceOp::kSum, lane);
  });
}

TEST(AsyncGroupTest, CallsAreDoneOnceTheyHaveBeenWaitedFor) {
  constexpr int kRanks = 3, kCalls = 100;
  EXPECT_THAT(
      RunRanks(kRanks,
               [](int rank, const ProcessGroup& world) -> absl::Status {
                 ThreadPool pool(1);
                 const Stream stream = Stream::Cpu(&pool);
                 MEGATRON_ASSIGN_OR_RETURN(const ProcessGroup group, WithAsyncCalls(world, stream));
                 std::vector<std::vector<float>> x(kCalls, std::vector<float>(kCount));
                 std::vector<AsyncCall> calls;
                 for (int i = 0; i < kCalls; ++i) {
                   x[i].assign(kCount, static_cast<float>(rank + i));
                   calls.push_back(
                       StartSum(group, stream, Tensor(x[i].data(), DType::kFloat32, {kCount})));
                   // The group's own calls may come in between.
                   if (i % 7 == 0) group.Barrier(stream);
                 }
                 for (int i = kCalls - 1; i >= 0; --i) {
                   calls[i].Wait();
                   EXPECT_EQ(x[i], std::vector<float>(kCount, 3.0f * i + 3));
                 }
                 return group.status();
               }),
      IsOk());
}

TEST(AsyncGroupTest, AGroupOfOneRankMakesItsCallsAtOnce) {
  ThreadPool pool(1);
  const Stream stream = Stream::Cpu(&pool);
  const absl::StatusOr<ProcessGroup> group = WithAsyncCalls(ProcessGroup(), stream);
  ASSERT_THAT(group, IsOk());
  bool called = false;
  const AsyncCall call =
      StartAsync(*group, stream, kTensor, [&](const ProcessGroup& beside, const Stream& lane) {
        EXPECT_EQ(beside.size(), 1);
        EXPECT_EQ(lane.pool(), &pool);
        called = true;
      });
  EXPECT_TRUE(called);
  call.Wait();
}

TEST(AsyncGroupTest, AFailureEndsTheWaiting) {
  EXPECT_THAT(
      RunRanks(2,
               [](int rank, const ProcessGroup& world) -> absl::Status {
                 ThreadPool pool(1);
                 const Stream stream = Stream::Cpu(&pool);
                 MEGATRON_ASSIGN_OR_RETURN(const ProcessGroup group, WithAsyncCalls(world, stream));
                 if (rank == 1) return absl::InternalError("lost");
                 std::vector<float> x(kCount);
                 StartSum(group, stream, Tensor(x.data(), DType::kFloat32, {kCount})).Wait();
                 EXPECT_THAT(group.status(), StatusIs(absl::StatusCode::kInternal));
                 return absl::OkStatus();
               }),
      StatusIs(absl::StatusCode::kInternal));
}

// Two ranks on the emulated device start a sum between two operations of the computing stream, and
// forget to wait for it if they are told to.
absl::Status SumOnCuda(bool waits) {
  FakeNccl nccl;
  return RunRanks(2, [&](int, const ProcessGroup& world) -> absl::Status {
    CudaStream cuda(0);
    const Stream stream = Stream::Cuda(0, &cuda);
    MEGATRON_ASSIGN_OR_RETURN(const std::unique_ptr<NcclWorld> ranks,
                              NcclWorld::Create(&nccl, world.communicator(), {}));
    MEGATRON_ASSIGN_OR_RETURN(const ProcessGroup group,
                              WithAsyncCalls(ProcessGroup(ranks->communicator()), stream));
    const Buffer buffer(stream.device(), kCount * sizeof(float), "test", nullptr);
    const Tensor x = buffer.At(0, DType::kFloat32, {kCount});
    const HostMirror host(x, "test");
    for (int64_t i = 0; i < kCount; ++i) host.host().data<float>()[i] = 1;
    host.Send(stream);
    ops::Scale(stream, 2, x);
    const AsyncCall call = StartSum(group, stream, x);
    if (waits) call.Wait();
    ops::Scale(stream, 3, x);
    host.Fetch(stream);
    for (int64_t i = 0; i < kCount; ++i) EXPECT_EQ(host.host().data<float>()[i], 12);
    return group.status();
  });
}

TEST(AsyncGroupTest, EventsOrderTheStreamsOfAGpu) { EXPECT_THAT(SumOnCuda(true), IsOk()); }

TEST(AsyncGroupDeathTest, ACallThatNobodyWaitsForIsFoundOnTheEmulatedDevice) {
  EXPECT_DEATH(SumOnCuda(false).IgnoreError(), "nothing puts one behind the other");
}

}  // namespace
}  // namespace megatron
