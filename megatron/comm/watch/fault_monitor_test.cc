#include "megatron/comm/watch/fault_monitor.h"

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/starve_threads.h"
#include "megatron/base/steady_now.h"
#include "megatron/comm/communicator.h"
#include "megatron/comm/process_group.h"
#include "megatron/comm/store/memory_store.h"
#include "megatron/comm/tcp/tcp_communicator.h"
#include "megatron/comm/thread/run_ranks.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;

FaultMonitorOptions ShortOptions() {
  FaultMonitorOptions options;
  options.stuck_after = absl::Seconds(1);
  options.grace = absl::Minutes(5);  // the test goes on
  return options;
}

void Reduce(const ProcessGroup& group) {
  float value = 1;
  group.AllReduce(Tensor(&value, DType::kFloat32, {1}), ReduceOp::kSum, Stream::Inline());
}

ProcessGroup Split(const ProcessGroup& world, const std::vector<std::vector<int>>& partition,
                   const std::string& name) {
  return ProcessGroup(*world.communicator()->Split(partition, name));
}

// Four ranks form a square, with a group for each row and each column. The ranks of `column_first`
// call in their column's group first, the others in their row's.
void CallInRowAndColumn(const ProcessGroup& world, const std::vector<int>& column_first) {
  const ProcessGroup row = Split(world, {{0, 1}, {2, 3}}, "tp");
  const ProcessGroup column = Split(world, {{0, 2}, {1, 3}}, "dp");
  const bool other_way = absl::c_linear_search(column_first, world.rank());
  Reduce(other_way ? column : row);
  Reduce(other_way ? row : column);
}

// Rank 0 sends a message while rank 1 calls a collective.
void SendIntoCollective(const ProcessGroup& world) {
  float value = 1;
  const Tensor tensor(&value, DType::kFloat32, {1});
  if (world.rank() == 0) {
    world.Exchange({{1, tensor}}, {}, Stream::Inline());
  } else {
    Reduce(world);
  }
}

// The other ranks wait long for rank 1, which computes.
void ComputeLong(const ProcessGroup& world) {
  const absl::Time until = SteadyNow() + absl::Seconds(3);
  volatile uint64_t turns = 0;
  while (world.rank() == 1 && SteadyNow() < until) turns = turns + 1;
  Reduce(world);
}

using RankBody = std::function<void(const ProcessGroup& world)>;

absl::Status RunThreads(int size, const RankBody& body) {
  ThreadWorld world(size);
  FaultMonitor monitor(&world, ShortOptions());
  const absl::Status status = RunRanks(&world, [&](int rank, const ProcessGroup& group) {
    RankProgress progress;
    const FaultMonitor::Watch watch(&monitor, rank, &progress);
    body(group);
    return group.status();
  });
  if (!status.ok()) monitor.WaitUntilReported();
  return status;
}

// Runs the ranks as processes would: each has its own TcpWorld and monitor.
absl::Status RunAsProcesses(int size, const RankBody& body) {
  MemoryStore store;
  const JobSecret secret = JobSecret::Random();
  std::vector<absl::Status> statuses(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      TcpWorldOptions options;
      options.rank = rank;
      options.size = size;
      options.heartbeat_interval = absl::Milliseconds(100);
      const auto world = *TcpWorld::Create(&store, secret, options);
      RankProgress progress;
      FaultMonitor monitor(world.get(), ShortOptions());
      {
        const FaultMonitor::Watch watch(&monitor, rank, &progress);
        body(ProcessGroup(world->communicator()));
      }
      statuses[rank] = world->status();
      if (!statuses[rank].ok()) monitor.WaitUntilReported();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses[0];
}

// On a machine that has too much to do the monitor gets no processor either, and what it did not
// see says nothing about its ranks.
TEST(StarvedMonitorTest, LosesNoRank) {
  FaultMonitorOptions options = ShortOptions();
  options.stuck_after = absl::Seconds(3);
  ThreadWorld world(1);
  std::thread([] {}).join();  // ThreadSanitizer starts a thread of its own along with the first one
  const std::set<pid_t> before = ThreadIds();
  FaultMonitor monitor(&world, options);
  const std::set<pid_t> watching = ThreadsSince(before);
  ASSERT_EQ(watching.size(), 1u);
  RankProgress progress;
  const FaultMonitor::Watch watch(&monitor, 0, &progress);
  absl::SleepFor(absl::Milliseconds(200));  // it has looked
  // Neither the monitor nor the rank, which is this thread, does anything.
  Starve(watching, 2 * options.stuck_after);
  absl::SleepFor(2 * options.stuck_after + absl::Milliseconds(300));
  // It has looked again.
  progress.Enter(Phase::kForward);
  absl::SleepFor(absl::Milliseconds(300));
  EXPECT_THAT(world.status(), IsOk());
}

using Runner = absl::Status (*)(int size, const RankBody& body);

class FaultMonitorTest : public ::testing::TestWithParam<Runner> {};

TEST_P(FaultMonitorTest, RanksThatWaitForEachOtherAreNamed) {
  const absl::Time begin = SteadyNow();
  // 0 waits for 1, which waits for 3, which waits for 2, which waits for 0.
  const absl::Status status = GetParam()(4, [](const ProcessGroup& world) {
    CallInRowAndColumn(world, {1, 2});
  });
  EXPECT_LT(SteadyNow() - begin, absl::Seconds(10));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  const std::string call = ", all-reduce(sum) of fp32[1], for world rank ";
  EXPECT_EQ(status.message(),
            absl::StrCat("ranks wait for each other: rank 0 of tp-0 (world rank 0) was in call 1",
                         call, "1; rank 0 of dp-1 (world rank 1) was in call 1", call,
                         "3; rank 1 of dp-0 (world rank 2) was in call 1", call,
                         "0; rank 1 of tp-1 (world rank 3) was in call 1", call, "2"));
}

TEST_P(FaultMonitorTest, DifferentOrdersWithoutADeadlockAreNoFailure) {
  EXPECT_THAT(GetParam()(4, [](const ProcessGroup& world) { CallInRowAndColumn(world, {1}); }),
              IsOk());
}

TEST_P(FaultMonitorTest, AnExchangeThatMeetsACollectiveIsNamed) {
  const absl::Status status = GetParam()(2, SendIntoCollective);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()),
              ::testing::AllOf(::testing::HasSubstr("was in an exchange"),
                               ::testing::HasSubstr("was in call 1, all-reduce(sum)")));
}

TEST_P(FaultMonitorTest, WaitingForARankThatComputesIsNoFailure) {
  EXPECT_THAT(GetParam()(3, ComputeLong), IsOk());
}

INSTANTIATE_TEST_SUITE_P(, FaultMonitorTest, ::testing::Values(RunThreads, RunAsProcesses),
                         [](const auto& info) { return info.index == 0 ? "Threads" : "Tcp"; });

}  // namespace
}  // namespace megatron
