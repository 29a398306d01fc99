#include "megatron/comm/launch/tcp_job.h"

#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/steady_now.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/process_group.h"
#include "megatron/comm/tcp/tcp_communicator.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

int FreePort() {
  const Socket listener = ListenTcp({"127.0.0.1", 0}).value();
  return LocalEndpoint(listener).value().port;
}

TEST(TcpJobTest, RanksJoinByTheirEnvironment) {
  EnvironmentMap common = {{"WORLD_SIZE", "3"},
                           {"LOCAL_WORLD_SIZE", "3"},
                           {"MASTER_ADDR", "127.0.0.1"},
                           {"MASTER_PORT", absl::StrCat(FreePort())},
                           {kJobSecretVariable, JobSecret::Random().ToHex()}};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([common, rank] {
      EnvironmentMap environment = common;
      environment["RANK"] = environment["LOCAL_RANK"] = absl::StrCat(rank);
      const auto launch = ReadLaunchEnvironment(environment);
      ASSERT_THAT(launch, IsOk());
      const auto secret = JobSecretFromEnvironment(environment);
      ASSERT_THAT(secret, IsOk());
      const auto job = TcpJob::Join(*launch, *secret);
      ASSERT_THAT(job, IsOk());
      const ProcessGroup world((*job)->world().communicator());
      EXPECT_EQ(world.size(), 3);
      EXPECT_EQ(world.rank(), rank);
      EXPECT_THAT((*job)->store().Set(absl::StrCat("done", rank), "yes"), IsOk());
      EXPECT_THAT((*job)->store().Get("done1", absl::Seconds(60)), IsOkAndHolds("yes"));
      ThreadPool pool(1);
      world.Barrier(Stream::Cpu(&pool));
      EXPECT_THAT(world.status(), IsOk());
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

// Rank 0 is lost when rank 1 has met it and rank 2 has not come.
TEST(TcpJobTest, AWorldThatIsNotWaitedForAnyLongerIsMadeUnderAnotherName) {
  const int port = FreePort();
  const JobSecret secret = JobSecret::Random();
  const auto server = TcpStoreServer::Create(Endpoint{"127.0.0.1", port}, secret);
  ASSERT_THAT(server, IsOk());
  std::atomic<bool> over{false};
  const auto meet = [&](int rank) {
    LaunchEnvironment launch;
    launch.rank = rank;
    launch.world_size = launch.local_world_size = 3;
    launch.master_addr = "127.0.0.1";
    launch.master_port = port;
    launch.store_is_served = true;
    return TcpJob::Meet(launch, secret).value();
  };
  const auto is_over = [&over] { return over.load(); };
  std::thread lost([&] {
    EXPECT_THAT(meet(0)->MakeWorld(0, 3, "world", absl::Seconds(2)),
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("missing: rank 2")));
    over = true;
  });
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      const std::unique_ptr<TcpJob> job = meet(rank);
      if (rank == 1) {
        EXPECT_THAT(job->MakeWorld(rank, 3, "world", absl::Minutes(5), is_over),
                    StatusIs(absl::StatusCode::kCancelled));
      }
      ASSERT_THAT(job->MakeWorld(rank, 3, "again", absl::Minutes(5)), IsOk());
      const ProcessGroup world(job->world().communicator());
      ThreadPool pool(1);
      world.Barrier(Stream::Cpu(&pool));
      EXPECT_THAT(world.status(), IsOk());
    });
  }
  lost.join();
  for (std::thread& rank : ranks) rank.join();
}

TEST(TcpJobTest, AWorldThatIsRefusedLeavesTheOneBeforeAsItWas) {
  const int port = FreePort();
  const JobSecret secret = JobSecret::Random();
  std::atomic<int> asked{0};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      LaunchEnvironment launch;
      launch.rank = rank;
      launch.world_size = launch.local_world_size = 2;
      launch.master_port = port;
      const auto job = TcpJob::Join(launch, secret);
      ASSERT_THAT(job, IsOk());
      const TcpWorld* const before = &(*job)->world();
      const auto refuse = [&](const TcpWorld& world) -> absl::Status {
        EXPECT_NE(&world, before);
        EXPECT_EQ(&(*job)->world(), before);
        ++asked;
        while (asked < 2) absl::SleepFor(absl::Milliseconds(1));
        return absl::AbortedError("refused");
      };
      EXPECT_THAT((*job)->MakeWorld(rank, 2, "refused", absl::Minutes(5), nullptr, refuse),
                  StatusIs(absl::StatusCode::kAborted, "refused"));
      EXPECT_EQ(&(*job)->world(), before);
      {
        const ProcessGroup world((*job)->world().communicator());
        ThreadPool pool(1);
        world.Barrier(Stream::Cpu(&pool));
        EXPECT_THAT(world.status(), IsOk());
      }
      EXPECT_THAT((*job)->MakeWorld(rank, 2, "next", absl::Minutes(5), nullptr,
                                    [](const TcpWorld&) { return absl::OkStatus(); }),
                  IsOk());
      EXPECT_THAT((*job)->world().status(), IsOk());
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

// Strangers at the job's door while it works: nothing it computes changes, and nobody is kept out.
TEST(TcpJobTest, HostileConnectionsChangeNothing) {
  const int port = FreePort();
  const JobSecret secret = JobSecret::Random();
  std::atomic<bool> working{true};
  const auto join = [&](int rank) {
    LaunchEnvironment launch;
    launch.rank = rank;
    launch.world_size = launch.local_world_size = 2;
    launch.master_port = port;
    return TcpJob::Join(launch, secret);
  };
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto job = join(rank);
      ASSERT_THAT(job, IsOk());
      const ProcessGroup world((*job)->world().communicator());
      ThreadPool pool(1);
      const Stream stream = Stream::Cpu(&pool);
      int32_t go_on = 1;
      for (int i = 0; go_on != 0; ++i) {
        std::vector<float> values(10000, 0.1f * (rank + i));
        world.AllReduce(Tensor(values.data(), DType::kFloat32, {10000}), ReduceOp::kSum, stream);
        EXPECT_EQ(values[9999], 0.1f * i + 0.1f * (1 + i)) << i;
        EXPECT_THAT((*job)->store().Set(absl::StrCat(rank, "/", i), "here"), IsOk());
        go_on = working ? 1 : 0;
        world.Broadcast(Tensor(&go_on, DType::kInt32, {1}), 0, stream);
      }
      EXPECT_THAT(world.status(), IsOk());
    });
  }
  const Endpoint door = {"127.0.0.1", port};
  std::vector<Socket> silent;
  for (int i = 0; i < 2000; ++i) {
    auto socket = ConnectTcp(door, SteadyNow() + absl::Seconds(60));
    while (!socket.ok()) {  // rank 0 may not be there yet
      absl::SleepFor(absl::Milliseconds(1));
      socket = ConnectTcp(door, SteadyNow() + absl::Seconds(60));
    }
    if (i % 4 == 0) {
      silent.push_back(*std::move(socket));
      if (silent.size() > 100) silent.erase(silent.begin());
    } else {
      (void)SendAll(*socket, std::string(i % 300, static_cast<char>(i)), SteadyNow());
    }
  }
  working = false;
  for (std::thread& rank : ranks) rank.join();
}

// Rank 0 comes late, and rank 3 later still.
TEST(TcpJobTest, WaitingRanksAreToldWhoIsMissing) {
  const int port = FreePort();
  const JobSecret secret = JobSecret::Random();
  absl::Mutex mutex;
  std::set<std::pair<int, std::vector<int>>> told;
  const auto has_told = [&](int rank, std::vector<int> missing) {
    absl::MutexLock lock(&mutex);
    return told.count({rank, std::move(missing)}) == 1;
  };
  const auto join = [&](int rank) {
    LaunchEnvironment launch;
    launch.rank = launch.local_rank = rank;
    launch.world_size = launch.local_world_size = 4;
    launch.master_port = port;
    TcpWorldOptions options;
    options.first_notice = absl::Milliseconds(10);
    options.on_waiting = [&, rank](const std::vector<int>& missing) {
      absl::MutexLock lock(&mutex);
      told.insert({rank, missing});
    };
    EXPECT_THAT(TcpJob::Join(launch, secret, options), IsOk());
  };
  std::vector<std::thread> ranks;
  ranks.emplace_back(join, 1);
  ranks.emplace_back(join, 2);
  while (!has_told(1, {0})) absl::SleepFor(absl::Milliseconds(1));
  ranks.emplace_back(join, 0);
  while (!has_told(0, {3})) absl::SleepFor(absl::Milliseconds(1));
  ranks.emplace_back(join, 3);
  for (std::thread& rank : ranks) rank.join();
  EXPECT_FALSE(has_told(2, {0})) << "on one machine one is enough";
}

TEST(TcpJobTest, TheErrorNamesTheMissingSecret) {
  EXPECT_THAT(JobSecretFromEnvironment({}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("MEGATRON_JOB_SECRET_FILE")));
  EXPECT_THAT(JobSecretFromEnvironment({{"MEGATRON_JOB_SECRET", "abc"}}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("MEGATRON_JOB_SECRET: ")));
  EXPECT_THAT(JobSecretFromEnvironment({{"MEGATRON_JOB_SECRET_FILE", "/nonexistent"}}).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nonexistent")));
}

}  // namespace
}  // namespace megatron
