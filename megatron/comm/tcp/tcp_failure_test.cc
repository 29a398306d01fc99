// Tests of what ranks of a TcpWorld tell each other when it has failed.

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/starve_threads.h"
#include "megatron/base/steady_now.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/process_group.h"
#include "megatron/comm/socket/job_secret.h"
#include "megatron/comm/socket/socket.h"
#include "megatron/comm/store/memory_store.h"
#include "megatron/comm/tcp/tcp_communicator.h"
#include "megatron/comm/tcp/tcp_connect.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

using RankBody = std::function<void(int rank, TcpWorld* world)>;

// The first `silent` ranks give no sign of life.
void ForEachRank(int size, const RankBody& fn, int silent = 0) {
  MemoryStore store;
  const JobSecret secret = JobSecret::Random();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      TcpWorldOptions options;
      options.rank = rank;
      options.size = size;
      options.heartbeat_interval = rank < silent ? absl::Hours(1) : absl::Milliseconds(50);
      if (silent > 0) options.silence_limit = absl::Seconds(2);
      absl::StatusOr<std::unique_ptr<TcpWorld>> world = TcpWorld::Create(&store, secret, options);
      ASSERT_THAT(world, IsOk());
      fn(rank, world->get());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Waits until the world of this rank has failed.
void AwaitFailure(const TcpWorld& world) {
  while (world.status().ok()) absl::SleepFor(absl::Milliseconds(1));
}

TEST(TcpFailureTest, ARankThatCanTakeNoConnectionEndsAndNamesTheLimit) {
  MemoryStore store;
  const JobSecret secret = JobSecret::Random();
  absl::Status status;
  std::thread rank([&] {
    TcpWorldOptions options;
    options.size = 2;
    status = ConnectRanks(&store, secret, options).status();
  });
  const auto address = store.Get("world/rank/0", absl::Seconds(60));
  ASSERT_THAT(address, IsOk());
  const auto endpoint = Endpoint::Parse(*address);
  ASSERT_THAT(endpoint, IsOk());
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  // All numbers below the next one are in use: one more file may be open, one side of a connection.
  const int next = dup(STDERR_FILENO);
  ASSERT_GE(next, 0);
  const rlimit one_more = {static_cast<rlim_t>(next) + 1, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &one_more), 0);
  close(next);
  const auto socket = ConnectTcp(*endpoint, SteadyNow() + absl::Seconds(60));
  rank.join();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_THAT(socket, IsOk());
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                               AllOf(HasSubstr("rank 0 of world"), HasSubstr("(ulimit -n)"))));
}

TEST(TcpFailureTest, ARankThatCanMakeNoConnectionEndsAndNamesTheLimit) {
  const auto other = ListenTcp({"127.0.0.1", 0});
  ASSERT_THAT(other, IsOk());
  const auto address = LocalEndpoint(*other);
  ASSERT_THAT(address, IsOk());
  MemoryStore store;
  ASSERT_THAT(store.Set("world/rank/0", address->ToString()), IsOk());
  TcpWorldOptions options;
  options.rank = 1;
  options.size = 3;  // it goes on listening, for rank 2
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  // All numbers below the next one are in use: one more file may be open, where the rank listens.
  const int next = dup(STDERR_FILENO);
  ASSERT_GE(next, 0);
  const rlimit one_more = {static_cast<rlim_t>(next) + 1, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &one_more), 0);
  close(next);
  const absl::Status status = ConnectRanks(&store, JobSecret::Random(), options).status();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  // Whether it connects or listens, it has no descriptor.
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                               AllOf(HasSubstr("rank 1 of world"), HasSubstr("(ulimit -n)"))));
}

TEST(TcpFailureTest, TheLowestRankGathersWhatEachRankWasDoing) {
  ForEachRank(3, [](int rank, TcpWorld* world) {
    std::atomic<int> hooks{0};
    world->SetFailureHook([&](const absl::Status& reason) {
      EXPECT_EQ(reason.code(), absl::StatusCode::kDeadlineExceeded);
      ++hooks;
    });
    if (rank == 1) {
      absl::SleepFor(absl::Milliseconds(200));
      world->Abort(absl::DeadlineExceededError("rank 1 is stuck"));
      world->Abort(absl::DeadlineExceededError("a second reason counts no more"));
    } else {
      ThreadPool pool(1);
      float value = 1;
      ProcessGroup(world->communicator())
          .AllReduce(Tensor(&value, DType::kFloat32, {1}), ReduceOp::kSum, Stream::Cpu(&pool));
    }
    AwaitFailure(*world);
    EXPECT_EQ(hooks, 1);
    const std::vector<std::string> calls = world->CallsAtFailure(rank);
    if (rank == 1) {
      EXPECT_THAT(calls, IsEmpty());
    } else {
      EXPECT_THAT(calls, ElementsAre(AllOf(
                             HasSubstr("was in call 1, all-reduce(sum) of fp32[1]; entered by: "),
                             HasSubstr("; awaited: rank 1 of world (world rank 1)"))));
    }
    const auto states =
        world->GatherStates(absl::StrCat("state ", rank), SteadyNow() + absl::Seconds(60));
    ASSERT_EQ(states.has_value(), rank == 0);
    if (rank == 0) {
      EXPECT_THAT(*states, ElementsAre(Pair(0, "state 0"), Pair(1, "state 1"), Pair(2, "state 2")));
    }
    world->SetFailureHook(nullptr);
  });
}

TEST(TcpFailureTest, ARankKnowsThatOthersWaitForIt) {
  for (const bool in_collective : {true, false}) {
    ForEachRank(3, [&](int rank, TcpWorld* world) {
      EXPECT_FALSE(world->InCall(rank));
      ThreadPool pool(1);
      const Stream stream = Stream::Cpu(&pool);
      float value = 1;
      const Tensor tensor(&value, DType::kFloat32, {1});
      const ProcessGroup group(world->communicator());
      const absl::Time until = SteadyNow() + absl::Seconds(60);
      absl::SleepFor(absl::Milliseconds(rank == 1 ? 0 : 200));
      while (rank == 1 && !world->IsAwaited(rank) && SteadyNow() < until) {
        absl::SleepFor(absl::Milliseconds(1));
      }
      EXPECT_LT(SteadyNow(), until);
      if (in_collective) {
        group.AllReduce(tensor, ReduceOp::kSum, stream);
      } else if (rank == 0) {
        group.Exchange({}, {{1, tensor}}, stream);
      } else if (rank == 1) {
        group.Exchange({{0, tensor}}, {}, stream);
      }
      EXPECT_THAT(world->status(), IsOk());
    });
  }
}

TEST(TcpFailureTest, ARankThatHasLeftIsNotWaitedFor) {
  ForEachRank(3, [](int rank, TcpWorld* world) {
    if (rank == 0) return;  // leaves
    if (rank == 1) absl::SleepFor(absl::Milliseconds(300));
    if (rank == 1) world->Abort(absl::UnavailableError("enough"));
    AwaitFailure(*world);
    const auto states =
        world->GatherStates(absl::StrCat("state ", rank), SteadyNow() + absl::Seconds(60));
    ASSERT_EQ(states.has_value(), rank == 1);
    if (rank != 1) return;
    EXPECT_THAT(*states, ElementsAre(Pair(1, "state 1"), Pair(2, "state 2")));
  });
}

// Rank 0 has all its connections first.
TEST(TcpFailureTest, RanksThatStillConnectToOthersAreNotSilent) {
  MemoryStore store;
  const JobSecret secret = JobSecret::Random();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      TcpWorldOptions options;
      options.rank = rank;
      options.size = 3;
      options.heartbeat_interval = absl::Milliseconds(50);
      options.silence_limit = absl::Seconds(1);
      options.route = [&](int peer, const Endpoint& address) -> absl::StatusOr<Endpoint> {
        if (peer == 1) absl::SleepFor(2 * options.silence_limit);
        return address;
      };
      EXPECT_THAT(TcpWorld::Create(&store, secret, options).status(), IsOk());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Ranks that share a machine which has too much to do are silent together.
TEST(TcpFailureTest, StarvedRanksDoNotLoseEachOther) {
  constexpr absl::Duration kLimit = absl::Seconds(2);
  const std::set<pid_t> before = ThreadIds();
  MemoryStore store;
  const JobSecret secret = JobSecret::Random();
  std::vector<std::unique_ptr<TcpWorld>> worlds(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      TcpWorldOptions options;
      options.rank = rank;
      options.size = 3;
      options.heartbeat_interval = absl::Milliseconds(50);
      options.silence_limit = kLimit;
      worlds[rank] = *TcpWorld::Create(&store, secret, options);
    });
  }
  for (std::thread& thread : threads) thread.join();
  absl::SleepFor(absl::Milliseconds(200));
  Starve(ThreadsSince(before), 2 * kLimit);
  absl::SleepFor(2 * kLimit + absl::Milliseconds(500));
  threads.clear();
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      float value = 1;
      ProcessGroup(worlds[rank]->communicator())
          .AllReduce(Tensor(&value, DType::kFloat32, {1}), ReduceOp::kSum, Stream::Inline());
      EXPECT_THAT(worlds[rank]->status(), IsOk());
      EXPECT_EQ(value, 3);
      worlds[rank].reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The ranks are like those of a machine that is cut off: one of them is missed first.
TEST(TcpFailureTest, SilentRanksAreNotExpectedToSendTheirState) {
  ForEachRank(
      4,
      [](int rank, TcpWorld* world) {
        AwaitFailure(*world);
        if (rank < 2) return;
        EXPECT_EQ(world->status().code(), absl::StatusCode::kDeadlineExceeded);
        const auto states =
            world->GatherStates(absl::StrCat("state ", rank), SteadyNow() + absl::Seconds(60));
        ASSERT_EQ(states.has_value(), rank == 2);
        if (rank == 2) {
          EXPECT_THAT(*states, ElementsAre(Pair(2, "state 2"), Pair(3, "state 3")));
        }
      },
      /*silent=*/2);
}

// As a process that is stopped and continued later.
TEST(TcpFailureTest, ARankThatOthersHaveLostLeavesTheReportToThem) {
  ForEachRank(
      3,
      [](int rank, TcpWorld* world) {
        AwaitFailure(*world);
        const auto states =
            world->GatherStates(absl::StrCat("state ", rank), SteadyNow() + absl::Seconds(60));
        ASSERT_EQ(states.has_value(), rank == 1);
        if (rank == 1) {
          EXPECT_THAT(*states, ElementsAre(Pair(1, "state 1"), Pair(2, "state 2")));
        }
      },
      /*silent=*/1);
}

}  // namespace
}  // namespace megatron
