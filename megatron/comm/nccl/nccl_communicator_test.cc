// The communicator over a NCCL that threads play: what it does, and what it says when NCCL, the
// device or another rank fails. Over the real one: nccl_device_test.cc.
#include "megatron/comm/nccl/nccl_communicator.h"

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/steady_now.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/communicator.h"
#include "megatron/comm/communicator_conformance.h"
#include "megatron/comm/nccl/fake_nccl.h"
#include "megatron/comm/nccl/nccl_group.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/cuda_graph.h"
#include "megatron/tensor/emulated_cuda.h"
#include "megatron/tensor/host_mirror.h"
#include "megatron/tensor/memory.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr NcclResult kRemoteError = 6;

using Rank = std::function<absl::Status(NcclWorld*, const ProcessGroup&, const Stream&)>;

absl::Status RunOn(FakeNccl* fake, int size, const NcclWorldOptions& options, const Rank& rank) {
  ThreadWorld threads(size);
  return RunRanks(&threads, [&](int, const ProcessGroup& host) -> absl::Status {
    CudaStream cuda(0);
    MEGATRON_ASSIGN_OR_RETURN(const std::unique_ptr<NcclWorld> world,
                              NcclWorld::Create(fake, host.communicator(), options));
    return rank(world.get(), ProcessGroup(world->communicator()), Stream::Cuda(0, &cuda));
  });
}

NcclWorldOptions Hasty() {
  NcclWorldOptions options;
  options.deadline = options.connect_deadline = absl::Milliseconds(300);
  options.watch_interval = absl::Milliseconds(10);
  return options;
}

absl::Status RunConformance(int size, const ConformanceRank& rank) {
  FakeNccl fake;
  NcclWorldOptions options;
  options.compare_calls = options.sum_in_rank_order = true;
  return RunOn(&fake, size, options,
               [&](NcclWorld*, const ProcessGroup& world, const Stream& stream) {
                 return rank(world, stream);
               });
}

INSTANTIATE_TEST_SUITE_P(Nccl, CommunicatorConformanceTest,
                         ::testing::ValuesIn(ConformanceCases(RunConformance)),
                         ConformanceCaseName);

// Floats on the device that start as `value`.
class Floats {
 public:
  Floats(const Stream& stream, int64_t count, float value)
      : stream_(stream),
        buffer_(stream.device(), count * sizeof(float), "test", nullptr),
        mirror_(tensor(), "test") {
    for (int64_t i = 0; i < count; ++i) mirror_.host().data<float>()[i] = value;
    mirror_.Send(stream);
  }
  Tensor tensor() const {
    return buffer_.At(0, DType::kFloat32, {buffer_.bytes() / int64_t{sizeof(float)}});
  }
  float first() const {
    mirror_.Fetch(stream_);
    return mirror_.host().data<float>()[0];
  }

 private:
  const Stream stream_;
  const Buffer buffer_;
  const HostMirror mirror_;
};

TEST(NcclCommunicatorTest, SumsAreNcclsUnlessTheOrderOfRanksIsAskedFor) {
  for (const bool in_order : {false, true}) {
    FakeNccl fake;
    NcclWorldOptions options;
    options.sum_in_rank_order = in_order;
    EXPECT_THAT(RunOn(&fake, 3, options,
                      [&](NcclWorld*, const ProcessGroup& world, const Stream& stream) {
                        // The 1 is lost in the order of ranks, but not in the opposite order.
                        const float values[] = {1, 1e8f, -1e8f};
                        Floats x(stream, 1, values[world.rank()]);
                        world.AllReduce(x.tensor(), ReduceOp::kSum, stream);
                        EXPECT_EQ(x.first(), in_order ? 0 : 1);
                        return world.status();
                      }),
                IsOk());
  }
}

TEST(NcclCommunicatorTest, HostTensorsUseTheHostsCommunicator) {
  FakeNccl fake;
  EXPECT_THAT(RunOn(&fake, 2, {},
                    [](NcclWorld*, const ProcessGroup& world, const Stream&) {
                      ThreadPool pool(1);
                      float x = 1;
                      world.AllReduce(Tensor(&x, DType::kFloat32, {1}), ReduceOp::kSum,
                                      Stream::Cpu(&pool));
                      EXPECT_EQ(x, 2);
                      return world.status();
                    }),
              IsOk());
}

TEST(NcclCommunicatorTest, GroupsAreFinalizedAndGroupsOfOneRankHaveNoCommunicator) {
  FakeNccl fake;
  EXPECT_THAT(
      RunOn(&fake, 4, {},
            [](NcclWorld*, const ProcessGroup& world, const Stream& stream) -> absl::Status {
              Communicator& all = *world.communicator();
              MEGATRON_ASSIGN_OR_RETURN(const auto pair, all.Split({{0, 3}, {2, 1}}, "pair"));
              MEGATRON_ASSIGN_OR_RETURN(const auto alone, pair->Split({{0}, {1}}, "alone"));
              MEGATRON_ASSIGN_OR_RETURN(const auto same, alone->Split({{0}}, "same"));
              EXPECT_EQ(same->size(), 1);
              Floats x(stream, 10, static_cast<float>(world.rank()));
              ProcessGroup(pair).AllReduce(x.tensor(), ReduceOp::kSum, stream);
              EXPECT_EQ(x.first(), 3);
              return world.status();
            }),
      IsOk());
  EXPECT_THAT(fake.Names(1), ElementsAre("world", "pair-1"));
  EXPECT_EQ(fake.counts().made, 4 + 4);
  EXPECT_EQ(fake.counts().destroyed, 4 + 4);
}

TEST(NcclCommunicatorTest, CallsAfterTheWorldsEndFailAndDoNothing) {
  FakeNccl fake;
  const absl::Status status = RunRanks(2, [&](int, const ProcessGroup& host) -> absl::Status {
    CudaStream cuda(0);
    const Stream stream = Stream::Cuda(0, &cuda);
    MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<NcclWorld> world,
                              NcclWorld::Create(&fake, host.communicator(), {}));
    const ProcessGroup group(world->communicator());
    world.reset();
    Floats x(stream, 10, 5);
    group.AllReduce(x.tensor(), ReduceOp::kSum, stream);
    EXPECT_EQ(x.first(), 5);
    EXPECT_FALSE(group.status().ok());
    return absl::OkStatus();
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("NCCL has ended")));
}

TEST(NcclFailureTest, AnErrorThatNcclReportsNamesRankGroupAndCallOnAllRanks) {
  FakeNccl fake;
  const absl::Status status =
      RunOn(&fake, 3, Hasty(), [&](NcclWorld*, const ProcessGroup& world, const Stream& stream) {
        Floats x(stream, 8, 1);
        world.AllReduce(x.tensor(), ReduceOp::kSum, stream);
        if (world.rank() == 1) fake.Break(1, kRemoteError);
        // Rank 1 cannot any more, the others wait for it.
        world.AllReduce(x.tensor(), ReduceOp::kSum, stream);
        EXPECT_THAT(world.status(), StatusIs(absl::StatusCode::kUnavailable));
        return absl::OkStatus();
      });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                               AllOf(HasSubstr("rank 1 of world"), HasSubstr("NCCL has failed"),
                                     HasSubstr("fake error 6"))));
  EXPECT_EQ(fake.counts().aborted, 3);
}

TEST(NcclFailureTest, AnErrorBetweenCallsIsFoundByTheWatch) {
  FakeNccl fake;
  const absl::Status status =
      RunOn(&fake, 2, Hasty(), [&](NcclWorld*, const ProcessGroup& world, const Stream& stream) {
        world.Barrier(stream);
        if (world.rank() == 0) fake.Break(0, kRemoteError);
        while (world.status().ok()) absl::SleepFor(absl::Milliseconds(1));
        return absl::OkStatus();
      });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 0 of world")));
}

TEST(NcclFailureTest, ACallThatNotAllRanksMakeEndsAtTheDeadline) {
  FakeNccl fake;
  const absl::Status status =
      RunOn(&fake, 3, Hasty(), [&](NcclWorld*, const ProcessGroup& world, const Stream& stream) {
        Floats x(stream, 8, 1);
        if (world.rank() != 2) world.AllReduce(x.tensor(), ReduceOp::kSum, stream);
        while (world.status().ok()) absl::SleepFor(absl::Milliseconds(1));
        return absl::OkStatus();
      });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded,
                               HasSubstr("call 1, all-reduce(sum) of fp32[8]")));
}

TEST(NcclFailureTest, ADeviceThatDoesNotFinishACallIsFoundByTheWatch) {
  FakeNccl fake;
  std::vector<std::string> pending;
  const absl::Status status = RunOn(
      &fake, 2, Hasty(), [&](NcclWorld* nccl, const ProcessGroup& world, const Stream& stream) {
        Floats x(stream, 8, 1);
        world.AllReduce(x.tensor(), ReduceOp::kSum, stream);
        world.Barrier(stream);
        if (world.rank() == 0) MakeEmulatedEventsLate(true);
        world.Barrier(stream);
        world.AllReduce(x.tensor(), ReduceOp::kMax, stream);
        world.AllGather(x.tensor().Slice(0, 4 * world.rank(), 4 * world.rank() + 4), x.tensor(),
                        stream);
        while (world.status().ok()) absl::SleepFor(absl::Milliseconds(1));
        if (world.rank() == 0) pending = nccl->PendingCalls();
        return absl::OkStatus();
      });
  MakeEmulatedEventsLate(false);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded,
                               AllOf(HasSubstr("of world, call "),
                                     HasSubstr("the device has not done it after 300ms"))));
  // Nobody waited for the device: the call after it was enqueued too.
  ASSERT_GE(pending.size(), 2u);
  EXPECT_THAT(pending[pending.size() - 2], HasSubstr("call 2, all-reduce(max) of fp32[8]"));
  EXPECT_THAT(pending.back(), HasSubstr("call 3, all-gather of fp32[4]"));
}

TEST(NcclFailureTest, ARankThatWaitsForOthersIsReleasedWhenTheHostsWorldFails) {
  FakeNccl fake;
  const absl::Status status =
      RunOn(&fake, 2, {},
            [&](NcclWorld*, const ProcessGroup& world, const Stream& stream) -> absl::Status {
              if (world.rank() == 1) return absl::DataLossError("the disk is full");
              Floats x(stream, 8, 1);
              world.AllReduce(x.tensor(), ReduceOp::kSum, stream);
              EXPECT_THAT(world.status(), StatusIs(absl::StatusCode::kDataLoss));
              return absl::OkStatus();
            });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("the disk is full")));
  EXPECT_EQ(fake.counts().aborted, 2);
}

// A fake NCCL that tells when the first all-reduce is under way.
class TellingNccl : public FakeNccl {
 public:
  NcclResult AllReduce(const Tensor& inout, ReduceOp op, ncclComm* comm,
                       const Stream& stream) override {
    const NcclResult result = FakeNccl::AllReduce(inout, op, comm, stream);
    if (!under_way_.HasBeenNotified()) under_way_.Notify();
    return result;
  }
  void WaitForAllReduce() const { under_way_.WaitForNotification(); }

 private:
  absl::Notification under_way_;
};

// The world is aborted too, which is in no call.
TEST(NcclFailureTest, AGroupThatWaitsForOthersIsReleasedWithGroupsThatDoNot) {
  TellingNccl fake;
  const absl::Status status = RunOn(
      &fake, 2, {},
      [&](NcclWorld*, const ProcessGroup& world, const Stream& stream) -> absl::Status {
        MEGATRON_ASSIGN_OR_RETURN(const auto pair, world.communicator()->Split({{0, 1}}, "pair"));
        if (world.rank() == 1) {
          fake.WaitForAllReduce();
          return absl::DataLossError("the disk is full");
        }
        Floats x(stream, 8, 1);
        ProcessGroup(pair).AllReduce(x.tensor(), ReduceOp::kSum, stream);
        EXPECT_THAT(world.status(), StatusIs(absl::StatusCode::kDataLoss));
        return absl::OkStatus();
      });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("the disk is full")));
  EXPECT_EQ(fake.counts().aborted, 4);
}

TEST(NcclFailureTest, ARankThatWaitsInAGraphIsReleasedThoughGraphsHoldCallsOfEveryGroup) {
  FakeNccl fake;
  absl::Notification launches;
  const absl::Status status = RunOn(
      &fake, 2, {},
      [&](NcclWorld*, const ProcessGroup& world, const Stream& stream) -> absl::Status {
        MEGATRON_ASSIGN_OR_RETURN(const auto pair, world.communicator()->Split({{0, 1}}, "pair"));
        if (world.rank() == 1) {
          launches.WaitForNotification();
          return absl::DataLossError("the disk is full");
        }
        Floats x(stream, 8, 1);
        CudaGraph of_world, of_pair;
        of_world.BeginCapture(stream.cuda());
        world.AllReduce(x.tensor(), ReduceOp::kSum, stream);
        of_world.EndCapture(stream.cuda());
        of_pair.BeginCapture(stream.cuda());
        ProcessGroup(pair).AllReduce(x.tensor(), ReduceOp::kSum, stream);
        of_pair.EndCapture(stream.cuda());
        EXPECT_GT(of_world.num_operations(), 0);
        launches.Notify();
        of_pair.Launch(stream.cuda());
        while (world.status().ok()) absl::SleepFor(absl::Milliseconds(1));
        return absl::OkStatus();
      });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("the disk is full")));
  EXPECT_EQ(fake.counts().aborted, 4);
}

TEST(NcclFailureTest, ARankThatDoesNotComeToTheStartIsNamed) {
  FakeNccl fake;
  ThreadWorldOptions options;
  options.deadline = absl::Milliseconds(300);
  ThreadWorld threads(3, options);
  const absl::Status status =
      RunRanks(&threads, [&](int rank, const ProcessGroup& host) -> absl::Status {
        if (rank == 2) {
          while (threads.status().ok()) absl::SleepFor(absl::Milliseconds(1));
          return absl::OkStatus();
        }
        CudaStream cuda(0);
        return NcclWorld::Create(&fake, host.communicator(), Hasty()).status();
      });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 2 of world")));
}

TEST(NcclFailureTest, GroupsThatAreSplitDifferentlyAreRefused) {
  FakeNccl fake;
  const absl::Status status =
      RunOn(&fake, 2, Hasty(), [&](NcclWorld*, const ProcessGroup& world, const Stream&) {
        const auto split = world.communicator()->Split(
            {world.rank() == 0 ? std::vector<int>{0, 1} : std::vector<int>{1, 0}}, "tp");
        EXPECT_FALSE(split.ok());
        return absl::OkStatus();
      });
  EXPECT_FALSE(status.ok());
}

// A fake NCCL in which an abort takes as long as the test likes, and so does, from when it says so,
// a question for errors.
class HangingNccl : public FakeNccl {
 public:
  NcclResult AsyncError(ncclComm* comm) override {
    if (questions_hang_.HasBeenNotified()) Hang();
    return FakeNccl::AsyncError(comm);
  }
  NcclResult CommAbort(ncclComm* comm) override {
    Hang();
    return FakeNccl::CommAbort(comm);
  }
  void LetQuestionsHang() { questions_hang_.Notify(); }
  void WaitForACallThatHangs() const { hangs_.WaitForNotification(); }
  void GoOn() { goes_on_.Notify(); }

 private:
  void Hang() {
    if (!hangs_.HasBeenNotified()) hangs_.Notify();
    goes_on_.WaitForNotification();
  }

  absl::Notification questions_hang_, hangs_, goes_on_;
};

// One rank alone has a communicator, too.
absl::Status RunOnOneRank(HangingNccl* fake, const Rank& rank) {
  return RunOn(fake, 1, Hasty(), rank);
}

TEST(NcclCommunicatorTest, PendingCallsDoesNotWaitForACallThatHangs) {
  HangingNccl fake;
  EXPECT_THAT(RunOnOneRank(&fake,
                           [&](NcclWorld* world, const ProcessGroup& group, const Stream&) {
                             fake.LetQuestionsHang();
                             fake.WaitForACallThatHangs();
                             const absl::Time begin = SteadyNow();
                             const std::vector<std::string> pending = world->PendingCalls();
                             EXPECT_LT(SteadyNow() - begin, absl::Seconds(30));
                             EXPECT_THAT(pending,
                                         ElementsAre("rank 0 of world: a call of NCCL hangs"));
                             fake.GoOn();
                             return group.status();
                           }),
              IsOk());
}

TEST(NcclCommunicatorTest, AnAbortThatTakesLongHoldsUpNeitherCallsNorWhoAsksForThem) {
  HangingNccl fake;
  const NcclGroupOptions options = {0, absl::Minutes(5), absl::Minutes(5)};
  ThreadWorld threads(1);
  CudaStream cuda(0);
  const Stream stream = Stream::Cuda(0, &cuda);
  NcclGroup group(&fake, threads.communicator(0), options);
  NcclUniqueId id;
  ASSERT_EQ(fake.GetUniqueId(&id), kNcclSuccess);
  ASSERT_THAT(group.Initialize(id), IsOk());
  Floats x(stream, 8, 1);
  const NcclGroup::Calls sum = [&](ncclComm* comm) {
    return fake.AllReduce(x.tensor(), ReduceOp::kSum, comm, stream);
  };
  MakeEmulatedEventsLate(true);
  ASSERT_THAT(group.Enqueue("a sum", sum, stream), IsOk());
  std::thread abort([&] { group.Abort(); });
  fake.WaitForACallThatHangs();
  EXPECT_THAT(group.Enqueue("a sum", sum, stream),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("NCCL has ended")));
  EXPECT_THAT(group.PendingCalls(),
              ElementsAre("rank 0 of world, call 1, a sum, was on the device"));
  EXPECT_EQ(fake.counts().aborted, 0);
  fake.GoOn();
  abort.join();
  MakeEmulatedEventsLate(false);
  EXPECT_EQ(fake.counts().aborted, 1);
}

}  // namespace
}  // namespace megatron
