#include "megatron/tensor/emulated_cuda.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/host_mirror.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/pinned_buffer.h"

namespace megatron {
namespace {

constexpr Device kCuda = {DeviceType::kCuda, 0};

class EmulatedCudaTest : public testing::Test {
 protected:
  EmulatedCudaTest() : cuda_(0), stream_(Stream::Cuda(0, &cuda_)) {}
  CudaStream cuda_;
  Stream stream_;
};

TEST_F(EmulatedCudaTest, ThereIsOneDevice) { EXPECT_EQ(CudaDeviceCount(), 1); }

TEST_F(EmulatedCudaTest, AMirrorBringsAndSendsWhatItsTensorHolds) {
  const Buffer buffer(kCuda, 4 * sizeof(float), "test", nullptr);
  const Tensor x = buffer.At(0, DType::kFloat32, {4});
  const HostMirror mirror(x, "test"), other(x, "test");
  for (int i = 0; i < 4; ++i) mirror.host().data<float>()[i] = static_cast<float>(i);
  mirror.Send(stream_);
  other.Fetch(stream_);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(other.host().data<float>()[i], i);
}

TEST_F(EmulatedCudaTest, PageLockedMemoryThatCannotBeHadIsAnErrorThatSaysWhatFor) {
  LimitPageLockedMemory(64);
  MemoryLedger ledger;
  EXPECT_THAT(PinnedBuffer::Create(kCuda, 65, "staging", &ledger),
              ::absl_testing::StatusIs(absl::StatusCode::kResourceExhausted,
                                       ::testing::HasSubstr("65 bytes for staging")));
  EXPECT_EQ(ledger.current_bytes(), 0);
  EXPECT_THAT(PinnedBuffer::Create(kCuda, 64, "staging", &ledger), ::absl_testing::IsOk());
  LimitPageLockedMemory(std::numeric_limits<int64_t>::max());
}

TEST_F(EmulatedCudaTest, APinnedBufferIsOnTheHostAndInTheLedgerWhileItLives) {
  MemoryLedger ledger;
  const Buffer device(kCuda, 8, "test", nullptr);
  const Tensor x = device.At(4, DType::kFloat32, {1});
  EmulatedView(x).data<float>()[0] = 7;
  {
    const PinnedBuffer buffer = *PinnedBuffer::Create(kCuda, 12, "staging", &ledger);
    EXPECT_EQ(ledger.AtPeak().at("staging"), 12);
    const Tensor host = buffer.At(8, DType::kFloat32, {1});
    EnqueueCopyOnCuda(&cuda_, x, host);
    cuda_.Synchronize();
    EXPECT_EQ(host.data<float>()[0], 7);
  }
  EXPECT_EQ(ledger.current_bytes(), 0);
  const PinnedBuffer planned = *PinnedBuffer::Create({DeviceType::kMeta}, 12, "staging", &ledger);
  EXPECT_EQ(ledger.current_bytes(), 12);
  EXPECT_EQ(planned.At(8, DType::kFloat32, {1}).raw(), nullptr);
}

TEST_F(EmulatedCudaTest, AViewIsThePlaceInTheSameMemory) {
  const Buffer buffer(kCuda, 1000, "test", nullptr);
  const Tensor x = buffer.At(0, DType::kFloat32, {10, 5});
  EmulatedView(x).data<float>()[3 * 5 + 2] = 7;
  EXPECT_EQ(EmulatedView(x.Select(1, 2).Slice(0, 3, 4)).data<float>()[0], 7);
}

TEST_F(EmulatedCudaTest, AMirrorKnowsTheHostsSideOfAPart) {
  const Buffer buffer(kCuda, 64, "test", nullptr);
  const HostMirror mirror(buffer.At(0, DType::kUInt8, {64}), "test");
  const Tensor part = buffer.At(16, DType::kFloat32, {2, 3});
  mirror.Of(part.Select(1, 2)).data<float>()[0] = 5;
  mirror.Send(stream_);
  EXPECT_EQ(EmulatedView(part).data<float>()[2], 5);
}

TEST_F(EmulatedCudaTest, FetchedDataIsThereOnceTheHostHasWaited) {
  const Buffer buffer(kCuda, sizeof(float), "test", nullptr);
  const HostMirror x(buffer.At(0, DType::kFloat32, {1}), "test");
  EmulatedView(buffer.At(0, DType::kFloat32, {1})).data<float>()[0] = 7;
  x.StartFetch(stream_);
  EXPECT_TRUE(std::isnan(x.host().data<float>()[0]));
  // A later operation of the stream does not reach what was fetched before.
  EmulatedView(buffer.At(0, DType::kFloat32, {1})).data<float>()[0] = 8;
  x.Finish();
  EXPECT_EQ(x.host().data<float>()[0], 7);
}

TEST_F(EmulatedCudaTest, AMirrorWaitsForWhatItHasStartedOnceAndOnlyForThat) {
  const Buffer buffer(kCuda, 2 * sizeof(float), "test", nullptr);
  const HostMirror x(buffer.At(0, DType::kFloat32, {1}), "test"),
      y(buffer.At(sizeof(float), DType::kFloat32, {1}), "test");
  const int64_t before = CountsOfEmulatedCuda().host_waits;
  x.Finish();
  EXPECT_EQ(CountsOfEmulatedCuda().host_waits, before);
  x.StartFetch(stream_);
  y.StartFetch(stream_);
  x.Finish();
  x.Finish();
  EXPECT_EQ(CountsOfEmulatedCuda().host_waits, before + 1);
  EXPECT_EQ(x.host().data<float>()[0], 0);
  EXPECT_TRUE(std::isnan(y.host().data<float>()[0]));
}

TEST_F(EmulatedCudaTest, TakingMemoryIsCounted) {
  const int64_t before = CountsOfEmulatedCuda().allocations;
  const Buffer buffer(kCuda, 64, "test", nullptr);
  const HostMirror mirror(buffer.At(0, DType::kUInt8, {64}), "test");
  EXPECT_EQ(CountsOfEmulatedCuda().allocations, before + 2);
}

TEST_F(EmulatedCudaTest, MemoryStartsAsZeros) {
  const Buffer buffer(kCuda, sizeof(float), "test", nullptr);
  EXPECT_EQ(EmulatedView(buffer.At(0, DType::kFloat32, {1})).data<float>()[0], 0);
}

using EmulatedCudaDeathTest = EmulatedCudaTest;

TEST_F(EmulatedCudaDeathTest, TheHostMayNotTouchIt) {
  const Buffer buffer(kCuda, sizeof(float), "test", nullptr);
  volatile float* const x = static_cast<float*>(buffer.data());
  EXPECT_DEATH(*x = 1, "");
  EXPECT_DEATH(static_cast<void>(*x), "");
}

TEST_F(EmulatedCudaDeathTest, DataBeingSentMustNotChange) {
  const Buffer buffer(kCuda, sizeof(float), "test", nullptr);
  const HostMirror x(buffer.At(0, DType::kFloat32, {1}), "test");
  const auto change_too_early = [&] {
    x.StartSend(stream_);
    x.host().data<float>()[0] = 1;
    x.Finish();
  };
  EXPECT_DEATH(change_too_early(), "changed what it was sending");
}

// The host waits for one stream, which may come after another one's copy.
TEST_F(EmulatedCudaDeathTest, AWaitHoldsForWhatTheStreamComesAfterAndNothingElse) {
  const Buffer buffer(kCuda, sizeof(float), "test", nullptr);
  const PinnedBuffer host = *PinnedBuffer::Create(kCuda, sizeof(float), "test", nullptr);
  const Tensor x = host.At(0, DType::kFloat32, {1});
  const auto send_and_change = [&](bool ordered) {
    CudaStream other(0);
    CudaEvent sent(0);
    EnqueueCopyOnCuda(&other, x, buffer.At(0, DType::kFloat32, {1}));
    sent.Record(other);
    if (ordered) sent.HoldBack(cuda_);
    cuda_.Synchronize();
    x.data<float>()[0] += 1;
    EnqueueCopyOnCuda(&other, x, buffer.At(0, DType::kFloat32, {1}));
    other.Synchronize();
  };
  send_and_change(true);
  EXPECT_EQ(EmulatedView(buffer.At(0, DType::kFloat32, {1})).data<float>()[0], 1);
  EXPECT_DEATH(send_and_change(false), "changed what it was sending");
}

TEST_F(EmulatedCudaDeathTest, ItHasSoMuchMemoryAndNoMore) {
  int64_t held = 0;
  for (const EmulatedMemory& memory : MemoryOfEmulatedCuda())
    held += static_cast<int64_t>(memory.bytes);
  LimitEmulatedMemory(held + 3 * Buffer::kAlignment);
  {
    const Buffer buffer(kCuda, Buffer::kAlignment, "test", nullptr);
    EXPECT_EQ(CudaMemoryOf(0).free_bytes, 2 * Buffer::kAlignment);
    EXPECT_DEATH(Buffer(kCuda, 2 * Buffer::kAlignment + 1, "too much", nullptr), "for too much");
    const Buffer rest(kCuda, 2 * Buffer::kAlignment, "test", nullptr);
  }
  LimitEmulatedMemory(int64_t{1} << 40);
}

TEST_F(EmulatedCudaDeathTest, OnlyPageLockedMemoryIsCopiedWithoutWaiting) {
  const Buffer buffer(kCuda, sizeof(float), "test", nullptr);
  float host = 0;
  EXPECT_DEATH(EnqueueCopyOnCuda(&cuda_, Tensor(&host, DType::kFloat32, {1}),
                                 buffer.At(0, DType::kFloat32, {1})),
               "not page-locked");
}

TEST_F(EmulatedCudaDeathTest, HostMemoryIsNotTheDevices) {
  float host = 0;
  EXPECT_DEATH(EmulatedView(Tensor(&host, DType::kFloat32, {1}, kCuda)), "not of the device");
}

}  // namespace
}  // namespace megatron
