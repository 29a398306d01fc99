#include "megatron/train/launch/rank_job.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/status_matchers.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/steady_now.h"
#include "megatron/comm/launch/launch_env.h"
#include "megatron/comm/launch/regroup.h"
#include "megatron/comm/launch/tcp_job.h"
#include "megatron/comm/socket/job_secret.h"
#include "megatron/comm/socket/socket.h"
#include "megatron/comm/store/tcp_store.h"
#include "megatron/comm/tcp/tcp_communicator.h"
#include "megatron/train/failure/exit_status.h"
#include "megatron/train/trainer/run_options.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

constexpr int kRanks = 3;
constexpr absl::Duration kHeartbeatTimeout = absl::Minutes(2);

// The place of one rank of several whose store is served at a port of this machine.
LaunchEnvironment LaunchOf(int rank, int ranks, int port) {
  LaunchEnvironment launch;
  launch.rank = launch.local_rank = rank;
  launch.world_size = launch.local_world_size = ranks;
  launch.master_addr = "127.0.0.1";
  launch.master_port = port;
  launch.store_is_served = true;
  return launch;
}

// The ranks of the next world that a process reaches before it is lost.
enum class Reached { kNone, kTheFirst, kAll };

// Rank 0 is lost; the process in its place is lost, too, when the others have counted on it: before
// it has connected to them, when it has connected to the first one, or when it has made the next
// world with them, in which they have other ranks.
void LoseARankAndThenTheOneInItsPlace(Reached reached) {
  const JobSecret secret = JobSecret::Random();
  setenv(kJobSecretVariable, secret.ToHex().c_str(), /*overwrite=*/1);
  const auto server = TcpStoreServer::Create(Endpoint{"127.0.0.1", 0}, secret);
  ASSERT_THAT(server, IsOk());
  const auto launch_of = [&](int rank) {
    return LaunchOf(rank, kRanks, (*server)->endpoint().port);
  };
  RanksOptions options;
  options.processes = options.in_process_recovery = true;
  options.heartbeat_timeout = kHeartbeatTimeout;

  std::vector<std::unique_ptr<RankJob>> jobs(2);
  std::unique_ptr<TcpJob> lost;
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      absl::StatusOr<std::unique_ptr<RankJob>> job = RankJob::Join(launch_of(i + 1), options, "");
      ASSERT_THAT(job, IsOk());
      jobs[i] = *std::move(job);
    });
  }
  threads.emplace_back([&] {
    absl::StatusOr<std::unique_ptr<TcpJob>> job = TcpJob::Meet(launch_of(0), secret);
    ASSERT_THAT(job, IsOk());
    lost = *std::move(job);
    ASSERT_THAT(lost->MakeWorld(0, kRanks, "world", absl::Minutes(5)), IsOk());
  });
  for (std::thread& thread : threads) thread.join();
  threads.clear();
  ASSERT_TRUE(jobs[0] != nullptr && jobs[1] != nullptr && lost != nullptr);

  std::thread joiner([&] {
    TcpWorldOptions world;
    world.route = [&](int peer, const Endpoint& address) -> absl::StatusOr<Endpoint> {
      if (peer == 0 || reached == Reached::kAll) return address;
      return absl::AbortedError("lost");
    };
    absl::StatusOr<std::unique_ptr<TcpJob>> job = TcpJob::Meet(launch_of(0), secret, world);
    ASSERT_THAT(job, IsOk());
    Regroup regroup(&(*job)->store(), kHeartbeatTimeout);
    const absl::StatusOr<RegroupPlan> plan =
        regroup.MeetAsSpare({0, "host", -1, {}}, kRanks, [] { return false; });
    ASSERT_THAT(plan, IsOk());
    EXPECT_EQ(static_cast<int>(plan->ranks.size()), kRanks);
    EXPECT_EQ(plan->RankOf(regroup.comer()), 2);
    if (reached != Reached::kNone) {
      EXPECT_THAT(
          (*job)->MakeWorld(2, kRanks, "world.1", absl::Minutes(5)),
          StatusIs(reached == Reached::kAll ? absl::StatusCode::kOk : absl::StatusCode::kAborted));
    }
    // All of its connections end here.
  });
  const absl::Time deadline = SteadyNow() + absl::Minutes(1);
  while (jobs[0]->CountWaiting() < 1 && SteadyNow() < deadline)
    absl::SleepFor(absl::Milliseconds(1));
  lost.reset();

  RegroupRules rules;
  rules.sizes.data = rules.most_data_size = kRanks;
  rules.fits = [](int64_t) { return true; };
  rules.from_checkpoint = true;
  const absl::Time begin = SteadyNow();
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] { EXPECT_THAT(jobs[i]->Regroup({}, rules), IsOkAndHolds(true)); });
  }
  for (std::thread& thread : threads) thread.join();
  joiner.join();
  EXPECT_LT(SteadyNow() - begin, kHeartbeatTimeout / 2);
  for (int i = 0; i < 2; ++i) {
    ASSERT_NE(jobs[i]->plan(), nullptr);
    // They have come as the ranks that they were when rank 0 was lost.
    EXPECT_EQ(jobs[i]->plan()->reason, "without rank 0");
    EXPECT_EQ(jobs[i]->launch().world_size, 2);
    EXPECT_EQ(jobs[i]->launch().rank, i);
  }
}

TEST(RankJobTest, AProcessThatIsLostBeforeItConnectsIsNotWaitedForUntilItsHeartbeatEnds) {
  LoseARankAndThenTheOneInItsPlace(Reached::kNone);
}

TEST(RankJobTest, AProcessThatIsLostAsItConnectsIsNotWaitedForUntilItsHeartbeatEnds) {
  LoseARankAndThenTheOneInItsPlace(Reached::kTheFirst);
}

TEST(RankJobTest, RanksKeepTheirWorldUntilAllHaveMadeTheNextOne) {
  LoseARankAndThenTheOneInItsPlace(Reached::kAll);
}

// Rank 2 is lost when it has connected to the first rank, which has all its connections then, and
// not yet to the second one.
TEST(RankJobTest, ARankThatIsLostAsItConnectsToTheOthersIsStartedAgainAndTheyFollow) {
  const JobSecret secret = JobSecret::Random();
  setenv(kJobSecretVariable, secret.ToHex().c_str(), /*overwrite=*/1);
  const auto server = TcpStoreServer::Create(Endpoint{"127.0.0.1", 0}, secret);
  ASSERT_THAT(server, IsOk());
  const auto launch_of = [&](int rank) {
    return LaunchOf(rank, kRanks, (*server)->endpoint().port);
  };
  RanksOptions options;
  options.processes = options.in_process_recovery = true;
  options.start_timeout = absl::Minutes(1);
  options.heartbeat_timeout = kHeartbeatTimeout;
  std::vector<std::unique_ptr<RankJob>> jobs(kRanks);
  std::vector<std::thread> threads;
  const auto join = [&](int rank) {
    threads.emplace_back([&, rank] {
      absl::StatusOr<std::unique_ptr<RankJob>> job = RankJob::Join(launch_of(rank), options, "");
      ASSERT_THAT(job, IsOk());
      jobs[rank] = *std::move(job);
    });
  };
  join(0);
  join(1);
  std::thread lost([&] {
    TcpWorldOptions to_the_first;
    to_the_first.route = [](int peer, const Endpoint& address) -> absl::StatusOr<Endpoint> {
      if (peer == 0) return address;
      return absl::AbortedError("lost");
    };
    absl::StatusOr<std::unique_ptr<TcpJob>> job = TcpJob::Meet(launch_of(2), secret, to_the_first);
    ASSERT_THAT(job, IsOk());
    Regroup regroup(&(*job)->store(), kHeartbeatTimeout);
    EXPECT_THAT(regroup.CountStarts(2), IsOkAndHolds(1));
    EXPECT_THAT((*job)->MakeWorld(2, kRanks, "world", absl::Minutes(1)),
                StatusIs(absl::StatusCode::kAborted));
    // All of its connections end here.
  });
  lost.join();
  join(2);
  for (std::thread& thread : threads) thread.join();
  for (int rank = 0; rank < kRanks; ++rank) {
    ASSERT_NE(jobs[rank], nullptr) << rank;
    EXPECT_EQ(jobs[rank]->plan(), nullptr);
    EXPECT_EQ(jobs[rank]->launch().rank, rank);
    EXPECT_EQ(jobs[rank]->world().size(), kRanks);
  }
}

// The connections of rank 2 to the first rank end, and its process stays.
TEST(RankJobTest, RanksThatMissOneWhichHasNotEndedBeginAnotherAttempt) {
  const JobSecret secret = JobSecret::Random();
  setenv(kJobSecretVariable, secret.ToHex().c_str(), /*overwrite=*/1);
  const auto server = TcpStoreServer::Create(Endpoint{"127.0.0.1", 0}, secret);
  ASSERT_THAT(server, IsOk());
  const auto launch_of = [&](int rank) {
    return LaunchOf(rank, kRanks, (*server)->endpoint().port);
  };
  RanksOptions options;
  options.processes = options.in_process_recovery = true;
  options.start_timeout = absl::Minutes(1);
  options.heartbeat_timeout = absl::Seconds(3);
  std::vector<std::unique_ptr<RankJob>> jobs(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      absl::StatusOr<std::unique_ptr<RankJob>> job = RankJob::Join(launch_of(rank), options, "");
      ASSERT_THAT(job, IsOk());
      jobs[rank] = *std::move(job);
    });
  }
  bool is_cut = true;
  TcpWorldOptions world;
  world.route = [&](int peer, const Endpoint& address) -> absl::StatusOr<Endpoint> {
    if (peer == 0 || !is_cut) return address;
    return absl::AbortedError("cut");
  };
  std::unique_ptr<TcpJob> last;
  threads.emplace_back([&] {
    absl::StatusOr<std::unique_ptr<TcpJob>> job = TcpJob::Meet(launch_of(2), secret, world);
    ASSERT_THAT(job, IsOk());
    last = *std::move(job);
    Regroup regroup(&last->store(), kHeartbeatTimeout);
    EXPECT_THAT(last->MakeWorld(2, kRanks, "world", absl::Minutes(1)),
                StatusIs(absl::StatusCode::kAborted));
    is_cut = false;
    const absl::Time deadline = SteadyNow() + absl::Minutes(1);
    absl::Status followed = absl::UnavailableError("no attempt was begun");
    while (!followed.ok() && SteadyNow() < deadline) {
      absl::SleepFor(absl::Milliseconds(5));
      const int64_t attempt = regroup.NewestAttempt().value_or(0);
      if (attempt == 0) continue;
      followed =
          last->MakeWorld(2, kRanks, absl::StrCat("world.attempt.", attempt), absl::Minutes(1),
                          [&] { return regroup.IsOver(attempt).value_or(false); });
    }
    EXPECT_THAT(followed, IsOk());
  });
  for (std::thread& thread : threads) thread.join();
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_NE(jobs[rank], nullptr) << rank;
    EXPECT_EQ(jobs[rank]->plan(), nullptr);
    EXPECT_EQ(jobs[rank]->world().size(), kRanks);
  }
}

// Ranks 0 and 1 make the first world with one configuration; then a process comes for rank 1.
TEST(RankJobTest, AProcessWithAnotherConfigurationThanTheRunDoesNotComeToTheOthers) {
  const JobSecret secret = JobSecret::Random();
  setenv(kJobSecretVariable, secret.ToHex().c_str(), /*overwrite=*/1);
  const auto server = TcpStoreServer::Create(Endpoint{"127.0.0.1", 0}, secret);
  ASSERT_THAT(server, IsOk());
  const int port = (*server)->endpoint().port;
  RanksOptions options;
  options.processes = options.in_process_recovery = true;
  options.heartbeat_timeout = kHeartbeatTimeout;
  const std::string begun = "optimizer {\n  lr: 0.003\n}\n";
  std::vector<std::unique_ptr<RankJob>> jobs(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      absl::StatusOr<std::unique_ptr<RankJob>> job =
          RankJob::Join(LaunchOf(rank, 2, port), options, begun);
      ASSERT_THAT(job, IsOk());
      jobs[rank] = *std::move(job);
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(jobs[0] != nullptr && jobs[1] != nullptr);

  const absl::Status edited =
      RankJob::Join(LaunchOf(1, 2, port), options, "optimizer {\n  lr: 0.01\n}\n").status();
  EXPECT_THAT(edited,
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("optimizer.lr is 0.01, on rank 0 0.003; the others keep")));
  EXPECT_EQ(ExitCodeOf(edited), kExitConfig);
  // What a process that can't read its configuration would do otherwise is unknown, too.
  const absl::Status torn =
      RankJob::Join(LaunchOf(1, 2, port), RanksOptions(), absl::NotFoundError("no such file"))
          .status();
  EXPECT_THAT(torn, StatusIs(absl::StatusCode::kNotFound, HasSubstr("no such file; the others")));
  EXPECT_EQ(ExitCodeOf(torn), kExitConfig);
  EXPECT_EQ(jobs[0]->CountWaiting(), 0);
}

// As one whose connections to the others are blocked, but not the one to the store.
TEST(RankJobTest, AProcessThatCannotJoinTheOthersEndsAndLeavesThemAlone) {
  const JobSecret secret = JobSecret::Random();
  setenv(kJobSecretVariable, secret.ToHex().c_str(), /*overwrite=*/1);
  const auto server = TcpStoreServer::Create(Endpoint{"127.0.0.1", 0}, secret);
  ASSERT_THAT(server, IsOk());
  const int port = (*server)->endpoint().port;
  const auto store = TcpStoreClient::Connect((*server)->endpoint(), secret, absl::Minutes(1));
  ASSERT_THAT(store, IsOk());
  // The rank that there is: the other one was lost after the first world was made.
  Regroup rank(store->get(), kHeartbeatTimeout);
  ASSERT_THAT(rank.CountStarts(1), IsOkAndHolds(1));
  ASSERT_THAT(rank.Open(0), IsOk());
  ASSERT_THAT(rank.IsOpen(), IsOkAndHolds(true));
  RanksOptions options;
  options.processes = options.in_process_recovery = true;
  options.heartbeat_timeout = kHeartbeatTimeout;
  absl::StatusOr<std::unique_ptr<RankJob>> joined = absl::UnknownError("");
  std::thread joiner([&] { joined = RankJob::Join(LaunchOf(1, 2, port), options, ""); });
  for (int i = 0; i < 3; ++i) {
    const absl::Time deadline = SteadyNow() + absl::Minutes(1);
    while (rank.CountWaiting().value_or(0) < 1 && SteadyNow() < deadline)
      absl::SleepFor(absl::Milliseconds(5));
    const auto decide = [](const std::vector<Comer>& comers) {
      RegroupPlan plan;
      plan.data_size = 2;
      for (const int rank_before : {-1, 0}) {
        for (size_t comer = 0; comer < comers.size(); ++comer) {
          if (comers[comer].place >= 0 && comers[comer].rank == rank_before)
            plan.ranks.push_back({static_cast<int>(comer) + 1, comers[comer].place, "host"});
        }
      }
      return plan;
    };
    const auto plan = rank.MeetAsMember(
        {0, "host", 0, {}}, [] { return std::vector<int>{0}; }, decide);
    EXPECT_THAT(plan, IsOk());
    EXPECT_THAT(rank.GiveUp(), IsOk());
  }
  EXPECT_THAT(rank.End("the run has ended"), IsOk());
  joiner.join();
  EXPECT_THAT(joined, StatusIs(absl::StatusCode::kCancelled, HasSubstr("could not join")));
  EXPECT_EQ(ExitCodeOf(joined.status()), kExitHang);
}

// The store ends when the other rank has made the next world: nobody knows what becomes of it.
TEST(RankJobTest, AProcessThatDoesNotHearWhetherAllHaveMadeTheNextWorldIsLostAlone) {
  const JobSecret secret = JobSecret::Random();
  setenv(kJobSecretVariable, secret.ToHex().c_str(), /*overwrite=*/1);
  auto server = TcpStoreServer::Create(Endpoint{"127.0.0.1", 0}, secret);
  ASSERT_THAT(server, IsOk());
  const int port = (*server)->endpoint().port;
  RanksOptions options;
  options.processes = options.in_process_recovery = true;
  options.heartbeat_timeout = kHeartbeatTimeout;
  absl::StatusOr<std::unique_ptr<RankJob>> job = absl::UnknownError("");
  std::thread joiner([&] { job = RankJob::Join(LaunchOf(0, 2, port), options, ""); });
  const absl::StatusOr<std::unique_ptr<TcpJob>> other = TcpJob::Meet(LaunchOf(1, 2, port), secret);
  EXPECT_THAT(other, IsOk());
  if (other.ok()) {
    EXPECT_THAT((*other)->MakeWorld(1, 2, "world", absl::Minutes(1)), IsOk());
  }
  joiner.join();
  ASSERT_TRUE(job.ok() && other.ok()) << job.status() << other.status();

  RegroupRules rules;
  rules.sizes.data = rules.most_data_size = 2;
  rules.fits = [](int64_t) { return true; };
  rules.from_checkpoint = true;
  absl::StatusOr<bool> goes_on = true;
  std::thread member([&] { goes_on = (*job)->Regroup({}, rules); });
  Regroup regroup(&(*other)->store(), kHeartbeatTimeout);
  EXPECT_THAT(regroup.IsOpen(), IsOkAndHolds(true));
  const absl::StatusOr<RegroupPlan> plan = regroup.MeetAsMember(
      {1, "host", 1, {}},
      [] {
        return std::vector<int>{0, 1};
      },
      [&](const std::vector<Comer>& comers) { return PlanRegroup(comers, rules); });
  EXPECT_THAT(plan, IsOk());
  if (plan.ok()) {
    EXPECT_THAT((*other)->MakeWorld(plan->RankOf(regroup.comer()), 2, "world.1", absl::Minutes(1)),
                IsOk());
  }
  server->reset();
  member.join();
  EXPECT_FALSE(goes_on.ok());
  EXPECT_EQ(ExitCodeOf(goes_on.status()), kExitHang) << goes_on.status();
  EXPECT_TRUE((*job)->tells());
}

// The second rank of two, in a process of its own. Returns 0 if it has followed the first one to
// another attempt. It begins when a byte comes.
int FollowTheFirstRank(const LaunchEnvironment& launch, const JobSecret& secret, int begin) {
  absl::StatusOr<std::unique_ptr<TcpJob>> job = TcpJob::Meet(launch, secret);
  if (!job.ok()) return 1;
  Regroup regroup(&(*job)->store(), kHeartbeatTimeout);
  char byte;
  if (!(*job)->store().Set("second rank", "is there").ok() || read(begin, &byte, 1) != 1) return 2;
  const auto is_over = [&] { return regroup.IsOver(0).value_or(false); };
  if (!absl::IsCancelled((*job)->MakeWorld(1, 2, "world", absl::Minutes(1), is_over))) return 3;
  const bool met = (*job)->MakeWorld(1, 2, "world.attempt.1", absl::Minutes(1)).ok();
  (*job).reset();  // it says goodbye
  return met ? 0 : 4;
}

TEST(RankJobTest, ARankWithoutDescriptorsTriesAgainAndTheOthersFollow) {
  const JobSecret secret = JobSecret::Random();
  setenv(kJobSecretVariable, secret.ToHex().c_str(), /*overwrite=*/1);
  absl::StatusOr<Socket> listener = ListenTcp({"127.0.0.1", 0});
  ASSERT_THAT(listener, IsOk());
  const absl::StatusOr<Endpoint> endpoint = LocalEndpoint(*listener);
  ASSERT_THAT(endpoint, IsOk());
  int begin[2];
  ASSERT_EQ(pipe(begin), 0);
  const pid_t second = fork();
  if (second == 0) {
    close(begin[1]);
    listener->Close();
    _exit(FollowTheFirstRank(LaunchOf(1, 2, endpoint->port), secret, begin[0]));
  }
  const auto server = TcpStoreServer::Create(*std::move(listener), secret);
  ASSERT_THAT(server, IsOk());
  const auto store = TcpStoreClient::Connect(*endpoint, secret, absl::Minutes(1));
  ASSERT_THAT(store, IsOk());
  RanksOptions options;
  options.processes = options.in_process_recovery = true;
  absl::StatusOr<std::unique_ptr<RankJob>> job = absl::UnknownError("");
  std::thread first([&] { job = RankJob::Join(LaunchOf(0, 2, endpoint->port), options, ""); });
  EXPECT_THAT((*store)->Get("second rank", absl::Minutes(1)), IsOk());
  EXPECT_THAT((*store)->Get("world/rank/0", absl::Minutes(1)), IsOk());

  rlimit before;
  EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  // All numbers below the next one are in use.
  const int next = dup(STDERR_FILENO);
  close(next);
  const rlimit no_more = {static_cast<rlim_t>(next), before.rlim_max};
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &no_more), 0);
  EXPECT_EQ(write(begin[1], "b", 1), 1);
  Regroup regroup(store->get(), kHeartbeatTimeout);
  const absl::Time deadline = SteadyNow() + absl::Minutes(1);
  while (regroup.NewestAttempt().value_or(0) < 1 && SteadyNow() < deadline)
    absl::SleepFor(absl::Milliseconds(5));
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  first.join();
  EXPECT_THAT(job, IsOk());
  int status = 0;
  EXPECT_EQ(waitpid(second, &status, 0), second);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  for (const int end : begin) close(end);
}

}  // namespace
}  // namespace megatron
