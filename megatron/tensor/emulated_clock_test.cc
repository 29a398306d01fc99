#include "megatron/tensor/emulated_clock.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "gtest/gtest.h"

namespace megatron {
namespace {

// Seconds are the costs' numbers.
constexpr EmulatedRates kUnits = {1, 1, 1, 1};

class EmulatedClockTest : public testing::Test {
 protected:
  // Adds an operation to a stream, and returns the point behind it.
  EmulatedPoint Add(int64_t stream, EmulatedEngine engine, double seconds,
                    const EmulatedPoint& after = {}) {
    EmulatedCost cost;
    cost.engine = engine;
    (engine == EmulatedEngine::kProcessor ? cost.operations : cost.bytes) = seconds;
    const int64_t number = ++numbers_[stream];
    record_.Add(stream, number, "operation", cost, after);
    EmulatedPoint point = after;
    point[stream] = number;
    return point;
  }
  EmulatedPoint Kernel(int64_t stream, double seconds, const EmulatedPoint& after = {}) {
    return Add(stream, EmulatedEngine::kKernels, seconds, after);
  }
  EmulatedPoint ToHost(int64_t stream, double seconds, const EmulatedPoint& after = {}) {
    return Add(stream, EmulatedEngine::kToHost, seconds, after);
  }
  EmulatedPoint FromHost(int64_t stream, double seconds, const EmulatedPoint& after = {}) {
    return Add(stream, EmulatedEngine::kFromHost, seconds, after);
  }
  double End() const { return PlayEmulated(record_.works(), kUnits).end; }
  std::pair<double, double> Times(size_t work) const {
    return PlayEmulated(record_.works(), kUnits).begin_and_end[work];
  }

  EmulatedRecord record_;
  std::map<int64_t, int64_t> numbers_;
};

using Interval = std::pair<double, double>;

TEST_F(EmulatedClockTest, NothingTakesNoTime) { EXPECT_EQ(End(), 0); }

TEST_F(EmulatedClockTest, OperationsOfAStreamFollowEachOther) {
  Kernel(1, 2);
  ToHost(1, 3);
  FromHost(1, 4);
  EXPECT_EQ(End(), 9);
}

TEST_F(EmulatedClockTest, AKernelTakesTheLongerOfItsTwoTimes) {
  EmulatedCost cost;
  cost.operations = 30;
  cost.bytes = 8;
  record_.Add(1, 1, "product", cost, {});
  EXPECT_EQ(PlayEmulated(record_.works(), {10, 4, 1, 1}).end, 3);
  EXPECT_EQ(PlayEmulated(record_.works(), {10, 2, 1, 1}).end, 4);
}

TEST_F(EmulatedClockTest, EnginesWorkAtTheSameTime) {
  Kernel(1, 5);
  ToHost(2, 4);
  FromHost(3, 3);
  EXPECT_EQ(End(), 5);
}

// The host starts to read and to write, computes, waits for what is read, and computes again.
TEST_F(EmulatedClockTest, ADiskReadsAndWritesWhileTheHostWorks) {
  const auto transfer = [&](EmulatedEngine engine, double bytes) {
    EmulatedCost cost;
    cost.engine = engine;
    cost.bytes = bytes;
    return record_.AddOfDisk("transfer", cost);
  };
  EmulatedCost update;
  update.engine = EmulatedEngine::kProcessor;
  update.operations = 3;
  transfer(EmulatedEngine::kDiskWrites, 30);
  transfer(EmulatedEngine::kDiskReads, 10);
  const EmulatedPoint read = transfer(EmulatedEngine::kDiskReads, 20);
  record_.AddOfHost("update", update);
  record_.HostWaited(read);
  record_.AddOfHost("update", update);
  EmulatedRates rates = kUnits;
  rates.disk_read_bytes_per_second = 5;
  rates.disk_write_bytes_per_second = 3;
  const EmulatedTimes times = PlayEmulated(record_.works(), rates);
  EXPECT_EQ(times.begin_and_end[0], Interval(0, 10));
  EXPECT_EQ(times.begin_and_end[1], Interval(0, 2));
  EXPECT_EQ(times.begin_and_end[2], Interval(2, 6));
  EXPECT_EQ(times.begin_and_end[3], Interval(0, 3));
  EXPECT_EQ(times.begin_and_end[4], Interval(6, 9));
}

TEST_F(EmulatedClockTest, AnEngineDoesOneOperationAtATime) {
  FromHost(1, 4);
  FromHost(2, 3);
  EXPECT_EQ(End(), 7);
}

TEST_F(EmulatedClockTest, AnEventPutsAnOperationBehindAnotherStreams) {
  const EmulatedPoint computed = Kernel(1, 5);
  Kernel(1, 5);
  ToHost(2, 1, computed);
  EXPECT_EQ(Times(2), Interval(5, 6));
  EXPECT_EQ(End(), 10);
}

// The copy that was enqueued first waits for a kernel; the other one need not.
TEST_F(EmulatedClockTest, AnEngineDoesWhatCouldBeginFirst) {
  const EmulatedPoint computed = Kernel(1, 5);
  FromHost(2, 1, computed);
  FromHost(3, 4);
  EXPECT_EQ(Times(2), Interval(0, 4));
  EXPECT_EQ(Times(1), Interval(5, 6));
}

TEST_F(EmulatedClockTest, WhatIsEnqueuedAfterAWaitOfTheHostComesBehindIt) {
  const EmulatedPoint arrived = ToHost(1, 5);
  record_.HostWaited(arrived);
  Kernel(2, 1);
  EXPECT_EQ(Times(1), Interval(5, 6));
}

TEST_F(EmulatedClockTest, TheHostsWorkComesAfterItsWaitsAndBeforeWhatItEnqueuesThen) {
  const EmulatedPoint arrived = ToHost(1, 5);
  Kernel(2, 20);
  record_.HostWaited(arrived);
  EmulatedCost cost;
  cost.engine = EmulatedEngine::kProcessor;
  cost.operations = 3;
  record_.AddOfHost("update", cost);
  record_.AddOfHost("update", cost);
  FromHost(1, 1);
  EXPECT_EQ(Times(2), Interval(5, 8));
  EXPECT_EQ(Times(3), Interval(8, 11));
  EXPECT_EQ(Times(4), Interval(11, 12));
  const EmulatedTimes times = PlayEmulated(record_.works(), kUnits);
  EXPECT_EQ(times.end, 20);
  EXPECT_EQ(times.busy[static_cast<size_t>(EmulatedEngine::kProcessor)], 6);
}

// Recording begins between operations: those before it are done.
TEST_F(EmulatedClockTest, OperationsThatWereNotRecordedAreWaitedForByNobody) {
  numbers_[1] = 7;
  EmulatedPoint before;
  before[1] = 7;
  before[2] = 3;
  FromHost(1, 2, before);
  EXPECT_EQ(Times(0), Interval(0, 2));
}

}  // namespace
}  // namespace megatron
