#include "megatron/comm/hierarchical/hierarchical_communicator.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/communicator.h"
#include "megatron/comm/communicator_conformance.h"
#include "megatron/comm/communicator_failure_conformance.h"
#include "megatron/comm/counted_communicator.h"
#include "megatron/comm/forwarding_communicator.h"
#include "megatron/comm/hierarchical/host_ranks.h"
#include "megatron/comm/process_group.h"
#include "megatron/comm/tcp/run_tcp_ranks.h"
#include "megatron/comm/thread/run_ranks.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Chunks of few elements, so that small tensors have several.
constexpr HierarchicalOptions kSmallChunks = {16, 4096};

std::vector<int> HostsOf(int size, int ranks_per_host) {
  std::vector<int> hosts;
  for (int rank = 0; rank < size; ++rank) hosts.push_back(rank / ranks_per_host);
  return hosts;
}

absl::StatusOr<ProcessGroup> Levels(const ProcessGroup& world, const std::vector<int>& hosts,
                                    const HierarchicalOptions& options = kSmallChunks) {
  if (world.size() == 1) return world;
  MEGATRON_ASSIGN_OR_RETURN(std::shared_ptr<Communicator> levels,
                            Hierarchical(world.communicator(), hosts, options));
  return ProcessGroup(std::move(levels));
}

template <typename Run>
ConformanceCase Case(const Run& run, int size, int ranks_per_host) {
  const ConformanceRunner runner = [=](int ranks, const ConformanceRank& fn) {
    return run(ranks, [&](int, const ProcessGroup& world) -> absl::Status {
      ThreadPool pool(2);
      MEGATRON_ASSIGN_OR_RETURN(const ProcessGroup levels,
                                Levels(world, HostsOf(ranks, ranks_per_host)));
      return fn(levels, Stream::Cpu(&pool));
    });
  };
  return {runner, size, ranks_per_host};
}

absl::Status OnThreads(int size, const RankFunction& fn) { return RunRanks(size, fn); }
absl::Status OnTcp(int size, const RankFunction& fn) { return RunTcpRanksOnThreads(size, fn); }

INSTANTIATE_TEST_SUITE_P(HierarchicalOnThreads, CommunicatorConformanceTest,
                         ::testing::Values(Case(OnThreads, 2, 2), Case(OnThreads, 4, 2),
                                           Case(OnThreads, 6, 2), Case(OnThreads, 6, 3)),
                         ConformanceCaseName);
INSTANTIATE_TEST_SUITE_P(HierarchicalOverTcp, CommunicatorConformanceTest,
                         ::testing::Values(Case(OnTcp, 4, 2)), ConformanceCaseName);

// Worlds of even size have hosts of two ranks.
template <typename Run>
FailureConformanceRunner Failing(const Run& run) {
  return [=](int size, const RankFunction& fn, absl::Duration deadline) {
    return run(
        size,
        [&](int rank, const ProcessGroup& world) -> absl::Status {
          MEGATRON_ASSIGN_OR_RETURN(const ProcessGroup levels,
                                    Levels(world, HostsOf(size, size % 2 == 0 ? 2 : 1)));
          return fn(rank, levels);
        },
        deadline);
  };
}

absl::Status OnThreadsUntil(int size, const RankFunction& fn, absl::Duration deadline) {
  return RunRanks(size, fn, {deadline});
}
absl::Status OnTcpUntil(int size, const RankFunction& fn, absl::Duration deadline) {
  TcpWorldOptions options;
  options.deadline = deadline;
  return RunTcpRanksOnThreads(size, fn, options);
}

INSTANTIATE_TEST_SUITE_P(HierarchicalOnThreads, CommunicatorFailureConformanceTest,
                         ::testing::Values(Failing(OnThreadsUntil)));
INSTANTIATE_TEST_SUITE_P(HierarchicalOverTcp, CommunicatorFailureConformanceTest,
                         ::testing::Values(Failing(OnTcpUntil)));

TEST(HostRanksTest, RanksOfAHostAscendAndHostsAreInTheOrderOfTheirFirstRank) {
  EXPECT_THAT(RanksByHost({5, 2, 2, 5}, "g"), IsOkAndHolds(HostRanks{{0, 3}, {1, 2}}));
  EXPECT_TRUE(HasTwoLevels({{0, 3}, {1, 2}}));
  EXPECT_FALSE(HasTwoLevels({{0, 1, 2}}));
  EXPECT_FALSE(HasTwoLevels({{0}, {1}, {2}}));
}

TEST(HostRanksTest, HostsWithDifferentNumbersOfRanksAreNamed) {
  EXPECT_THAT(RanksByHost({0, 0, 3, 3, 3}, "dp-cp-1"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("group dp-cp-1 has 2 of its 5 ranks on host 0 and 3 on host 3")));
}

// Numbers of a rank that look random; whole and small, so that sums are exact, or not.
float ValueOf(int rank, int64_t i, bool exact) {
  const uint32_t hash = static_cast<uint32_t>(rank * 7919 + i * 104729 + 12345) * 2654435761u;
  return exact ? static_cast<float>(hash >> 24) - 100
               : static_cast<float>(hash >> 8) / 4096 - 2048.3f;
}

std::vector<float> Values(int rank, int64_t count, bool exact) {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = ValueOf(rank, i, exact);
  return values;
}

Tensor Over(std::vector<float>& values) {
  return Tensor(values.data(), DType::kFloat32, {static_cast<int64_t>(values.size())});
}

absl::Status Equal(const std::vector<float>& found, const std::vector<float>& expected,
                   float tolerance, const std::string& what) {
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::abs(found[i] - expected[i]) <= tolerance) continue;
    return absl::InternalError(
        absl::StrCat(what, ": ", found[i], " at ", i, " instead of ", expected[i]));
  }
  return absl::OkStatus();
}

// The four operations with counts of rows that make chunks uneven, against the flat ones.
absl::Status CompareWithFlat(const ProcessGroup& flat, const ProcessGroup& levels, int64_t count,
                             bool exact) {
  const Stream stream = Stream::Inline();
  const int size = flat.size(), rank = flat.rank();
  // Values are below 2048.3 + 2048, and an fp32 sum of n of them is off by less than n roundings.
  const float bound = exact ? 0 : size * size * 4096 * 6e-8f;
  std::vector<float> whole = Values(rank, count * size, exact), expected = whole, found = whole;
  // Not a multiple of the ranks.
  expected.pop_back();
  found.pop_back();
  flat.AllReduce(Over(expected), ReduceOp::kSum, stream);
  levels.AllReduce(Over(found), ReduceOp::kSum, stream);
  MEGATRON_RETURN_IF_ERROR(Equal(found, expected, bound, "all-reduce"));
  std::vector<float> sums = found;

  expected.assign(count, 0);
  found.assign(count, 1);
  flat.ReduceScatter(Over(whole), Over(expected), stream);
  levels.ReduceScatter(Over(whole), Over(found), stream);
  MEGATRON_RETURN_IF_ERROR(Equal(found, expected, bound, "reduce-scatter"));
  // The same element has the same bits by either operation.
  const size_t own = rank == size - 1 ? count - 1 : count;
  if (std::memcmp(found.data(), sums.data() + rank * count, own * sizeof(float)) != 0)
    return absl::InternalError("an all-reduce and a reduce-scatter differ");

  std::vector<float> part = Values(rank, count, exact);
  expected.assign(count * size, 0);
  found.assign(count * size, 1);
  flat.AllGather(Over(part), Over(expected), stream);
  levels.AllGather(Over(part), Over(found), stream);
  MEGATRON_RETURN_IF_ERROR(Equal(found, expected, 0, "all-gather"));

  expected.assign(count * size, 0);
  found.assign(count * size, 1);
  flat.AllToAll(Over(whole), Over(expected), stream);
  levels.AllToAll(Over(whole), Over(found), stream);
  MEGATRON_RETURN_IF_ERROR(Equal(found, expected, 0, "all-to-all"));

  const auto rows = [&](int from, int to) { return (from * 5 + to * 3) % 4 * count % 5; };
  std::vector<int64_t> send, receive;
  int64_t sent = 0, received = 0;
  for (int peer = 0; peer < size; ++peer) {
    sent += send.emplace_back(rows(rank, peer));
    received += receive.emplace_back(rows(peer, rank));
  }
  std::vector<float> in = Values(rank, sent * 3, exact);
  expected.assign(received * 3, 0);
  found.assign(received * 3, 1);
  const auto matrix = [](std::vector<float>& values) {
    return Over(values).View({static_cast<int64_t>(values.size()) / 3, 3});
  };
  flat.AllToAllV(matrix(in), send, matrix(expected), receive, stream);
  levels.AllToAllV(matrix(in), send, matrix(found), receive, stream);
  MEGATRON_RETURN_IF_ERROR(Equal(found, expected, 0, "all-to-all-v"));
  return flat.status();
}

TEST(HierarchicalCommunicatorTest, AllNumbersOfHostsAndRanksGiveWhatTheFlatCallGives) {
  for (int hosts = 2; hosts <= 16; ++hosts) {
    for (int locals = 2; hosts * locals <= 32; ++locals) {
      const absl::Status status =
          RunRanks(hosts * locals, [&](int, const ProcessGroup& world) -> absl::Status {
            MEGATRON_ASSIGN_OR_RETURN(const ProcessGroup levels,
                                      Levels(world, HostsOf(hosts * locals, locals)));
            for (const int64_t count : {1, 37}) {
              MEGATRON_RETURN_IF_ERROR(CompareWithFlat(world, levels, count, /*exact=*/true));
              MEGATRON_RETURN_IF_ERROR(CompareWithFlat(world, levels, count, /*exact=*/false));
            }
            return absl::OkStatus();
          });
      ASSERT_THAT(status, IsOk()) << hosts << " hosts of " << locals << " ranks";
    }
  }
}

// As under an order of the axes in which neighbours of a group lie on different hosts.
TEST(HierarchicalCommunicatorTest, RanksOfAHostNeedNotBeNeighboursInTheGroup) {
  for (const std::vector<int>& hosts :
       {std::vector<int>{0, 1, 0, 1}, {0, 1, 2, 0, 1, 2}, {1, 0, 0, 1, 1, 0}}) {
    const absl::Status status = RunRanks(
        static_cast<int>(hosts.size()), [&](int, const ProcessGroup& world) -> absl::Status {
          MEGATRON_ASSIGN_OR_RETURN(const ProcessGroup levels, Levels(world, hosts));
          for (const int64_t count : {1, 3, 501})
            MEGATRON_RETURN_IF_ERROR(CompareWithFlat(world, levels, count, /*exact=*/true));
          return absl::OkStatus();
        });
    EXPECT_THAT(status, IsOk());
  }
}

// One chunk, several, and one for each element have the same bits.
TEST(HierarchicalCommunicatorTest, ChunksDoNotChangeABit) {
  const int64_t count = 6007;
  std::vector<std::vector<float>> results;
  for (const HierarchicalOptions& options :
       {HierarchicalOptions{}, HierarchicalOptions{1 << 10, 1 << 12}, HierarchicalOptions{1, 4}}) {
    std::vector<std::vector<float>> of_ranks(6);
    ASSERT_THAT(RunRanks(6,
                         [&](int rank, const ProcessGroup& world) -> absl::Status {
                           MEGATRON_ASSIGN_OR_RETURN(const ProcessGroup levels,
                                                     Levels(world, HostsOf(6, 2), options));
                           of_ranks[rank] = Values(rank, count, /*exact=*/false);
                           levels.AllReduce(Over(of_ranks[rank]), ReduceOp::kSum, Stream::Inline());
                           return world.status();
                         }),
                IsOk());
    for (const std::vector<float>& of_rank : of_ranks) results.push_back(of_rank);
  }
  for (const std::vector<float>& result : results) EXPECT_EQ(result, results[0]);
}

// The bytes that each rank sends within its host and to other hosts (docs/communication.md).
TEST(HierarchicalCommunicatorTest, BytesOfBothLevelsAreThoseOfTheFormulas) {
  constexpr int kHosts = 3, kLocals = 4, kSize = kHosts * kLocals;
  constexpr int64_t kCount = 100, kWhole = kCount * kSize * sizeof(float);
  const absl::Status status =
      RunRanks(kSize, [&](int rank, const ProcessGroup& world) -> absl::Status {
        BytesSent sent;
        MEGATRON_ASSIGN_OR_RETURN(
            const ProcessGroup levels,
            Levels(ProcessGroup(Counted(world.communicator(), &sent)), HostsOf(kSize, kLocals)));
        const auto in_host = [&](Collective call) { return sent.Of("world-in-host", call); };
        const auto between = [&](Collective call) { return sent.Of("world-between-hosts", call); };
        const Stream stream = Stream::Inline();
        std::vector<float> whole(kCount * kSize, rank), other = whole, part(kCount);
        levels.AllReduce(Over(whole), ReduceOp::kSum, stream);
        EXPECT_EQ(in_host(Collective::kReduceScatter), kWhole * (kLocals - 1) / kLocals);
        EXPECT_EQ(in_host(Collective::kAllGather), kWhole * (kLocals - 1) / kLocals);
        EXPECT_EQ(between(Collective::kAllReduce), 2 * kWhole / kLocals * (kHosts - 1) / kHosts);
        EXPECT_GE(sent.CallsOf("world-between-hosts", Collective::kAllReduce), 4);
        EXPECT_EQ(sent.Total(),
                  in_host(Collective::kReduceScatter) * 2 + between(Collective::kAllReduce));
        sent.Reset();
        levels.ReduceScatter(Over(whole), Over(part), stream);
        EXPECT_EQ(in_host(Collective::kReduceScatter), kWhole * (kLocals - 1) / kLocals);
        EXPECT_EQ(between(Collective::kReduceScatter), kWhole / kLocals * (kHosts - 1) / kHosts);
        EXPECT_EQ(sent.Total(),
                  in_host(Collective::kReduceScatter) + between(Collective::kReduceScatter));
        sent.Reset();
        levels.AllGather(Over(part), Over(whole), stream);
        EXPECT_EQ(between(Collective::kExchange), kWhole / kSize * (kHosts - 1));
        EXPECT_EQ(in_host(Collective::kExchange), kWhole * (kLocals - 1) / kLocals);
        EXPECT_EQ(sent.Total(), between(Collective::kExchange) + in_host(Collective::kExchange));
        sent.Reset();
        levels.AllToAll(Over(whole), Over(other), stream);
        EXPECT_EQ(between(Collective::kExchange), kWhole * (kSize - kLocals) / kSize);
        EXPECT_EQ(in_host(Collective::kExchange), kWhole * (kLocals - 1) / kLocals);
        EXPECT_EQ(sent.Total(), between(Collective::kExchange) + in_host(Collective::kExchange));
        return world.status();
      });
  EXPECT_THAT(status, IsOk());
}

// Notes the messages that its ranks send between hosts.
class MessagesBetweenHosts : public ForwardingCommunicator {
 public:
  MessagesBetweenHosts(std::shared_ptr<Communicator> communicator, std::atomic<int>* messages)
      : ForwardingCommunicator(std::move(communicator)), messages_(messages) {}
  void Run(const CollectiveCall& call, const Stream& stream) override {
    if (name().find("between") != std::string::npos) *messages_ += call.sends.size();
    inner().Run(call, stream);
  }

 private:
  std::shared_ptr<Communicator> Wrap(std::shared_ptr<Communicator> part) override {
    return std::make_shared<MessagesBetweenHosts>(std::move(part), messages_);
  }

  std::atomic<int>* const messages_;
};

TEST(HierarchicalCommunicatorTest, AnAllToAllSendsOneMessageToEachOtherHost) {
  const absl::Status status = RunRanks(12, [](int, const ProcessGroup& world) -> absl::Status {
    std::atomic<int> messages{0};
    const ProcessGroup noted(
        std::make_shared<MessagesBetweenHosts>(world.communicator(), &messages));
    MEGATRON_ASSIGN_OR_RETURN(const ProcessGroup levels, Levels(noted, HostsOf(12, 4), {}));
    std::vector<float> in(1200, 1), out(1200);
    levels.AllToAll(Over(in), Over(out), Stream::Inline());
    EXPECT_EQ(messages, 2);
    const std::vector<int64_t> counts(12, 100);
    levels.AllToAllV(Over(in), counts, Over(out), counts, Stream::Inline());
    EXPECT_EQ(messages, 4);
    return world.status();
  });
  EXPECT_THAT(status, IsOk());
}

TEST(HierarchicalCommunicatorTest, GroupsWithoutTwoLevelsAreTheCommunicatorItself) {
  const absl::Status status = RunRanks(4, [](int, const ProcessGroup& world) -> absl::Status {
    for (const std::vector<int>& hosts : {std::vector<int>{0, 0, 0, 0}, {0, 1, 2, 3}}) {
      MEGATRON_ASSIGN_OR_RETURN(const auto levels, Hierarchical(world.communicator(), hosts));
      if (levels != world.communicator()) return absl::InternalError("it has levels");
    }
    const auto uneven = Hierarchical(world.communicator(), {0, 0, 0, 1});
    EXPECT_THAT(uneven, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("group world")));
    return absl::OkStatus();
  });
  EXPECT_THAT(status, IsOk());
}

TEST(HierarchicalCommunicatorTest, ASplitHasLevelsToo) {
  const absl::Status status = RunRanks(8, [](int, const ProcessGroup& world) -> absl::Status {
    BytesSent sent;
    MEGATRON_ASSIGN_OR_RETURN(
        const ProcessGroup levels,
        Levels(ProcessGroup(Counted(world.communicator(), &sent)), HostsOf(8, 4)));
    MEGATRON_ASSIGN_OR_RETURN(auto part,
                              levels.communicator()->Split({{0, 2, 4, 6}, {1, 3, 5, 7}}, "dp"));
    std::vector<float> values(16, 1);
    ProcessGroup(part).AllReduce(Over(values), ReduceOp::kSum, Stream::Inline());
    EXPECT_EQ(values, std::vector<float>(16, 4));
    EXPECT_EQ(sent.Of("dp-", Collective::kAllReduce), 32);
    EXPECT_GT(sent.CallsOf(absl::StrCat(part->name(), "-between-hosts"), Collective::kAllReduce),
              0);
    return world.status();
  });
  EXPECT_THAT(status, IsOk());
}

// Aborts at random moments of all operations; no call may be left, on any rank or lane.
TEST(HierarchicalCommunicatorTest, AnAbortAtAnyMomentEndsBothLevels) {
  for (int round = 0; round < 20; ++round) {
    const absl::Status status =
        RunRanks(6, [&](int rank, const ProcessGroup& world) -> absl::Status {
          const absl::StatusOr<ProcessGroup> levels = Levels(world, HostsOf(6, 3));
          MEGATRON_RETURN_IF_ERROR(levels.status());
          const Stream stream = Stream::Inline();
          std::vector<float> whole(6 * 2001), other(6 * 2001), part(2001);
          for (int calls = 0; world.status().ok(); ++calls) {
            levels->AllReduce(Over(whole), ReduceOp::kSum, stream);
            levels->ReduceScatter(Over(whole), Over(part), stream);
            levels->AllGather(Over(part), Over(whole), stream);
            if (rank == round % 6 && calls >= round % 5) return absl::AbortedError("enough");
            levels->AllToAll(Over(whole), Over(other), stream);
          }
          return absl::OkStatus();
        });
    ASSERT_THAT(status, StatusIs(absl::StatusCode::kAborted, HasSubstr("enough"))) << round;
  }
}

// A rank that is lost in the middle is named, and all ranks learn the same.
TEST(HierarchicalCommunicatorTest, ALostRankEndsTheCallsOfAllHosts) {
  const absl::Status status =
      RunTcpRanksOnThreads(4, [](int rank, const ProcessGroup& world) -> absl::Status {
        const absl::StatusOr<ProcessGroup> levels = Levels(world, HostsOf(4, 2));
        MEGATRON_RETURN_IF_ERROR(levels.status());
        std::vector<float> whole(40000);
        levels->AllReduce(Over(whole), ReduceOp::kSum, Stream::Inline());
        if (rank == 3) return absl::OkStatus();
        levels->AllReduce(Over(whole), ReduceOp::kSum, Stream::Inline());
        return absl::OkStatus();
      });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                               HasSubstr("rank 3 of world (world rank 3) has left")));
}

}  // namespace
}  // namespace megatron
