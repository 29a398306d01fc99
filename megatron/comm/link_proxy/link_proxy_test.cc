#include "megatron/comm/link_proxy/link_proxy.h"

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/steady_now.h"
#include "megatron/comm/algorithm_communicator.h"
#include "megatron/comm/process_group.h"
#include "megatron/comm/tcp/run_tcp_ranks.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(60);

// Two ends of a connection through a proxy, from host 0 to host 1.
struct Pair {
  explicit Pair(LinkProxy* proxy) {
    const absl::StatusOr<Socket> listener = ListenTcp({"127.0.0.1", 0});
    const absl::StatusOr<Endpoint> door = proxy->Route(0, 1, *LocalEndpoint(*listener));
    near = *ConnectTcp(*door, SteadyNow() + kPatience);
    while (!far.valid()) far = *AcceptTcp(*listener);
  }
  Socket near, far;
};

std::unique_ptr<LinkProxy> MakeProxy(const LinkOptions& options) {
  return *LinkProxy::Create(options);
}

absl::Duration TimeOf(const Socket& from, const Socket& to, size_t bytes) {
  const absl::Time begin = SteadyNow();
  std::string sent(bytes, 'x'), received(bytes, 0);
  std::thread sender([&] { EXPECT_THAT(SendAll(from, sent, begin + kPatience), IsOk()); });
  EXPECT_THAT(ReceiveAll(to, received.data(), bytes, begin + kPatience), IsOk());
  sender.join();
  EXPECT_EQ(received, sent);
  return SteadyNow() - begin;
}

TEST(LinkProxyTest, AByteTakesTheDelayInEachDirection) {
  LinkOptions options;
  options.delay = absl::Milliseconds(30);
  const auto proxy = MakeProxy(options);
  const Pair pair(proxy.get());
  EXPECT_GE(TimeOf(pair.near, pair.far, 1), options.delay);
  EXPECT_GE(TimeOf(pair.far, pair.near, 1), options.delay);
}

TEST(LinkProxyTest, TheRateHoldsForAllConnectionsOfAHostTogether) {
  LinkOptions options;
  options.bytes_per_second = 4e6;
  const auto proxy = MakeProxy(options);
  const Pair one(proxy.get()), other(proxy.get());
  const absl::Time begin = SteadyNow();
  std::thread beside([&] { TimeOf(one.near, one.far, 400000); });
  TimeOf(other.near, other.far, 400000);
  beside.join();
  EXPECT_GE(SteadyNow() - begin, absl::Milliseconds(190));
  EXPECT_EQ(proxy->BytesFrom(0), 800000);
  EXPECT_EQ(proxy->BytesFrom(1), 0);
  // The other direction was free.
  EXPECT_LT(TimeOf(one.far, one.near, 1000), absl::Seconds(1));
}

TEST(LinkProxyTest, ALostPacketHoldsUpWhatFollowsInOrder) {
  LinkOptions options;
  options.loss = 0.999999;
  options.retransmission_timeout = absl::Milliseconds(50);
  const auto proxy = MakeProxy(options);
  const Pair pair(proxy.get());
  EXPECT_GE(TimeOf(pair.near, pair.far, 100000), options.retransmission_timeout);
}

TEST(LinkProxyTest, JitterChangesNoOrder) {
  LinkOptions options;
  options.jitter = absl::Milliseconds(5);
  const auto proxy = MakeProxy(options);
  const Pair pair(proxy.get());
  std::string received(256, 0);
  for (int i = 0; i < 256; ++i) {
    ASSERT_THAT(SendAll(pair.near, std::string(1, static_cast<char>(i)), SteadyNow() + kPatience),
                IsOk());
  }
  ASSERT_THAT(ReceiveAll(pair.far, received.data(), 256, SteadyNow() + kPatience), IsOk());
  for (int i = 0; i < 256; ++i) ASSERT_EQ(received[i], static_cast<char>(i));
}

TEST(LinkProxyTest, AnEndIsPassedOnAfterTheData) {
  LinkOptions options;
  options.delay = absl::Milliseconds(10);
  const auto proxy = MakeProxy(options);
  Pair pair(proxy.get());
  ASSERT_THAT(SendAll(pair.near, "end", SteadyNow() + kPatience), IsOk());
  pair.near.Close();
  char bytes[4];
  EXPECT_THAT(ReceiveAll(pair.far, bytes, 3, SteadyNow() + kPatience), IsOk());
  EXPECT_THAT(ReceiveAll(pair.far, bytes, 1, SteadyNow() + kPatience),
              StatusIs(absl::StatusCode::kUnavailable));
}

TEST(LinkProxyTest, ACutLinkEndsItsConnectionsAndTakesNoMore) {
  const auto proxy = MakeProxy({});
  const Pair pair(proxy.get());
  TimeOf(pair.near, pair.far, 10);
  proxy->Cut(1);
  char byte;
  EXPECT_THAT(ReceiveAll(pair.far, &byte, 1, SteadyNow() + kPatience),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(ReceiveAll(pair.near, &byte, 1, SteadyNow() + kPatience),
              StatusIs(absl::StatusCode::kUnavailable));
}

TEST(LinkProxyTest, WrongOptionsAreRefused) {
  for (const auto& change :
       {+[](LinkOptions* o) { o->delay = absl::Seconds(-1); },
        +[](LinkOptions* o) { o->bytes_per_second = -1; }, +[](LinkOptions* o) { o->loss = 1; }}) {
    LinkOptions options;
    change(&options);
    EXPECT_THAT(LinkProxy::Create(options).status(), StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

TEST(LinkProxyTest, RanksThatAreProcessesShareOneProcess) {
  LinkOptions link;
  link.delay = absl::Milliseconds(20);
  const absl::StatusOr<std::unique_ptr<LinkProcess>> process = LinkProcess::Start(link);
  ASSERT_THAT(process, IsOk());
  const absl::Status status = RunTcpRanksInProcesses(
      3,
      [&](int rank, const ProcessGroup& world) -> absl::Status {
        // A rank's second call needs what others send after they have heard of its first.
        const absl::Time begin = SteadyNow();
        world.Barrier(Stream::Inline());
        float value = rank;
        const Tensor tensor(&value, DType::kFloat32, {1});
        world.AllReduce(tensor, ReduceOp::kSum, Stream::Inline());
        if (SteadyNow() - begin < link.delay) return absl::InternalError("there was no delay");
        if (value != 3) return absl::InternalError("the sum is wrong");
        return world.status();
      },
      {},
      [&](TcpWorldOptions* mine) {
        mine->route = (*process)->RouteOf(mine->rank, {0, 0, 1});
      });
  EXPECT_THAT(status, IsOk());
  link.loss = 1;
  EXPECT_THAT(LinkProcess::Start(link).status(), StatusIs(absl::StatusCode::kInvalidArgument));
}

// Ranks over the proxy, on hosts of `per_host`.
absl::Status RunOverLink(LinkProxy* proxy, int size, int per_host, const RankFunction& fn,
                         const TcpWorldOptions& options = {}) {
  std::vector<int> hosts;
  for (int rank = 0; rank < size; ++rank) hosts.push_back(rank / per_host);
  return RunTcpRanksOnThreads(size, fn, options, [&](TcpWorldOptions* mine) {
    mine->route = proxy->RouteOf(mine->rank, hosts);
  });
}

// The bytes between hosts are those of docs/communication.md, and of frames little more.
TEST(LinkProxyTest, EachAlgorithmSendsItsBytesBetweenHosts) {
  constexpr int kSize = 8, kPerHost = 4;
  constexpr int64_t kCount = 1 << 18, kBytes = 4 * kCount;
  struct Expected {
    CollectiveAlgorithm algorithm;
    // In the all-reduce and the broadcast from rank 0; multiples of kBytes.
    double reduce, broadcast;
  };
  for (const Expected& expected :
       {Expected{CollectiveAlgorithm::kMesh, 4, 2.5}, Expected{CollectiveAlgorithm::kRing, 2, 1},
        Expected{CollectiveAlgorithm::kTree, 2, 1}}) {
    const auto proxy = MakeProxy({});
    int64_t reduce = 0, broadcast = 0;
    const absl::Status status = RunOverLink(
        proxy.get(), kSize, kPerHost, [&](int rank, const ProcessGroup& world) -> absl::Status {
          const ProcessGroup group(WithAlgorithm(world.communicator(), expected.algorithm));
          std::vector<float> values(kCount, 1);
          const Tensor tensor(values.data(), DType::kFloat32, {kCount});
          group.Barrier(Stream::Inline());
          if (rank == 0) reduce -= proxy->BytesFrom(0);
          group.Barrier(Stream::Inline());
          group.AllReduce(tensor, ReduceOp::kSum, Stream::Inline());
          group.Barrier(Stream::Inline());
          if (rank == 0) {
            reduce += proxy->BytesFrom(0);
            broadcast -= proxy->BytesFrom(0);
          }
          group.Barrier(Stream::Inline());
          group.Broadcast(tensor, 0, Stream::Inline());
          group.Barrier(Stream::Inline());
          if (rank == 0) broadcast += proxy->BytesFrom(0);
          EXPECT_EQ(values, std::vector<float>(kCount, kSize));
          return world.status();
        });
    EXPECT_THAT(status, IsOk());
    EXPECT_NEAR(reduce / static_cast<double>(kBytes), expected.reduce, 0.1)
        << Name(expected.algorithm);
    EXPECT_NEAR(broadcast / static_cast<double>(kBytes), expected.broadcast, 0.1)
        << Name(expected.algorithm);
  }
}

// A rank whose link is cut in the middle of calls is missed by all, as a killed one is.
TEST(LinkProxyTest, ACutLinkEndsTheCallsOfAllAlgorithms) {
  for (const CollectiveAlgorithm algorithm : kCollectiveAlgorithms) {
    LinkOptions link;
    link.delay = absl::Milliseconds(1);
    link.jitter = absl::Milliseconds(1);
    const auto proxy = MakeProxy(link);
    const absl::Status status =
        RunOverLink(proxy.get(), 4, 1, [&](int rank, const ProcessGroup& world) -> absl::Status {
          const ProcessGroup group(WithAlgorithm(world.communicator(), algorithm));
          std::vector<float> values(100000, 1);
          const Tensor tensor(values.data(), DType::kFloat32, {100000});
          for (int calls = 0; world.status().ok() && calls < 10000; ++calls) {
            if (rank == 2 && calls == 3) proxy->Cut(2);
            group.AllReduce(tensor, ReduceOp::kMax, Stream::Inline());
          }
          return world.status();
        });
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("is lost")))
        << Name(algorithm);
  }
}

}  // namespace
}  // namespace megatron
