// Federated rounds of the server of the outer optimizer, against islands that are calls of this
// process.

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/memory_file_system.h"
#include "megatron/base/steady_now.h"
#include "megatron/base/wrapped_file_system.h"
#include "megatron/federated/clipped_update.h"
#include "megatron/islands/outer_server.h"
#include "megatron/islands/test_island.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Integers = std::vector<uint32_t>;

constexpr double kClipNorm = 0.5;

FederatedOptions Federated() {
  FederatedOptions options;
  options.clip_norm = kClipNorm;
  return options;
}

FederatedOptions Noised(double max_epsilon = 0) {
  FederatedOptions options = Federated();
  options.noise_multiplier = 1;
  options.max_epsilon = max_epsilon;
  return options;
}

Integers Encoded(const ModelValues& update) {
  Integers integers(update.size());
  const double scale = ClipScale(SquaredNorm(update), kClipNorm).value();
  EXPECT_THAT(EncodeUpdate(update, scale, kClipNorm, absl::MakeSpan(integers)), IsOk());
  return integers;
}

// The mean of updates as a plain program has it.
ModelValues MeanOf(const std::vector<ModelValues>& updates) {
  std::vector<int64_t> sums(kElements, 0);
  for (const ModelValues& update : updates) {
    const Integers integers = Encoded(update);
    for (int i = 0; i < kElements; ++i) sums[i] += static_cast<int32_t>(integers[i]);
  }
  ModelValues mean;
  for (const int64_t sum : sums) {
    mean.push_back(
        static_cast<float>(MeanOfUnits(sum, static_cast<int>(updates.size()), kClipNorm)));
  }
  return mean;
}

// A disk that may be full.
class FullFileSystem : public WrappedFileSystem {
 public:
  using WrappedFileSystem::WrappedFileSystem;
  std::atomic<bool> full{false};

 private:
  absl::Status Begin(const Operation& operation) override {
    if (full && operation.writes) return absl::ResourceExhaustedError("no space left");
    return absl::OkStatus();
  }
};

class FederatedRoundsTest : public ::testing::Test {
 protected:
  void Start(const FederatedOptions& federated, absl::Duration timeout = absl::Seconds(60),
             const std::string& state = "state") {
    server_.reset();
    options_ = OuterServerOptions();
    options_.round_timeout = timeout;
    options_.state_file = state;
    options_.federated = federated;
    auto server = OuterServer::Start(options_, secret_, fs_);
    ASSERT_THAT(server.status(), IsOk());
    server_ = *std::move(server);
  }
  TestIsland Make(int number) {
    TestIsland island(*server_, secret_, number);
    island.set_federated(options_.federated);
    return island;
  }
  // Islands that have joined, with the copy Some(0).
  std::vector<TestIsland> Joined(int count) {
    std::vector<TestIsland> islands;
    for (int i = 0; i < count; ++i) {
      islands.push_back(Make(i));
      EXPECT_EQ(islands.back().Enter(Some(0)), Some(0));
    }
    return islands;
  }
  // Goes through the steps up to sending, with these updates.
  static void Send(std::vector<TestIsland>* islands, const std::vector<ModelValues>& updates) {
    for (TestIsland& island : *islands) EXPECT_THAT(island.Advertise(), IsOk());
    for (TestIsland& island : *islands) EXPECT_THAT(island.Share(), IsOk());
    for (size_t i = 0; i < islands->size(); ++i)
      EXPECT_THAT((*islands)[i].SendMasked(Encoded(updates[i])), IsOk());
  }
  static void TakeRound(std::vector<TestIsland>* islands, const std::vector<ModelValues>& updates) {
    Send(islands, updates);
    for (TestIsland& island : *islands) EXPECT_THAT(island.Reveal(), IsOk());
  }
  // Returns once the server has noticed that a connection has ended.
  static void Settle() { absl::SleepFor(absl::Milliseconds(300)); }

  const JobSecret secret_ = JobSecret::Random();
  MemoryFileSystem memory_;
  FullFileSystem fs_{&memory_};
  OuterServerOptions options_;
  std::unique_ptr<OuterServer> server_;
};

TEST_F(FederatedRoundsTest, RoundsAreTheOuterStepsOfTheIntegersMeanBitForBit) {
  Start(Federated());
  std::vector<TestIsland> islands = Joined(3);
  Plain plain(Some(0));
  for (int round = 1; round <= 3; ++round) {
    std::vector<ModelValues> updates;
    for (int k = 0; k < 3; ++k) updates.push_back(Some(round * 10 + k));
    for (float& value : updates[1]) value *= 20;  // longer than the clip norm
    TakeRound(&islands, updates);
    plain.Step({MeanOf(updates)});
    for (TestIsland& island : islands) {
      const IslandMessage state = island.Await();
      EXPECT_EQ(state.round, round);
      EXPECT_EQ(state.present, (std::vector<int32_t>{0, 1, 2}));
      EXPECT_EQ(state.noised_rounds, 0);
      EXPECT_EQ(island.Fetch(state), plain.global());
    }
  }
}

TEST_F(FederatedRoundsTest, AnIslandIsLostAtEachStepAndTheOthersGoOn) {
  const std::vector<ModelValues> updates = {Some(1), Some(2), Some(3)};
  for (const int last : {1, 2, 3}) {  // it has advertised, shared, sent
    SCOPED_TRACE(last);
    Start(Federated(), absl::Seconds(60), "");
    std::vector<TestIsland> islands = Joined(3);
    for (TestIsland& island : islands) EXPECT_THAT(island.Advertise(), IsOk());
    if (last == 1) {
      // The sum has begun: it is closed when all have advertised.
      EXPECT_EQ(islands[1].Await(absl::Seconds(20), SumStep::kAdvertising).step, SumStep::kSharing);
      islands[1].Disconnect();
    }
    for (int i : {0, 1, 2}) {
      if (i != 1 || last > 1) {
        EXPECT_THAT(islands[i].Share(), IsOk());
      }
    }
    if (last == 2) {
      EXPECT_EQ(islands[1].Await(absl::Seconds(20), SumStep::kSharing).step, SumStep::kMasking);
      islands[1].Disconnect();
    }
    for (int i : {0, 1, 2}) {
      if (i != 1 || last > 2) {
        EXPECT_THAT(islands[i].SendMasked(Encoded(updates[i])), IsOk());
      }
    }
    if (last == 3) islands[1].Disconnect();
    EXPECT_THAT(islands[0].Reveal(), IsOk());
    EXPECT_THAT(islands[2].Reveal(), IsOk());
    Plain plain(Some(0));
    plain.Step({last == 3 ? MeanOf(updates) : MeanOf({updates[0], updates[2]})});
    const IslandMessage state = islands[0].Await();
    EXPECT_EQ(state.present,
              last == 3 ? (std::vector<int32_t>{0, 1, 2}) : (std::vector<int32_t>{0, 2}));
    EXPECT_EQ(islands[0].Fetch(state), plain.global());
    // It comes back, and gets the copy.
    EXPECT_EQ(islands[1].Enter(), plain.global());
  }
}

TEST_F(FederatedRoundsTest, WithTooFewTheRoundHasNoStepAndTheNextOneGoesOn) {
  Start(Federated());
  std::vector<TestIsland> islands = Joined(2);
  for (TestIsland& island : islands) EXPECT_THAT(island.Advertise(), IsOk());
  for (TestIsland& island : islands) EXPECT_THAT(island.Share(), IsOk());
  EXPECT_THAT(islands[0].SendMasked(Encoded(Some(1))), IsOk());
  islands[1].Disconnect();
  IslandMessage state = islands[0].Await();
  EXPECT_EQ(state.round, 1);
  EXPECT_THAT(state.present, IsEmpty());
  EXPECT_THAT(state.note, HasSubstr("1 members have sent their masked vectors, and 2 are needed"));
  EXPECT_EQ(islands[0].Fetch(state), Some(0));
  // One alone waits for another.
  EXPECT_THAT(islands[0].Advertise(), IsOk());
  EXPECT_EQ(islands[0].Await(absl::Seconds(1), SumStep::kAdvertising).step, SumStep::kNone);
  EXPECT_EQ(islands[1].Enter(), Some(0));
  EXPECT_THAT(islands[1].Advertise(), IsOk());
  for (TestIsland& island : islands) EXPECT_THAT(island.Share(), IsOk());
  EXPECT_THAT(islands[0].SendMasked(Encoded(Some(2))), IsOk());
  EXPECT_THAT(islands[1].SendMasked(Encoded(Some(3))), IsOk());
  for (TestIsland& island : islands) EXPECT_THAT(island.Reveal(), IsOk());
  Plain plain(Some(0));
  plain.Step({MeanOf({Some(2), Some(3)})});
  state = islands[0].Await();
  EXPECT_THAT(state.note, IsEmpty());
  EXPECT_EQ(islands[0].Fetch(state), plain.global());
}

TEST_F(FederatedRoundsTest, AStepEndsInTimeWithoutAnIslandThatIsSilent) {
  Start(Federated(), absl::Seconds(3));
  std::vector<TestIsland> islands = Joined(3);
  for (TestIsland& island : islands) EXPECT_THAT(island.Advertise(), IsOk());
  for (TestIsland& island : islands) EXPECT_THAT(island.Share(), IsOk());
  EXPECT_THAT(islands[0].SendMasked(Encoded(Some(1))), IsOk());
  EXPECT_THAT(islands[1].SendMasked(Encoded(Some(2))), IsOk());
  EXPECT_THAT(islands[0].Reveal(), IsOk());
  EXPECT_THAT(islands[1].Reveal(), IsOk());
  const IslandMessage state = islands[0].Await();
  EXPECT_EQ(state.present, (std::vector<int32_t>{0, 1}));
  Plain plain(Some(0));
  plain.Step({MeanOf({Some(1), Some(2)})});
  EXPECT_EQ(islands[0].Fetch(state), plain.global());
  // What the silent one sends now is of no round.
  EXPECT_THAT(islands[2].SendMasked(Encoded(Some(3))), StatusIs(absl::StatusCode::kOutOfRange));
  EXPECT_EQ(islands[2].Fetch(islands[2].Await()), plain.global());
}

TEST_F(FederatedRoundsTest, AServerThatIsKilledBeginsTheSumAnew) {
  Start(Federated());
  std::vector<TestIsland> islands = Joined(2);
  const uint64_t run = islands[0].run;
  Send(&islands, {Some(1), Some(2)});
  Start(Federated());  // the state of the file: the round has not ended
  EXPECT_EQ(server_->round(), 0);
  islands.clear();
  for (int i = 0; i < 2; ++i) {
    islands.push_back(Make(i));
    islands.back().run = run;
    islands.back().round = 0;
    EXPECT_THAT(islands.back().Join().status(), IsOk());
  }
  TakeRound(&islands, {Some(1), Some(2)});
  Plain plain(Some(0));
  plain.Step({MeanOf({Some(1), Some(2)})});
  EXPECT_EQ(islands[1].Fetch(islands[1].Await()), plain.global());
}

TEST_F(FederatedRoundsTest, AnIslandThatComesDuringASumWaitsForTheNextRound) {
  Start(Federated());
  std::vector<TestIsland> islands = Joined(2);
  for (TestIsland& island : islands) EXPECT_THAT(island.Advertise(), IsOk());
  for (TestIsland& island : islands) EXPECT_THAT(island.Share(), IsOk());
  TestIsland late = Make(7);
  EXPECT_EQ(late.Enter(), Some(0));
  EXPECT_THAT(late.Advertise(), IsOk());
  EXPECT_EQ(late.Await(absl::Seconds(1), SumStep::kNone).step, SumStep::kNone);
  for (TestIsland& island : islands) EXPECT_THAT(island.SendMasked(Encoded(Some(1))), IsOk());
  for (TestIsland& island : islands) EXPECT_THAT(island.Reveal(), IsOk());
  const IslandMessage state = late.Await();
  EXPECT_EQ(state.present, (std::vector<int32_t>{0, 1}));
  const ModelValues copy = late.Fetch(state);
  for (TestIsland& island : islands) EXPECT_EQ(island.Fetch(island.Await()), copy);
  islands.push_back(std::move(late));
  TakeRound(&islands, {Some(1), Some(2), Some(3)});
  EXPECT_EQ(islands[2].Await().present, (std::vector<int32_t>{0, 1, 7}));
}

TEST_F(FederatedRoundsTest, AnIslandWithNothingToSendIsLeftOut) {
  Start(Federated());
  std::vector<TestIsland> islands = Joined(3);
  IslandMessage abstain = MessageOf(IslandMessageKind::kAbstain, 0);
  abstain.note = "a NaN";
  EXPECT_THAT(islands[2].client().Ask(abstain).status(), IsOk());
  const auto state = islands[2].Join();
  ASSERT_THAT(state.status(), IsOk());
  EXPECT_EQ(islands[2].Fetch(*state), Some(0));
  TestIsland third = std::move(islands[2]);
  islands.pop_back();
  TakeRound(&islands, {Some(1), Some(2)});
  EXPECT_EQ(islands[0].Await().present, (std::vector<int32_t>{0, 1}));
}

TEST_F(FederatedRoundsTest, NoiseIsInTheCopyAndTheBudgetEndsTheRounds) {
  // A round costs 4.729, two cost 7.077 and three 9.01.
  Start(Noised(7.2));
  std::vector<TestIsland> islands = Joined(2);
  EXPECT_FALSE(islands[0].Join()->budget_spent);
  Plain plain(Some(0));
  for (int round = 1; round <= 2; ++round) {
    TakeRound(&islands, {Some(1), Some(2)});
    plain.Step({MeanOf({Some(1), Some(2)})});
    for (TestIsland& island : islands) {
      const IslandMessage state = island.Await();
      EXPECT_EQ(state.noised_rounds, round);
      EXPECT_EQ(state.budget_spent, round == 2);
      const ModelValues copy = island.Fetch(state);
      for (int i = 0; i < kElements; ++i) EXPECT_NE(copy[i], plain.global()[i]);
    }
  }
  EXPECT_THAT(islands[0].Advertise(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                               HasSubstr("the privacy budget is spent")));
  // The file has the account.
  const std::vector<float> copy = server_->global();
  Start(Noised(7.2));
  TestIsland again = Make(0);
  const auto state = again.Join();
  ASSERT_THAT(state.status(), IsOk());
  EXPECT_TRUE(state->budget_spent);
  EXPECT_EQ(state->noised_rounds, 2);
  EXPECT_EQ(again.Fetch(*state), copy);
  EXPECT_THAT(again.Advertise(), StatusIs(absl::StatusCode::kFailedPrecondition));
  // A greater budget goes on with the same account.
  Start(Noised(100));
  TestIsland more = Make(0);
  const auto on = more.Join();
  ASSERT_THAT(on.status(), IsOk());
  EXPECT_FALSE(on->budget_spent);
  EXPECT_EQ(on->noised_rounds, 2);
}

TEST_F(FederatedRoundsTest, ARoundThatFailsCostsNothing) {
  Start(Noised());
  std::vector<TestIsland> islands = Joined(2);
  for (TestIsland& island : islands) EXPECT_THAT(island.Advertise(), IsOk());
  EXPECT_THAT(islands[0].Share(), IsOk());
  islands[1].Disconnect();
  const IslandMessage state = islands[0].Await();
  EXPECT_EQ(state.round, 1);
  EXPECT_EQ(state.noised_rounds, 0);
  EXPECT_EQ(islands[0].Fetch(state), Some(0));
}

TEST_F(FederatedRoundsTest, ACopyWhoseCostIsNotInTheFileIsNotShown) {
  Start(Noised());
  std::vector<TestIsland> islands = Joined(2);
  Send(&islands, {Some(1), Some(2)});
  fs_.full = true;
  for (TestIsland& island : islands) EXPECT_THAT(island.Reveal(), IsOk());
  IslandMessage poll = MessageOf(IslandMessageKind::kPoll, 0);
  poll.wait_ms = 1000;
  poll.step = SumStep::kUnmasking;
  const absl::Time until = SteadyNow() + absl::Seconds(10);
  absl::Status status;
  while (status.ok() && SteadyNow() < until) status = islands[0].client().Ask(poll).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("state")));
  IslandMessage get = MessageOf(IslandMessageKind::kGet, 1);
  get.block = Blocks()[0];
  EXPECT_THAT(islands[0].client().Ask(get).status(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(islands[1].Join().status(), StatusIs(absl::StatusCode::kUnavailable));
  fs_.full = false;
  absl::StatusOr<IslandMessage> state = islands[0].Join();
  while (!state.ok() && SteadyNow() < until) {
    absl::SleepFor(absl::Milliseconds(100));
    state = islands[0].Join();
  }
  ASSERT_THAT(state.status(), IsOk());
  EXPECT_EQ(state->round, 1);
  EXPECT_EQ(state->noised_rounds, 1);
  EXPECT_EQ(islands[0].Fetch(*state), server_->global());
  EXPECT_EQ(GlobalCopy::Load(fs_, "state", 100)->noised_rounds, 1);
}

TEST_F(FederatedRoundsTest, ServersThatCannotKeepTheAccountDoNotStart) {
  const auto refused = [&](const FederatedOptions& federated, const std::string& state,
                           const std::string& why) {
    OuterServerOptions options;
    options.federated = federated;
    options.state_file = state;
    const absl::Status status = OuterServer::Start(options, secret_, fs_).status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  };
  refused(Noised(), "", "needs a file for the state");
  refused(Noised(4.7), "state", "the privacy budget is spent");
  FederatedOptions wrong = Federated();
  wrong.secure_sum_threshold = 1;
  refused(wrong, "state", "secure_sum_threshold is 1");
  // A file with rounds of another noise.
  Start(Noised());
  std::vector<TestIsland> islands = Joined(2);
  TakeRound(&islands, {Some(1), Some(2)});
  EXPECT_EQ(islands[0].Await().round, 1);
  server_.reset();
  FederatedOptions other = Noised();
  other.noise_multiplier = 2;
  refused(other, "state", "1 of its rounds had a noise_multiplier of 1");
  refused(Federated(), "state", "1 of its rounds had a noise_multiplier of 1");
  refused({}, "state", "1 of its rounds had a noise_multiplier of 1");
  Start(Noised());
  EXPECT_EQ(server_->round(), 1);
}

TEST_F(FederatedRoundsTest, IslandsOfOtherOptionsAreRefusedByName) {
  Start(Federated());
  const auto refused = [&](const FederatedOptions& federated, const std::string& why) {
    TestIsland other = Make(1);
    other.set_federated(federated);
    EXPECT_THAT(other.Join().status(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(why)));
  };
  // The first one too, whose copy would be that of all.
  FederatedOptions options = Federated();
  options.clip_norm = 1;
  refused(options, "the server has federated.clip_norm = 0.5, and the island 1");
  TestIsland a = Make(0);
  a.Enter(Some(0));
  refused(options, "the server has federated.clip_norm = 0.5, and the island 1");
  refused(Noised(), "federated.noise_multiplier = 0, and the island 1");
  refused({}, "the server is a federated one, with federated.clip_norm = 0.5");
  Start({}, absl::Seconds(60), "");
  refused(Federated(), "the server has no --clip_norm");
}

TEST_F(FederatedRoundsTest, WhoSendsWhatDoesNotFitIsClosedAndTheIslandsGoOn) {
  Start(Federated());
  std::vector<TestIsland> islands = Joined(2);
  const auto expect_closed = [&](const IslandMessage& message, const std::string& why) {
    TestIsland other = Make(5);
    other.Enter();
    const absl::Status status = other.client().Ask(message).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
    EXPECT_FALSE(other.client().Ask(MessageOf(IslandMessageKind::kFlush)).ok());
    other.Disconnect();
    Settle();
  };
  IslandMessage begin = MessageOf(IslandMessageKind::kBegin);
  begin.run = islands[0].run;
  expect_closed(begin, "an update without masks");
  IslandMessage advertise = MessageOf(IslandMessageKind::kAdvertise);
  advertise.members.resize(1);
  advertise.members[0].member = 1;
  expect_closed(advertise, "in another's name");
  advertise.members[0].member = 5;
  expect_closed(advertise, "one key twice");
  // Steps that are not awaited tell the island that they are late.
  TestIsland other = Make(5);
  other.Enter();
  begin.content = IslandContent::kMasked;
  for (IslandMessage message :
       {begin, MessageOf(IslandMessageKind::kShare), MessageOf(IslandMessageKind::kReveal)}) {
    EXPECT_THAT(other.client().Ask(message).status(), StatusIs(absl::StatusCode::kOutOfRange));
  }
  other.Disconnect();
  Settle();
  TakeRound(&islands, {Some(1), Some(2)});
  EXPECT_EQ(islands[0].Await().present, (std::vector<int32_t>{0, 1}));
  // A plain server has no such steps.
  Start({}, absl::Seconds(60), "");
  TestIsland plain = Make(0);
  plain.Enter(Some(0));
  EXPECT_THAT(
      std::string(plain.client().Ask(MessageOf(IslandMessageKind::kReveal)).status().message()),
      HasSubstr("the run is no federated one"));
}

TEST_F(FederatedRoundsTest, FalseSharesFailTheRoundByName) {
  Start(Federated());
  std::vector<TestIsland> islands = Joined(2);
  Send(&islands, {Some(1), Some(2)});
  EXPECT_THAT(islands[0].Reveal(), IsOk());
  const IslandMessage told = islands[1].Await(absl::Seconds(20), SumStep::kMasking);
  ASSERT_EQ(told.summed, (std::vector<int32_t>{0, 1}));
  IslandMessage reveal = MessageOf(IslandMessageKind::kReveal, 0);
  reveal.revealed.from = 1;
  for (const int island : {0, 1}) reveal.revealed.own_masks[island].x = 2;
  EXPECT_THAT(islands[1].client().Ask(reveal).status(), IsOk());
  const IslandMessage state = islands[0].Await();
  EXPECT_THAT(state.present, IsEmpty());
  EXPECT_THAT(state.note, HasSubstr("the shares of a key of member 0 do not give that key"));
  EXPECT_EQ(islands[0].Fetch(state), Some(0));
}

}  // namespace
}  // namespace megatron
