#include "megatron/comm/launch/regroup.h"

#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/status_matchers.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/steady_now.h"
#include "megatron/comm/socket/job_secret.h"
#include "megatron/comm/socket/socket.h"
#include "megatron/comm/store/memory_store.h"
#include "megatron/comm/store/store.h"
#include "megatron/comm/store/tcp_store.h"

namespace megatron {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

RegroupRules Rules(int tensor, int pipeline, int data) {
  RegroupRules rules;
  rules.sizes.tensor = tensor;
  rules.sizes.pipeline = pipeline;
  rules.sizes.data = data;
  rules.most_data_size = data;
  rules.fits = [](int64_t) { return true; };
  return rules;
}

// Ranks of a world, without some, after so many steps.
std::vector<Comer> All(int ranks, const std::set<int>& without, int64_t iteration) {
  std::vector<Comer> comers;
  for (int rank = 0; rank < ranks; ++rank) {
    if (without.count(rank) != 0) continue;
    comers.push_back({rank, "host", rank, {}});
    if (iteration >= 0) comers.back().kept = {{iteration}};
  }
  return comers;
}

// What a rank has of states that are shared out over so many: its own shard and that of the rank
// before it, after these steps.
std::vector<KeptPart> Shards(int rank, int ranks, std::vector<int64_t> iterations) {
  std::vector<KeptPart> kept;
  for (const int64_t iteration : iterations) {
    kept.push_back({iteration, rank, ranks});
    kept.push_back({iteration, (rank + ranks - 1) % ranks, ranks});
  }
  return kept;
}

std::vector<int> Places(const RegroupPlan& plan) {
  std::vector<int> places;
  for (const RegroupPlan::Rank& rank : plan.ranks) places.push_back(rank.place);
  return places;
}

TEST(PlanRegroup, TheOthersGoOnInTheirOrder) {
  const RegroupPlan plan = PlanRegroup(All(4, {1}, 7), Rules(1, 1, 4));
  EXPECT_FALSE(plan.ends) << plan.reason;
  EXPECT_EQ(plan.data_size, 3);
  EXPECT_EQ(plan.iteration, 7);
  EXPECT_THAT(Places(plan), ElementsAre(0, 2, 3));
  EXPECT_EQ(plan.reason, "without rank 1");
  EXPECT_EQ(plan.RankOf(2), 1);
  EXPECT_EQ(plan.RankOf(4), -1);
}

// Runs of two ranks with secondary shards, of which there were four.
TEST(PlanRegroup, TheNumberOfHostsIsThatOfTheRanksThatGoOn) {
  RegroupRules rules = Rules(1, 1, 8);
  rules.sizes.hosts = 4;
  rules.fits = [](int64_t data_size) { return data_size % 2 == 0; };
  const RegroupPlan plan = PlanRegroup(All(8, {2, 3}, 7), rules);
  EXPECT_FALSE(plan.ends) << plan.reason;
  EXPECT_THAT(Places(plan), ElementsAre(0, 1, 4, 5, 6, 7));
}

// Ranks 0-1, 2-3 and 4-5 are the replicas of a model of two tensor-parallel ranks.
TEST(PlanRegroup, AReplicaThatHasLostARankIsLeftOut) {
  EXPECT_THAT(Places(PlanRegroup(All(6, {2}, 7), Rules(2, 1, 3))), ElementsAre(0, 1, 4, 5));
  // Pipeline stages lie behind each other: ranks 0-2 are the first stages.
  EXPECT_THAT(Places(PlanRegroup(All(6, {4}, 7), Rules(1, 2, 3))), ElementsAre(0, 2, 3, 5));
}

TEST(PlanRegroup, WhatIsLeftOfTwoReplicasMakesOne) {
  const RegroupPlan plan = PlanRegroup(All(6, {2, 5}, 7), Rules(2, 1, 3));
  EXPECT_THAT(Places(plan), ElementsAre(0, 1, 4, 3));
}

// Both have lost the same half of the model; one of the others takes its place.
TEST(PlanRegroup, ARankMayTakeAnotherPlace) {
  const RegroupPlan plan = PlanRegroup(All(6, {3, 5}, 7), Rules(2, 1, 3));
  EXPECT_THAT(Places(plan), ElementsAre(0, 1, 2, 4));
  EXPECT_EQ(plan.iteration, 7);
}

TEST(PlanRegroup, AStepThatOnlySomeHaveMadeIsMadeAgain) {
  std::vector<Comer> comers = All(4, {1}, 7);
  comers[2].kept = {{8}};
  EXPECT_EQ(PlanRegroup(comers, Rules(1, 1, 4)).iteration, 7);
  comers[0].kept = comers[1].kept = {{8}};
  EXPECT_EQ(PlanRegroup(comers, Rules(1, 1, 4)).iteration, 8);
}

// Ranks have the last two generations of their shards and of those of the ranks before them.
TEST(PlanRegroup, ShardsOfLostRanksAreInTheMemoryOfOthers) {
  std::vector<Comer> comers = All(4, {1}, -1);
  for (Comer& comer : comers) comer.kept = Shards(comer.rank, 4, {6, 7});
  RegroupPlan plan = PlanRegroup(comers, Rules(1, 1, 4));
  EXPECT_EQ(plan.iteration, 7);
  EXPECT_EQ(plan.parts, 4);
  EXPECT_EQ(plan.data_size, 3);
  // One had not got the newest copies yet.
  comers[1].kept = Shards(2, 4, {6});
  EXPECT_EQ(PlanRegroup(comers, Rules(1, 1, 4)).iteration, 6);
  // One has begun the next step, and has sent its copies already.
  for (Comer& comer : comers) comer.kept = Shards(comer.rank, 4, {6, 7});
  comers[0].kept = Shards(0, 4, {7, 8});
  EXPECT_EQ(PlanRegroup(comers, Rules(1, 1, 4)).iteration, 7);
  // The rank that had the copy is lost, too.
  comers.erase(comers.begin() + 1);
  EXPECT_TRUE(PlanRegroup(comers, Rules(1, 1, 4)).ends);
}

// One rank was lost while the others took over the state from those that were before.
TEST(PlanRegroup, PartsOfAnotherNumberOfRanksAreNotMixed) {
  std::vector<Comer> comers = All(3, {}, -1);
  comers[0].kept = Shards(0, 4, {7});
  comers[1].kept = Shards(1, 4, {7});
  comers[2].kept = Shards(2, 3, {7});
  EXPECT_TRUE(PlanRegroup(comers, Rules(1, 1, 3)).ends);
  comers[2].kept = Shards(3, 4, {7});
  const RegroupPlan plan = PlanRegroup(comers, Rules(1, 1, 3));
  EXPECT_EQ(plan.iteration, 7);
  EXPECT_EQ(plan.parts, 4);
}

TEST(PlanRegroup, StateThatNoMemoryHasComesFromACheckpoint) {
  // One half of the model is after 7 steps, the other after 8 of them.
  std::vector<Comer> comers = All(4, {}, 7);
  comers[1].kept = comers[3].kept = {{8}};
  RegroupRules rules = Rules(2, 1, 2);
  EXPECT_TRUE(PlanRegroup(comers, rules).ends);
  rules.from_checkpoint = true;
  EXPECT_EQ(PlanRegroup(comers, rules).iteration, -1);
  EXPECT_EQ(PlanRegroup(All(4, {0, 1}, -1), rules).iteration, -1);
}

TEST(PlanRegroup, ProcessesThatHaveComeGetPlaces) {
  std::vector<Comer> comers = All(4, {1}, 7);
  comers.push_back({1, "host", -1, {}});
  const RegroupPlan plan = PlanRegroup(comers, Rules(1, 1, 4));
  EXPECT_THAT(Places(plan), ElementsAre(0, 2, 3, 1));
  EXPECT_EQ(plan.reason, "without rank 1, with 1 process that has come");
  // One that was lost and started again before it had a place comes a second time.
  comers.push_back({1, "host", -1, {}});
  const RegroupPlan again = PlanRegroup(comers, Rules(1, 1, 4));
  EXPECT_EQ(again.data_size, 4);
  EXPECT_EQ(again.RankOf(4), -1);
  EXPECT_EQ(again.RankOf(5), 3);
  // More processes than the run was launched with stay spares.
  comers.push_back({4, "host", -1, {}});
  EXPECT_EQ(PlanRegroup(comers, Rules(1, 1, 4)).data_size, 4);
}

TEST(PlanRegroup, TheGreatestSizeThatFitsIsTaken) {
  RegroupRules rules = Rules(1, 1, 8);
  rules.fits = [](int64_t size) { return size == 4 || size == 2; };
  EXPECT_THAT(Places(PlanRegroup(All(8, {3}, 1), rules)), ElementsAre(0, 1, 2, 4));
  rules.least_data_size = 5;
  const RegroupPlan plan = PlanRegroup(All(8, {3}, 1), rules);
  EXPECT_TRUE(plan.ends);
  EXPECT_THAT(
      plan.reason,
      AllOf(HasSubstr("7 processes that are left cannot go on without rank 3: at least two"),
            HasSubstr("parallel.restarts")));
  EXPECT_TRUE(PlanRegroup(All(2, {0}, 1), Rules(1, 1, 2)).ends);
}

TEST(PlanRegroup, AProcessThatWasLostAsItCameIsNone) {
  std::vector<Comer> comers = All(4, {1}, 7);
  comers.insert(comers.begin(), Comer());
  const RegroupPlan plan = PlanRegroup(comers, Rules(1, 1, 4));
  EXPECT_THAT(Places(plan), ElementsAre(0, 2, 3));
  EXPECT_EQ(plan.ranks[0].comer, 2);
}

TEST(RegroupPlan, IsReadAsItIsWritten) {
  std::vector<Comer> comers = All(4, {1}, 7);
  comers.push_back({1, "a host", -1, {}});
  const RegroupPlan plan = PlanRegroup(comers, Rules(1, 1, 4));
  const auto read = DecodeRegroupPlan(EncodeRegroupPlan(plan));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(EncodeRegroupPlan(*read), EncodeRegroupPlan(plan));
  ASSERT_EQ(read->ranks.size(), 4u);
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(read->ranks[rank].has_come, rank == 3) << rank;
  EXPECT_EQ(read->ranks[3].place, 1);
  EXPECT_EQ(read->ranks[3].host, "a host");
  for (const char* garbage :
       {"", "go", "go 1 1 2", "go 1 1 2\n", "go 1 1 0\nx\n1 1 0 h", "go x 1 2\nx", "go 1 0 2\nx",
        "end -1 1 0\nx\n1 1 0 h", "go 1 1 2\nx\n1 1 0 h\n2 h", "go 1 1 2\nx\n1 1 0 h\n2 2 yes h"})
    EXPECT_FALSE(DecodeRegroupPlan(garbage).ok()) << garbage;
}

class RegroupTest : public ::testing::Test {
 protected:
  RegroupPlan Decide(const std::vector<Comer>& comers) { return PlanRegroup(comers, rules_); }

  // Ranks 0 and 1 meet one after the other. Returns the plan in which both have a place.
  static RegroupPlan MeetInTurn(Regroup* zero, Regroup* one) {
    RegroupPlan plan;
    plan.data_size = 2;
    plan.ranks = {{1, 0, "a"}, {2, 1, "a"}};
    for (const int rank : {0, 1}) {
      const auto met = (rank == 0 ? zero : one)
                           ->MeetAsMember(
                               {rank, "a", rank, {}}, [] { return std::vector<int>{0}; },
                               [&](const std::vector<Comer>&) { return plan; });
      EXPECT_TRUE(met.ok()) << met.status();
    }
    return plan;
  }

  MemoryStore store_;
  RegroupRules rules_ = Rules(1, 1, 4);
};

TEST_F(RegroupTest, AnAttemptIsOverWhereANewerOneBeganOrAnotherMadeTheWorld) {
  Regroup regroup(&store_, absl::Seconds(20));
  EXPECT_EQ(*regroup.NewestAttempt(), 0);
  EXPECT_FALSE(*regroup.IsOver(0));
  ASSERT_TRUE(regroup.BeginAttempt().ok());
  EXPECT_EQ(*regroup.NewestAttempt(), 1);
  EXPECT_TRUE(*regroup.IsOver(0));
  EXPECT_FALSE(*regroup.IsOver(1));
  // Rank 0 opened it, while others may still be on their way into it.
  ASSERT_TRUE(regroup.Open(1).ok());
  EXPECT_FALSE(*regroup.IsOver(1));
  ASSERT_TRUE(regroup.BeginAttempt().ok());
  EXPECT_TRUE(*regroup.IsOver(1));
  EXPECT_TRUE(*regroup.IsOver(2));
}

TEST_F(RegroupTest, MembersAgreeAndASpareJoins) {
  ASSERT_TRUE(Regroup(&store_, absl::Seconds(20)).Open(0).ok());
  std::vector<RegroupPlan> plans(4);
  std::vector<int> comers(4);
  std::vector<std::thread> threads;
  // Rank 1 is lost; a process comes in its place before the others do.
  threads.emplace_back([&] {
    Regroup regroup(&store_, absl::Seconds(20));
    EXPECT_TRUE(*regroup.IsOpen());
    plans[1] = *regroup.MeetAsSpare({1, "b", -1, {}}, 4, [] { return false; });
    comers[1] = regroup.comer();
  });
  Regroup looker(&store_, absl::Seconds(20));
  while (*looker.CountWaiting() == 0) absl::SleepFor(absl::Milliseconds(1));
  for (const int rank : {0, 2, 3}) {
    threads.emplace_back([&, rank] {
      Regroup regroup(&store_, absl::Seconds(20));
      plans[rank] = *regroup.MeetAsMember(
          {rank, "a", rank, {{5}}},
          [] {
            return std::vector<int>{0, 2, 3};
          },
          [&](const std::vector<Comer>& all) { return Decide(all); });
      comers[rank] = regroup.comer();
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<int> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(EncodeRegroupPlan(plans[rank]), EncodeRegroupPlan(plans[0]));
    ranks.insert(plans[rank].RankOf(comers[rank]));
  }
  EXPECT_EQ(plans[0].iteration, 5);
  EXPECT_EQ(ranks, (std::set<int>{0, 1, 2, 3}));
}

TEST_F(RegroupTest, MembersThatAreSilentAreLeftOutAndComeLater) {
  Regroup first(&store_, absl::Seconds(3)), second(&store_, absl::Seconds(3));
  rules_.sizes.data = rules_.most_data_size = 3;
  RegroupPlan plan;
  std::thread other([&] {
    while (*store_.Add("regroup/1/members", 0) == 0) absl::SleepFor(absl::Milliseconds(1));
    plan = *second.MeetAsMember(
        {1, "a", 1, {{5}}},
        [] {
          return std::vector<int>{0, 1, 2};
        },
        [&](const std::vector<Comer>& all) { return Decide(all); });
  });
  const RegroupPlan mine = *first.MeetAsMember(
      {0, "a", 0, {{5}}},
      [] {
        return std::vector<int>{0, 1, 2};
      },
      [&](const std::vector<Comer>& all) { return Decide(all); });
  other.join();
  EXPECT_TRUE(first.leads());
  EXPECT_THAT(Places(mine), ElementsAre(0, 1));
  // Rank 2 was stopped, and wakes up.
  Regroup late(&store_, absl::Seconds(3));
  const RegroupPlan old = *late.MeetAsMember(
      {2, "a", 2, {{5}}}, [] { return std::vector<int>(); },
      [&](const std::vector<Comer>& all) { return Decide(all); });
  EXPECT_EQ(old.RankOf(late.comer()), -1);
  EXPECT_TRUE(first.End("the run has ended").ok());
  const RegroupPlan end = *late.MeetAsSpare({2, "a", -1, {}}, 3, [] { return false; });
  EXPECT_TRUE(end.ends);
  EXPECT_TRUE(end.is_done);
  EXPECT_EQ(end.reason, "the run has ended");
}

bool Holds() { return true; }

TEST_F(RegroupTest, AWorldIsMadeWhenAllHaveMadeIt) {
  Regroup zero(&store_, absl::Minutes(5)), one(&store_, absl::Minutes(5));
  const RegroupPlan plan = MeetInTurn(&zero, &one);
  std::thread other([&] { EXPECT_TRUE(*one.Agree(plan, Holds)); });
  EXPECT_TRUE(*zero.Agree(plan, Holds));
  other.join();
  EXPECT_TRUE(one.GiveUp().ok());
  EXPECT_FALSE(*zero.IsGivenUp(plan)) << "it is too late";
}

TEST_F(RegroupTest, NobodyHasAWorldThatOneCannotMake) {
  Regroup zero(&store_, absl::Minutes(5)), one(&store_, absl::Minutes(5));
  const RegroupPlan plan = MeetInTurn(&zero, &one);
  std::thread waiting([&] { EXPECT_FALSE(*zero.Agree(plan, Holds)); });
  while (*store_.Add("regroup/1/made", 0) == 0) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(one.GiveUp().ok());
  waiting.join();
}

TEST_F(RegroupTest, NobodyHasAWorldThatFailsBeforeAllHaveMadeIt) {
  Regroup zero(&store_, absl::Minutes(5)), one(&store_, absl::Minutes(5));
  const RegroupPlan plan = MeetInTurn(&zero, &one);
  EXPECT_FALSE(*zero.Agree(plan, [] { return false; }));
  EXPECT_FALSE(*one.Agree(plan, Holds)) << "both have said that they have it, but too late";
}

TEST_F(RegroupTest, NobodyHasAWorldWhoseVerdictALostProcessOwes) {
  Regroup zero(&store_, absl::Milliseconds(100)), one(&store_, absl::Milliseconds(100));
  const RegroupPlan plan = MeetInTurn(&zero, &one);
  ASSERT_TRUE(store_.Add("regroup/1/decisions", 1).ok());
  EXPECT_FALSE(*zero.Agree(plan, Holds));
  EXPECT_FALSE(*one.Agree(plan, Holds));
}

// A spare that is asked to end leaves, and is not taken for a rank.
TEST_F(RegroupTest, ASpareThatLeavesIsNotWaitedFor) {
  ASSERT_TRUE(Regroup(&store_, absl::Seconds(20)).Open(0).ok());
  Regroup spare(&store_, absl::Seconds(20));
  bool stop = false;
  const auto left =
      spare.MeetAsSpare({2, "a", -1, {}}, 3, [&] { return std::exchange(stop, true); });
  EXPECT_TRUE(absl::IsCancelled(left.status())) << left.status();
  rules_.sizes.data = 2;
  rules_.most_data_size = 3;
  std::vector<RegroupPlan> plans(2);
  std::vector<std::thread> threads;
  for (const int rank : {0, 1}) {
    threads.emplace_back([&, rank] {
      Regroup regroup(&store_, absl::Seconds(20));
      plans[rank] = *regroup.MeetAsMember(
          {rank, "a", rank, {{5}}},
          [] {
            return std::vector<int>{0, 1};
          },
          [&](const std::vector<Comer>& all) { return Decide(all); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(Places(plans[0]), ElementsAre(0, 1));
}

// The store of a process that may be killed: then its connections end, and its calls fail.
class MortalStore : public Store {
 public:
  explicit MortalStore(std::unique_ptr<Store> store) : store_(std::move(store)) {}

  void Kill() { store_.reset(); }

  absl::Status Set(absl::string_view key, absl::string_view value) override {
    return store_ ? store_->Set(key, value) : Killed();
  }
  absl::Status Hold(absl::string_view key, absl::string_view value) override {
    return store_ ? store_->Hold(key, value) : Killed();
  }
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) override {
    if (!store_) return Killed();
    return store_->Get(key, timeout);
  }
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta) override {
    if (!store_) return Killed();
    return store_->Add(key, delta);
  }
  absl::Status Wait(absl::Span<const std::string> keys, absl::Duration timeout) override {
    return store_ ? store_->Wait(keys, timeout) : Killed();
  }

 private:
  static absl::Status Killed() { return absl::UnavailableError("killed"); }

  std::unique_ptr<Store> store_;
};

class ServedRegroupTest : public RegroupTest {
 protected:
  ServedRegroupTest()
      : server_(TcpStoreServer::Create(Endpoint{"127.0.0.1", 0}, secret_).value()),
        first_(Connect()),
        second_(Connect()),
        third_(Connect()) {}

  std::unique_ptr<Store> Connect() {
    return TcpStoreClient::Connect(server_->endpoint(), secret_, absl::Minutes(1)).value();
  }

  // Ranks 0 and 1 meet, each by its own regroup.
  std::vector<RegroupPlan> MeetAsTwo(Regroup* zero, Regroup* one) {
    std::vector<RegroupPlan> plans(2);
    std::vector<std::thread> threads;
    for (const int rank : {0, 1}) {
      threads.emplace_back([&, rank] {
        plans[rank] = *(rank == 0 ? zero : one)
                           ->MeetAsMember(
                               {rank, "a", rank, {{5}}},
                               [] {
                                 return std::vector<int>{0, 1};
                               },
                               [&](const std::vector<Comer>& all) { return Decide(all); });
      });
    }
    for (std::thread& thread : threads) thread.join();
    return plans;
  }

  // Returns whether it becomes true.
  static bool Await(absl::FunctionRef<bool()> condition) {
    const absl::Time deadline = SteadyNow() + absl::Minutes(1);
    while (SteadyNow() < deadline) {
      if (condition()) return true;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return false;
  }

  const JobSecret secret_ = JobSecret::Random();
  const std::unique_ptr<TcpStoreServer> server_;
  const std::unique_ptr<Store> first_, second_;
  MortalStore third_;
};

TEST_F(ServedRegroupTest, AProcessThatEndsAfterItHasComeGetsNoPlace) {
  Regroup zero(first_.get(), absl::Minutes(5)), one(second_.get(), absl::Minutes(5));
  ASSERT_TRUE(zero.Open(0).ok());
  Regroup spare(&third_, absl::Minutes(5));
  bool has_come = false;
  const auto killed = spare.MeetAsSpare({2, "a", -1, {}}, 3, [&] {
    if (std::exchange(has_come, true)) {
      EXPECT_EQ(*zero.CountWaiting(), 1);
      third_.Kill();
    }
    return false;
  });
  EXPECT_TRUE(absl::IsUnavailable(killed.status())) << killed.status();
  EXPECT_TRUE(Await([&] { return *zero.CountWaiting() == 0; }));
  rules_.sizes.data = 2;
  rules_.most_data_size = 3;
  for (const RegroupPlan& plan : MeetAsTwo(&zero, &one))
    EXPECT_THAT(Places(plan), ElementsAre(0, 1));
}

TEST_F(ServedRegroupTest, AWorldIsGivenUpWhenAProcessEndsThatHasAPlaceInIt) {
  Regroup zero(first_.get(), absl::Minutes(5)), one(second_.get(), absl::Minutes(5));
  ASSERT_TRUE(zero.Open(0).ok());
  rules_.sizes.data = 2;
  rules_.most_data_size = 3;
  std::thread joiner([&] {
    Regroup spare(&third_, absl::Minutes(5));
    const auto plan = spare.MeetAsSpare({2, "a", -1, {}}, 3, [] { return false; });
    EXPECT_TRUE(plan.ok()) << plan.status();
  });
  EXPECT_TRUE(Await([&] { return *zero.CountWaiting() == 1; }));
  const std::vector<RegroupPlan> plans = MeetAsTwo(&zero, &one);
  joiner.join();
  ASSERT_THAT(Places(plans[0]), ElementsAre(0, 1, 2));
  EXPECT_FALSE(*zero.IsGivenUp(plans[0]));
  EXPECT_FALSE(*one.IsGivenUp(plans[1]));
  third_.Kill();
  EXPECT_TRUE(Await([&] { return *one.IsGivenUp(plans[1]); }));
  EXPECT_TRUE(*zero.IsGivenUp(plans[0])) << "the other one has told it";
  for (const RegroupPlan& plan : MeetAsTwo(&zero, &one))
    EXPECT_THAT(Places(plan), ElementsAre(0, 1));
}

// Each rank was lost and started again before another one could take it in.
TEST_F(RegroupTest, SparesEndWhenThereIsNoMemberLeft) {
  ASSERT_TRUE(Regroup(&store_, absl::Seconds(20)).Open(0).ok());
  std::vector<std::thread> threads;
  for (const int place : {0, 1, 1}) {
    threads.emplace_back([&, place] {
      Regroup regroup(&store_, absl::Seconds(20));
      EXPECT_TRUE(*regroup.IsOpen());
      const auto plan = regroup.MeetAsSpare({place, "a", -1, {}}, 2, [] { return false; });
      EXPECT_TRUE(absl::IsUnavailable(plan.status())) << plan.status();
      EXPECT_THAT(plan.status().message(), HasSubstr("the last ranks of the run were lost"));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(RegroupTest, MembersMeetAgainWhenTheirLeaderIsLost) {
  // What a leader leaves that is lost before it has decided.
  ASSERT_TRUE(store_.Add("regroup/1/comers", 1).ok());
  ASSERT_TRUE(store_.Set("regroup/1/comer/1", "0 0 0:5/1 a").ok());
  ASSERT_TRUE(store_.Add("regroup/1/members", 1).ok());
  ASSERT_TRUE(store_.Set("regroup/1/leader", "0").ok());
  Regroup regroup(&store_, absl::Seconds(20));
  const auto live = [] { return std::vector<int>{1}; };
  const auto decide = [&](const std::vector<Comer>& all) { return Decide(all); };
  const auto lost = regroup.MeetAsMember({1, "a", 1, {{5}}}, live, decide);
  EXPECT_TRUE(absl::IsAborted(lost.status())) << lost.status();
  EXPECT_THAT(lost.status().message(), HasSubstr("rank 0 was lost"));
  rules_.sizes.data = 2;
  const auto plan = regroup.MeetAsMember({1, "a", 1, {{5}}}, live, decide);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(regroup.leads());
  EXPECT_EQ(regroup.number(), 2);
  EXPECT_TRUE(plan->ends);  // one process is no world
  // A process that comes only now finds it.
  Regroup late(&store_, absl::Seconds(20));
  EXPECT_TRUE(*late.IsOpen());
  const auto end = late.MeetAsSpare({0, "a", -1, {}}, 2, [] { return false; });
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_TRUE(end->ends);
  EXPECT_FALSE(end->is_done);
}

}  // namespace
}  // namespace megatron
