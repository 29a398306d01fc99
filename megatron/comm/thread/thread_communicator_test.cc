#include "megatron/comm/thread/thread_communicator.h"

#include <atomic>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/synchronization/barrier.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/communicator_conformance.h"
#include "megatron/comm/thread/run_ranks.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

absl::Status RunOnThreads(int size, const ConformanceRank& fn) {
  return RunRanks(size, [&](int rank, const ProcessGroup& world) {
    ThreadPool pool(2);
    return fn(world, Stream::Cpu(&pool));
  });
}

INSTANTIATE_TEST_SUITE_P(Thread, CommunicatorConformanceTest,
                         ::testing::ValuesIn(ConformanceCases(RunOnThreads)), ConformanceCaseName);

// One rank with what it needs to call.
struct Caller {
  explicit Caller(const ProcessGroup& group) : group(group) {}

  void AllReduce(int64_t count = 4) {
    std::vector<float> values(count);
    group.AllReduce(Tensor(values.data(), DType::kFloat32, {count}), ReduceOp::kSum, stream);
  }

  ProcessGroup group;
  ThreadPool pool{1};
  Stream stream = Stream::Cpu(&pool);
};

TEST(ThreadCommunicatorTest, BarrierWaitsForEveryRank) {
  std::atomic<int> entered{0};
  const absl::Status status = RunRanks(4, [&](int rank, const ProcessGroup& world) {
    Caller caller(world);
    for (int round = 1; round <= 100; ++round) {
      ++entered;
      world.Barrier(caller.stream);
      if (entered < 4 * round) return absl::InternalError("a rank passed early");
      world.Barrier(caller.stream);
    }
    return world.status();
  });
  EXPECT_THAT(status, IsOk());
}

TEST(ThreadCommunicatorTest, AMissingRankIsNamedAtTheDeadline) {
  absl::Barrier* const started = new absl::Barrier(3);
  absl::Notification all_know;
  std::atomic<int> know{0};
  const absl::Status status =
      RunRanks(3,
               [&](int rank, const ProcessGroup& world) {
                 Caller caller(world);
                 if (started->Block()) delete started;  // so that a slow start is no missing rank
                 if (rank == 1) {
                   all_know.WaitForNotification();
                 } else {
                   // The rank that comes while another waits is not missing at the deadline.
                   if (rank == 0) absl::SleepFor(absl::Milliseconds(200));
                   caller.AllReduce();
                   if (++know == 2) all_know.Notify();
                 }
                 return world.status();
               },
               {absl::Seconds(10)});
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded,
                               AllOf(HasSubstr("call 1, all-reduce(sum) of fp32[4]"),
                                     HasSubstr("still missing: rank 1 of world (world rank 1)"))));
}

TEST(ThreadCommunicatorTest, AMissingPeerOfAnExchangeIsNamedAtTheDeadline) {
  absl::Notification known;
  const absl::Status status = RunRanks(2,
                                       [&](int rank, const ProcessGroup& world) {
                                         Caller caller(world);
                                         int32_t value = 0;
                                         const Tensor tensor(&value, DType::kInt32, {1});
                                         if (rank == 0) {
                                           world.Exchange({{1, tensor}}, {}, caller.stream);
                                           known.Notify();
                                         } else {
                                           known.WaitForNotification();
                                         }
                                         return world.status();
                                       },
                                       {absl::Milliseconds(50)});
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded,
                               AllOf(HasSubstr("rank 0 of world"), HasSubstr("exchange"),
                                     HasSubstr("still missing: rank 1"))));
}

TEST(ThreadCommunicatorTest, ARankThatHasLeftIsNamedWithoutWaiting) {
  const absl::Status status = RunRanks(3, [&](int rank, const ProcessGroup& world) {
    Caller caller(world);
    if (rank == 2) return absl::OkStatus();
    caller.AllReduce();
    return absl::OkStatus();
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 2 of world")));
}

TEST(ThreadCommunicatorTest, AnErrorOfOneRankEndsTheCallsOfAll) {
  const absl::Status status = RunRanks(4, [&](int rank, const ProcessGroup& world) {
    Caller caller(world);
    world.Barrier(caller.stream);
    if (rank == 3) return absl::DataLossError("bad file");
    if (rank == 2) {
      int32_t value = 0;
      world.Exchange({}, {{3, Tensor(&value, DType::kInt32, {1})}}, caller.stream);
    } else {
      caller.AllReduce();
    }
    return world.status();
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("rank 3: bad file")));
}

TEST(ThreadCommunicatorTest, AFailureInOneGroupEndsTheOthers) {
  const absl::Status status = RunRanks(4, [&](int rank, const ProcessGroup& world) -> absl::Status {
    Caller caller(world);
    MEGATRON_ASSIGN_OR_RETURN(auto pair, world.communicator()->Split({{0, 1}, {2, 3}}, "tp"));
    caller.group = ProcessGroup(pair);
    if (rank == 3) {
      caller.AllReduce(5);
    } else if (rank == 2) {
      caller.AllReduce(4);
    } else {
      world.Barrier(caller.stream);  // ranks 2 and 3 never come
    }
    if (caller.group.status() != world.status()) return absl::InternalError("groups differ");
    return world.status();
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                               AllOf(HasSubstr("group tp-1, call 1"),
                                     HasSubstr("rank 1 of tp-1 (world rank 3): "
                                               "all-reduce(sum) of fp32[5]"))));
}

TEST(ThreadCommunicatorTest, MessagesThatDoNotFitTheirReceiverAreNamed) {
  const absl::Status status = RunRanks(2, [&](int rank, const ProcessGroup& world) {
    Caller caller(world);
    std::vector<float> values(8);
    const Tensor four(values.data(), DType::kFloat32, {4});
    const Tensor eight(values.data(), DType::kFloat32, {8});
    if (rank == 0) world.Exchange({{1, four}}, {}, caller.stream);
    if (rank == 1) world.Exchange({}, {{0, eight}}, caller.stream);
    return world.status();
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                               HasSubstr("rank 0 of world (world rank 0) sends fp32[4] but rank 1 "
                                         "of world (world rank 1) receives fp32[8]")));
}

TEST(ThreadCommunicatorTest, SplitsThatDisagreeAreNamed) {
  const absl::Status status = RunRanks(2, [&](int rank, const ProcessGroup& world) {
    return world.communicator()->Split({{0, 1}}, rank == 0 ? "tp" : "dp").status();
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                               AllOf(HasSubstr("tp"), HasSubstr("dp"))));
}

// Aborts at random moments of a stream of calls: every rank must come back, and never touch a
// buffer of a rank that is gone (which the sanitizers would see).
TEST(ThreadCommunicatorTest, AnAbortAtAnyMomentLeavesNobodyBehind) {
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> calls{0};
    const absl::Status status = RunRanks(3, [&](int rank, const ProcessGroup& world) {
      Caller caller(world);
      while (world.status().ok()) {
        caller.AllReduce(1 + round * 10);
        std::vector<int32_t> out(100 + round), in(100 + round);
        world.Exchange({{(rank + 1) % 3, Tensor(out.data(), DType::kInt32, {100 + round})}},
                       {{(rank + 2) % 3, Tensor(in.data(), DType::kInt32, {100 + round})}},
                       caller.stream);
        if (rank == 0 && ++calls > round % 7) return absl::AbortedError("enough");
      }
      return absl::OkStatus();
    });
    ASSERT_THAT(status, StatusIs(absl::StatusCode::kAborted)) << round;
  }
}

}  // namespace
}  // namespace megatron
