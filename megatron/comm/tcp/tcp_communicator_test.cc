#include "megatron/comm/tcp/tcp_communicator.h"

#include <signal.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/steady_now.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/algorithm_communicator.h"
#include "megatron/comm/communicator.h"
#include "megatron/comm/communicator_conformance.h"
#include "megatron/comm/communicator_failure_conformance.h"
#include "megatron/comm/store/memory_store.h"
#include "megatron/comm/tcp/run_tcp_ranks.h"
#include "megatron/comm/thread/run_ranks.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

absl::Status RunOnThreads(int size, const ConformanceRank& fn) {
  return RunTcpRanksOnThreads(size, [&](int rank, const ProcessGroup& world) {
    ThreadPool pool(2);
    return fn(world, Stream::Cpu(&pool));
  });
}

absl::Status RunInProcesses(int size, const ConformanceRank& fn) {
  return RunTcpRanksInProcesses(size, [&](int rank, const ProcessGroup& world) {
    ThreadPool pool(2);
    return fn(world, Stream::Cpu(&pool));
  });
}

INSTANTIATE_TEST_SUITE_P(TcpOnThreads, CommunicatorConformanceTest,
                         ::testing::ValuesIn(ConformanceCases(RunOnThreads)), ConformanceCaseName);
INSTANTIATE_TEST_SUITE_P(TcpInProcesses, CommunicatorConformanceTest,
                         ::testing::ValuesIn(ConformanceCases(RunInProcesses)),
                         ConformanceCaseName);
INSTANTIATE_TEST_SUITE_P(TcpByAlgorithm, CommunicatorConformanceTest,
                         ::testing::ValuesIn(AlgorithmCases(RunOnThreads)), ConformanceCaseName);

absl::Status RunWithDeadline(int size, const RankFunction& fn, absl::Duration deadline) {
  TcpWorldOptions options;
  options.deadline = deadline;
  return RunTcpRanksOnThreads(size, fn, options);
}

INSTANTIATE_TEST_SUITE_P(TcpOnThreads, CommunicatorFailureConformanceTest,
                         ::testing::Values(RunWithDeadline));

FailureConformanceRunner Failing(CollectiveAlgorithm algorithm) {
  return [=](int size, const RankFunction& fn, absl::Duration deadline) {
    return RunWithDeadline(
        size,
        [&](int rank, const ProcessGroup& world) {
          return fn(rank, ProcessGroup(WithAlgorithm(world.communicator(), algorithm)));
        },
        deadline);
  };
}

INSTANTIATE_TEST_SUITE_P(TcpByAlgorithm, CommunicatorFailureConformanceTest,
                         ::testing::Values(Failing(CollectiveAlgorithm::kRing),
                                           Failing(CollectiveAlgorithm::kTree)));

// The results of a rank's all-reduces and reduce-scatters, for sizes around those at which the way
// of moving data changes.
absl::Status Reductions(int rank, const ProcessGroup& world, std::vector<std::string>* results) {
  Caller caller(world);
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (int64_t count : {1, 5, 2048, 2049, 4097, 131073, 1100003}) {
      std::string values(count * world.size() * SizeOf(dtype), '\0');
      // Numbers of all sizes near 1, and of either sign.
      uint32_t state = rank * 77 + 1;
      for (char& c : values) {
        state = state * 1664525 + 1013904223;
        c = static_cast<char>(state >> 24 & 0xbf);
      }
      std::string part(count * SizeOf(dtype), '\0');
      const Tensor whole(&values[0], dtype, {count * world.size()});
      world.ReduceScatter(whole, Tensor(&part[0], dtype, {count}), caller.stream);
      results->push_back(part);
      world.AllReduce(whole.Slice(0, 0, count), ReduceOp::kSum, caller.stream);
      results->push_back(values.substr(0, part.size()));
    }
  }
  return world.status();
}

TEST(TcpCommunicatorTest, EachAlgorithmReducesToTheSameBitsAsThreads) {
  for (const CollectiveAlgorithm algorithm : kCollectiveAlgorithms) {
    const int size = algorithm == CollectiveAlgorithm::kMesh ? 3 : 4;
    std::vector<std::vector<std::string>> threads(size), tcp(size);
    const auto reduce = [&](std::vector<std::vector<std::string>>* results) {
      return [=](int rank, const ProcessGroup& world) {
        return Reductions(rank, ProcessGroup(WithAlgorithm(world.communicator(), algorithm)),
                          &(*results)[rank]);
      };
    };
    ASSERT_THAT(RunRanks(size, reduce(&threads)), IsOk());
    ASSERT_THAT(RunTcpRanksOnThreads(size, reduce(&tcp)), IsOk());
    for (int rank = 0; rank < size; ++rank) {
      ASSERT_EQ(threads[rank].size(), tcp[rank].size());
      for (size_t i = 0; i < tcp[rank].size(); ++i) {
        EXPECT_TRUE(threads[rank][i] == tcp[rank][i])
            << Name(algorithm) << ", rank " << rank << ", result " << i;
      }
    }
  }
}

// A tree and a ring of random numbers differ in some bit, so that the test above can tell them
// apart.
TEST(TcpCommunicatorTest, ATreeHasBitsOfItsOwnAndARingThoseOfTheMesh) {
  std::vector<std::string> mesh, ring, tree;
  const absl::Status status =
      RunTcpRanksOnThreads(4, [&](int rank, const ProcessGroup& world) -> absl::Status {
        std::vector<std::string> unused;
        for (auto [algorithm, results] : {std::pair(CollectiveAlgorithm::kMesh, &mesh),
                                          {CollectiveAlgorithm::kRing, &ring},
                                          {CollectiveAlgorithm::kTree, &tree}}) {
          MEGATRON_RETURN_IF_ERROR(
              Reductions(rank, ProcessGroup(WithAlgorithm(world.communicator(), algorithm)),
                         rank == 1 ? results : &unused));
        }
        return world.status();
      });
  ASSERT_THAT(status, IsOk());
  EXPECT_TRUE(mesh == ring);
  EXPECT_FALSE(mesh == tree);
}

TEST(TcpCommunicatorTest, LargeBroadcastsReachEveryRankFromEveryRoot) {
  const absl::Status status = RunTcpRanksOnThreads(4, [&](int rank, const ProcessGroup& world) {
    Caller caller(world);
    for (int root = 0; root < 4; ++root) {
      std::vector<int32_t> values(100003);
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = rank == root ? int(i) * (root + 1) : -1;
      world.Broadcast(Tensor(values.data(), DType::kInt32, {100003}), root, caller.stream);
      for (size_t i = 0; i < values.size(); ++i) {
        if (values[i] != int(i) * (root + 1)) return absl::InternalError(absl::StrCat("at ", i));
      }
    }
    return world.status();
  });
  EXPECT_THAT(status, IsOk());
}

// Every pair of ranks has a group, and a thread for it: whatever order they run in, none waits for
// another group.
TEST(TcpCommunicatorTest, GroupsWorkSideBySideOnThreadsOfOneRank) {
  const int size = 4;
  const absl::Status status =
      RunTcpRanksOnThreads(size, [&](int rank, const ProcessGroup& world) -> absl::Status {
        std::vector<ProcessGroup> groups;
        for (int distance : {1, 2, 3}) {
          std::vector<std::vector<int>> pairs;
          for (int a = 0; a < size; ++a) {
            if (a < (a ^ distance)) pairs.push_back({a, a ^ distance});
          }
          MEGATRON_ASSIGN_OR_RETURN(auto pair, world.communicator()->Split(pairs, "pair"));
          groups.emplace_back(pair);
        }
        std::vector<std::thread> threads;
        for (const ProcessGroup& group : groups) {
          threads.emplace_back([&group] {
            Caller caller(group);
            for (int i = 0; i < 50; ++i) caller.AllReduce(1 + i * i * 40);
          });
        }
        for (std::thread& thread : threads) thread.join();
        return world.status();
      });
  EXPECT_THAT(status, IsOk());
}

// Rank 0 leaves while its last, large message is still on its way.
TEST(TcpCommunicatorTest, MessagesSentBeforeLeavingArrive) {
  const absl::Status status = RunTcpRanksOnThreads(2, [&](int rank, const ProcessGroup& world) {
    Caller caller(world);
    std::vector<int32_t> values(3000000, rank == 0 ? 7 : 0);
    const Tensor tensor(values.data(), DType::kInt32, {3000000});
    if (rank == 0) {
      world.Exchange({{1, tensor}}, {}, caller.stream);
    } else {
      world.Exchange({}, {{0, tensor}}, caller.stream);
      for (int32_t value : values) {
        if (value != 7) return absl::InternalError("something was lost");
      }
    }
    return world.status();
  });
  EXPECT_THAT(status, IsOk());
}

// Ranks 0 and 1 wait for each other alone, and must know of a failure elsewhere nevertheless.
absl::Status CallUntilTheEnd(const ProcessGroup& world) {
  Caller caller(world);
  MEGATRON_ASSIGN_OR_RETURN(auto pair, world.communicator()->Split({{0, 1}, {2, 3}}, "tp"));
  caller.group = ProcessGroup(pair);
  while (caller.group.status().ok()) {
    caller.AllReduce(300000);
  }
  return absl::OkStatus();
}

TEST(TcpCommunicatorTest, AKilledRankIsKnownToAllWithinASecond) {
  int died_at[2];
  ASSERT_EQ(pipe(died_at), 0);
  const absl::Status status =
      RunTcpRanksInProcesses(4, [&](int rank, const ProcessGroup& world) -> absl::Status {
        if (rank == 2) {
          std::thread killer([&] {
            absl::SleepFor(absl::Milliseconds(300));
            const int64_t now = absl::ToUnixMicros(SteadyNow());
            for (int i = 0; i < 3; ++i) (void)!write(died_at[1], &now, sizeof(now));
            kill(getpid(), SIGKILL);
          });
          const absl::Status status = CallUntilTheEnd(world);
          killer.join();
          return status;
        }
        MEGATRON_RETURN_IF_ERROR(CallUntilTheEnd(world));
        const int64_t now = absl::ToUnixMicros(SteadyNow());
        int64_t then = 0;
        if (read(died_at[0], &then, sizeof(then)) != sizeof(then) || now - then > 1000000 ||
            !absl::StrContains(world.status().message(), "rank 2 of world")) {
          // Another status than the world's: the test sees it as a rank's end.
          _exit(1);
        }
        return absl::OkStatus();
      });
  close(died_at[0]);
  close(died_at[1]);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                               AllOf(HasSubstr("rank 2 of world"), HasSubstr("lost"))));
}

TEST(TcpCommunicatorTest, AStoppedRankIsNamedWhenItIsSilentForTooLong) {
  int stopped[2];
  ASSERT_EQ(pipe(stopped), 0);
  TcpWorldOptions options;
  options.heartbeat_interval = absl::Milliseconds(100);
  options.silence_limit = absl::Seconds(2);
  const absl::Status status = RunTcpRanksInProcesses(
      3,
      [&](int rank, const ProcessGroup& world) {
        Caller caller(world);
        if (rank == 1) {
          const pid_t self = getpid();
          (void)!write(stopped[1], &self, sizeof(self));
          kill(self, SIGSTOP);
          return absl::OkStatus();
        }
        while (world.status().ok()) caller.AllReduce();
        if (rank == 0) {
          pid_t other = 0;
          (void)!read(stopped[0], &other, sizeof(other));
          kill(other, SIGKILL);
        }
        return absl::OkStatus();
      },
      options);
  close(stopped[0]);
  close(stopped[1]);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded,
                               AllOf(HasSubstr("rank 1 of world"), HasSubstr("no sign of life"),
                                     HasSubstr("was in call 1, all-reduce(sum) of fp32[4]"))));
}

TEST(TcpCommunicatorTest, RanksThatNeverComeAreNamed) {
  MemoryStore store;
  TcpWorldOptions options;
  options.rank = 1;
  options.size = 3;
  options.connect_deadline = absl::Milliseconds(200);
  const JobSecret secret = JobSecret::Random();
  EXPECT_THAT(TcpWorld::Create(&store, secret, options).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("world/rank/0")));
  options.rank = 0;
  EXPECT_THAT(TcpWorld::Create(&store, secret, options).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("rank 0 of world: after 200ms still missing: rank 1 of world, "
                                 "rank 2 of world")));
}

TEST(TcpCommunicatorTest, TwoProcessesOfOneRankAreAnError) {
  MemoryStore store;
  TcpWorldOptions options;
  options.rank = 1;
  options.size = 2;
  options.connect_deadline = absl::Milliseconds(10);
  const JobSecret secret = JobSecret::Random();
  EXPECT_THAT(TcpWorld::Create(&store, secret, options).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(TcpWorld::Create(&store, secret, options).status(),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("rank 1 of world")));
}

TEST(TcpCommunicatorTest, CallsAfterLeavingFail) {
  MemoryStore store;
  const JobSecret secret = JobSecret::Random();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      TcpWorldOptions options;
      options.rank = rank;
      options.size = 2;
      auto world = TcpWorld::Create(&store, secret, options);
      ASSERT_THAT(world, IsOk());
      Caller caller{ProcessGroup((*world)->communicator())};
      caller.AllReduce();
      EXPECT_THAT(caller.group.status(), IsOk());
      world->reset();
      caller.AllReduce();
      EXPECT_THAT(caller.group.status(), StatusIs(absl::StatusCode::kFailedPrecondition));
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

}  // namespace
}  // namespace megatron
