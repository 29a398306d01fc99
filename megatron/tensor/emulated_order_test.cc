#include "megatron/tensor/emulated_order.h"

#include <memory>

#include "gtest/gtest.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/pinned_buffer.h"

namespace megatron {
namespace {

constexpr Device kCuda = {DeviceType::kCuda, 0};
constexpr int64_t kBytes = 64;

class EmulatedOrderTest : public testing::Test {
 protected:
  Tensor At(int64_t place) const { return buffer_->At(place * kBytes, DType::kUInt8, {kBytes}); }
  void Copy(CudaStream* stream, int64_t from, int64_t to) { CopyOnCuda(stream, At(from), At(to)); }
  void Order(const CudaStream& first, const CudaStream& second) {
    event_.Record(first);
    event_.HoldBack(second);
  }

  std::unique_ptr<Buffer> buffer_ = std::make_unique<Buffer>(kCuda, 8 * kBytes, "test", nullptr);
  CudaStream one_{0}, two_{0};
  CudaEvent event_{0};
};
using EmulatedOrderDeathTest = EmulatedOrderTest;

TEST_F(EmulatedOrderDeathTest, AnOperationMayNotReadWhatAnotherStreamWrites) {
  Copy(&one_, 0, 1);
  EXPECT_DEATH(Copy(&two_, 1, 2), "copy reads 64 bytes that copy writes on another stream");
}

TEST_F(EmulatedOrderDeathTest, AnOperationMayNotWriteWhatAnotherStreamReads) {
  Copy(&one_, 0, 1);
  EXPECT_DEATH(Copy(&two_, 2, 0), "copy writes 64 bytes that copy reads on another stream");
}

TEST_F(EmulatedOrderDeathTest, AnEventOrdersWhatIsBeforeItAndNothingElse) {
  Copy(&one_, 0, 1);
  Order(one_, two_);
  Copy(&one_, 0, 3);
  Copy(&two_, 1, 2);
  EXPECT_DEATH(Copy(&two_, 3, 4), "another stream");
}

TEST_F(EmulatedOrderTest, StreamsMayReadTheSameAndWriteNeighbours) {
  Copy(&one_, 0, 1);
  Copy(&two_, 0, 2);
}

TEST_F(EmulatedOrderTest, AnOrderReachesOverAThirdStream) {
  CudaStream three(0);
  Copy(&one_, 0, 1);
  Order(one_, two_);
  Order(two_, three);
  Copy(&three, 1, 2);
}

TEST_F(EmulatedOrderTest, WhatTheHostHasWaitedForIsBeforeAllThatFollows) {
  Copy(&one_, 0, 1);
  one_.Synchronize();
  Copy(&two_, 1, 2);
  event_.Record(two_);
  event_.Wait();
  Copy(&one_, 2, 3);
}

TEST_F(EmulatedOrderDeathTest, AnEventThatTheHostOnlyAsksForOrdersNothing) {
  Copy(&one_, 0, 1);
  event_.Record(one_);
  EXPECT_TRUE(event_.Reached());
  EXPECT_DEATH(Copy(&two_, 1, 2), "another stream");
}

// What two copies do with page-locked memory must be in an order, too.
TEST_F(EmulatedOrderDeathTest, ACopyMayNotReadOfTheHostWhatAnotherStreamWritesThere) {
  const PinnedBuffer pinned = *PinnedBuffer::Create(kCuda, kBytes, "test", nullptr);
  const Tensor host = pinned.At(0, DType::kUInt8, {kBytes});
  EnqueueCopyOnCuda(&one_, At(0), host);
  EXPECT_DEATH(EnqueueCopyOnCuda(&two_, host, At(1)), "copy reads 64 bytes that copy writes");
  EXPECT_DEATH(EnqueueCopyOnCuda(&two_, At(1), host), "copy writes 64 bytes that copy writes");
  Order(one_, two_);
  EnqueueCopyOnCuda(&two_, At(1), host);
  one_.Synchronize();
  two_.Synchronize();
}

TEST_F(EmulatedOrderTest, MemoryThatIsTakenAgainHasNoPast) {
  Copy(&one_, 0, 1);
  buffer_ = nullptr;
  buffer_ = std::make_unique<Buffer>(kCuda, 8 * kBytes, "test", nullptr);
  Copy(&two_, 1, 2);
}

}  // namespace
}  // namespace megatron
