#include "megatron/comm/thread/thread_communicator.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <atomic>
#include <functional>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/communicator_conformance.h"
#include "megatron/comm/communicator_failure_conformance.h"
#include "megatron/comm/thread/run_ranks.h"

namespace megatron {
namespace {

absl::Status RunOnThreads(int size, const ConformanceRank& fn) {
  return RunRanks(size, [&](int rank, const ProcessGroup& world) {
    ThreadPool pool(2);
    return fn(world, Stream::Cpu(&pool));
  });
}

absl::Status RunWithDeadline(
    int size, const std::function<absl::Status(int rank, const ProcessGroup& world)>& fn,
    absl::Duration deadline) {
  return RunRanks(size, fn, {deadline});
}

INSTANTIATE_TEST_SUITE_P(Thread, CommunicatorConformanceTest,
                         ::testing::ValuesIn(ConformanceCases(RunOnThreads)), ConformanceCaseName);
INSTANTIATE_TEST_SUITE_P(ThreadByAlgorithm, CommunicatorConformanceTest,
                         ::testing::ValuesIn(AlgorithmCases(RunOnThreads)), ConformanceCaseName);
INSTANTIATE_TEST_SUITE_P(Thread, CommunicatorFailureConformanceTest,
                         ::testing::Values(RunWithDeadline));

// A thread that a signal holds where it is.
std::atomic<bool> held{false}, released{false};
void Hold(int) {
  held = true;
  const timespec moment = {0, 1000000};
  while (!released) nanosleep(&moment, nullptr);
}

void SleepUntil(const std::function<bool()>& condition) {
  while (!condition()) absl::SleepFor(absl::Milliseconds(1));
}

// Rank 0 waits for rank 1 to take its message, and is held there. Once rank 1 has, rank 0 waits for
// nobody, though its thread can't know.
TEST(ThreadWorldTest, ARankWhoseMessageWasTakenAwaitsNoRank) {
  signal(SIGUSR1, Hold);
  ThreadWorld world(2, {});
  std::atomic<pthread_t> sender{};
  std::atomic<bool> has_sender{false};
  std::vector<WaitingCall> before, after;
  const absl::Status status = RunRanks(&world, [&](int rank, const ProcessGroup& group) {
    ThreadPool pool(1);
    const Stream stream = Stream::Cpu(&pool);
    int32_t value = 7;
    const Tensor tensor(&value, DType::kInt32, {1});
    if (rank == 0) {
      sender = pthread_self();
      has_sender = true;
      group.Exchange({{1, tensor}}, {}, stream);
      return group.status();
    }
    SleepUntil([&] { return has_sender.load(); });
    SleepUntil([&] {
      before = world.WaitingCalls(0);
      return !before.empty() && !before[0].awaited.empty();
    });
    pthread_kill(sender, SIGUSR1);
    SleepUntil([] { return held.load(); });
    group.Exchange({}, {{0, tensor}}, stream);
    after = world.WaitingCalls(0);
    released = true;
    return group.status();
  });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(before[0].awaited, ::testing::ElementsAre(1));
  ASSERT_EQ(after.size(), 1u);
  EXPECT_THAT(after[0].awaited, ::testing::IsEmpty());
}

}  // namespace
}  // namespace megatron
