#include "megatron/comm/communicator_failure_conformance.h"

#include <atomic>
#include <memory>

#include "absl/status/status_matchers.h"
#include "absl/synchronization/barrier.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/communicator.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_P(CommunicatorFailureConformanceTest, BarrierWaitsForEveryRank) {
  std::atomic<int> entered{0};
  const absl::Status status = RunRanks(4, [&](int rank, const ProcessGroup& world) {
    Caller caller(world);
    for (int round = 1; round <= 50; ++round) {
      ++entered;
      world.Barrier(caller.stream);
      if (entered < 4 * round) return absl::InternalError("a rank passed early");
      world.Barrier(caller.stream);
    }
    return world.status();
  });
  EXPECT_THAT(status, IsOk());
}

TEST_P(CommunicatorFailureConformanceTest, AMissingRankIsNamedAtTheDeadline) {
  absl::Barrier* const started = new absl::Barrier(3);
  absl::Notification all_know;
  std::atomic<int> know{0};
  const absl::Status status = RunRanks(
      3,
      [&](int rank, const ProcessGroup& world) {
        Caller caller(world);
        caller.AllReduce();
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
      absl::Seconds(5));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded,
                               AllOf(HasSubstr("call 2, all-reduce(sum) of fp32[4]"),
                                     HasSubstr("still missing: rank 1 of world (world rank 1)"))));
}

TEST_P(CommunicatorFailureConformanceTest, AMissingPeerOfAnExchangeIsNamedAtTheDeadline) {
  absl::Notification known;
  const absl::Status status = RunRanks(
      2,
      [&](int rank, const ProcessGroup& world) {
        Caller caller(world);
        std::vector<float> values(100000);
        const Tensor tensor(values.data(), DType::kFloat32, {100000});
        if (rank == 0) {
          world.Exchange({{1, tensor}}, {}, caller.stream);
          known.Notify();
        } else {
          known.WaitForNotification();
        }
        return world.status();
      },
      absl::Milliseconds(100));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded,
                               AllOf(HasSubstr("rank 0 of world"), HasSubstr("exchange"),
                                     HasSubstr("still missing: rank 1"))));
}

TEST_P(CommunicatorFailureConformanceTest, ARankThatHasLeftIsNamedWithoutWaiting) {
  const absl::Status status = RunRanks(3, [&](int rank, const ProcessGroup& world) {
    Caller caller(world);
    if (rank == 2) return absl::OkStatus();
    caller.AllReduce();
    return absl::OkStatus();
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                               HasSubstr("rank 2 of world (world rank 2) has left")));
}

TEST_P(CommunicatorFailureConformanceTest, AnErrorOfOneRankEndsTheCallsOfAll) {
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
    return absl::OkStatus();
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("rank 3: bad file")));
}

TEST_P(CommunicatorFailureConformanceTest, AFailureInOneGroupEndsTheOthers) {
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
    return absl::OkStatus();
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                               AllOf(HasSubstr("group tp-1, call 1"),
                                     HasSubstr("rank 1 of tp-1 (world rank 3): "
                                               "all-reduce(sum) of fp32[5]"))));
}

TEST_P(CommunicatorFailureConformanceTest, MessagesThatDoNotFitTheirReceiverAreNamed) {
  const absl::Status status = RunRanks(2, [&](int rank, const ProcessGroup& world) {
    Caller caller(world);
    std::vector<float> values(8);
    const Tensor four(values.data(), DType::kFloat32, {4});
    const Tensor eight(values.data(), DType::kFloat32, {8});
    if (rank == 0) world.Exchange({{1, four}}, {}, caller.stream);
    if (rank == 1) world.Exchange({}, {{0, eight}}, caller.stream);
    return absl::OkStatus();
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                               HasSubstr("rank 0 of world (world rank 0) sends fp32[4] but rank 1 "
                                         "of world (world rank 1) receives fp32[8]")));
}

TEST_P(CommunicatorFailureConformanceTest, SplitsThatDisagreeAreNamed) {
  const absl::Status status = RunRanks(2, [&](int rank, const ProcessGroup& world) {
    return world.communicator()->Split({{0, 1}}, rank == 0 ? "tp" : "dp").status();
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                               AllOf(HasSubstr("into tp"), HasSubstr("into dp"))));
}

// Aborts at random moments of a stream of calls: every rank must come back, and nobody may touch a
// buffer whose owner has gone (which the sanitizers would see).
TEST_P(CommunicatorFailureConformanceTest, AnAbortAtAnyMomentEndsAllCalls) {
  for (int round = 0; round < 30; ++round) {
    std::atomic<int> calls{0};
    const int64_t count = 100 + (round % 2 == 0 ? 10 : 10000) * round;
    const absl::Status status = RunRanks(3, [&](int rank, const ProcessGroup& world) {
      Caller caller(world);
      while (world.status().ok()) {
        caller.AllReduce(count);
        std::vector<int32_t> out(count), in(count);
        world.Exchange({{(rank + 1) % 3, Tensor(out.data(), DType::kInt32, {count})}},
                       {{(rank + 2) % 3, Tensor(in.data(), DType::kInt32, {count})}},
                       caller.stream);
        if (rank == 0 && ++calls > round % 7) return absl::AbortedError("enough");
      }
      return absl::OkStatus();
    });
    ASSERT_THAT(status, StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 0: enough"))) << round;
  }
}

}  // namespace
}  // namespace megatron
