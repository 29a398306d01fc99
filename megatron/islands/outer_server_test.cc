// The server of the outer optimizer, against islands that are calls of this process.

#include "megatron/islands/outer_server.h"

#include <linux/filter.h>
#include <sys/socket.h>

#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/base/memory_file_system.h"
#include "megatron/base/steady_now.h"
#include "megatron/comm/socket/handshake.h"
#include "megatron/islands/test_island.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;

class OuterServerTest : public ::testing::Test {
 protected:
  void Start(OuterServerOptions options = {}) {
    options.listen = {"127.0.0.1", 0};
    auto server = OuterServer::Start(options, secret_, fs_);
    ASSERT_THAT(server.status(), IsOk());
    server_ = *std::move(server);
  }
  static OuterServerOptions With(int min_islands, absl::Duration timeout,
                                 const std::string& state = "") {
    OuterServerOptions options;
    options.min_islands = min_islands;
    options.round_timeout = timeout;
    options.state_file = state;
    return options;
  }
  TestIsland Make(int number) { return TestIsland(*server_, secret_, number); }
  // Returns once the server has noticed that a connection has ended.
  static void Settle() { absl::SleepFor(absl::Milliseconds(300)); }

  const JobSecret secret_ = JobSecret::Random();
  MemoryFileSystem fs_;
  std::unique_ptr<OuterServer> server_;
};

TEST_F(OuterServerTest, RoundsAreThePlainOuterStepsBitForBit) {
  Start(With(3, absl::Seconds(60)));
  std::vector<TestIsland> islands;
  for (int k = 0; k < 3; ++k) islands.push_back(Make(k));
  Plain plain(Some(0));
  EXPECT_EQ(islands[0].Enter(Some(0)), Some(0));
  EXPECT_EQ(islands[1].Enter(), Some(0));
  EXPECT_EQ(islands[2].Enter(), Some(0));
  for (int round = 1; round <= 4; ++round) {
    std::vector<ModelValues> updates;
    for (int k = 0; k < 3; ++k) updates.push_back(Some(round * 10 + k));
    // They arrive in another order each time.
    for (int i = 0; i < 3; ++i) {
      const int k = (i * 2 + round) % 3;
      EXPECT_EQ(server_->round(), round - 1);
      EXPECT_THAT(islands[k].SendValues(IslandContent::kUpdate, updates[k]), IsOk());
    }
    plain.Step(updates);
    for (TestIsland& island : islands) {
      const IslandMessage state = island.Await();
      EXPECT_EQ(state.round, round);
      EXPECT_EQ(state.present, (std::vector<int32_t>{0, 1, 2}));
      EXPECT_EQ(island.Fetch(state), plain.global());
    }
  }
}

TEST_F(OuterServerTest, ARoundEndsInTimeWithoutTheLateOneWhichGetsTheCopy) {
  Start(With(1, absl::Seconds(1)));
  TestIsland a = Make(0), b = Make(1);
  a.Enter(Some(0));
  b.Enter();
  EXPECT_THAT(a.SendValues(IslandContent::kUpdate, Some(1)), IsOk());
  const absl::Time begin = SteadyNow();
  const IslandMessage state = a.Await();
  EXPECT_GE(SteadyNow() - begin, absl::Milliseconds(800));
  EXPECT_EQ(state.present, (std::vector<int32_t>{0}));
  Plain plain(Some(0));
  plain.Step({Some(1)});
  EXPECT_EQ(a.Fetch(state), plain.global());
  // The late one's update is of a round that is over.
  EXPECT_THAT(b.SendValues(IslandContent::kUpdate, Some(2)),
              StatusIs(absl::StatusCode::kOutOfRange));
  EXPECT_EQ(b.Enter(), plain.global());
  EXPECT_EQ(b.round, 1);
  // And then both take part.
  EXPECT_THAT(b.SendValues(IslandContent::kUpdate, Some(3)), IsOk());
  EXPECT_THAT(a.SendValues(IslandContent::kUpdate, Some(4)), IsOk());
  EXPECT_EQ(a.Await().present, (std::vector<int32_t>{0, 1}));
}

TEST_F(OuterServerTest, AnIslandThatIsLostIsOutAndComesBack) {
  Start(With(1, absl::Seconds(60)));
  TestIsland a = Make(0);
  a.Enter(Some(0));
  {
    TestIsland b = Make(1);
    b.Enter();
  }
  Settle();
  EXPECT_THAT(a.SendValues(IslandContent::kUpdate, Some(1)), IsOk());
  const IslandMessage state = a.Await();
  EXPECT_EQ(state.present, (std::vector<int32_t>{0}));
  const ModelValues copy = a.Fetch(state);
  TestIsland b = Make(1);
  EXPECT_EQ(b.Enter(), copy);
  EXPECT_THAT(a.SendValues(IslandContent::kUpdate, Some(2)), IsOk());
  EXPECT_EQ(server_->round(), 1);  // it is waited for
  EXPECT_THAT(b.SendValues(IslandContent::kUpdate, Some(3)), IsOk());
  EXPECT_EQ(b.Await().present, (std::vector<int32_t>{0, 1}));
}

TEST_F(OuterServerTest, AHostThatVanishesBeforeItHasItsAnswerIsOut) {
  OuterServerOptions options = With(1, absl::Minutes(10));
  options.silence_limit = absl::Seconds(6);
  Start(options);
  TestIsland a = Make(0);
  a.Enter(Some(0));
  const absl::Time deadline = SteadyNow() + absl::Minutes(1);
  const auto socket = ConnectTcp(server_->endpoint(), deadline);
  ASSERT_THAT(socket.status(), IsOk());
  ChannelId id;
  id.purpose = ChannelPurpose::kIslands;
  id.version = kIslandProtocolVersion;
  ASSERT_THAT(ProveAsConnector(*socket, secret_, id, deadline), IsOk());
  IslandMessage join = MessageOf(IslandMessageKind::kJoin, a.round);
  join.island = 1;
  join.session = 5;
  join.leads = true;
  join.agreement = TestAgreement();
  join.run = a.run;
  ASSERT_THAT(SendAll(*socket, EncodeIslandMessage(join), deadline), IsOk());
  char first = 0;
  ASSERT_THAT(ReceiveAll(*socket, &first, 1, deadline), IsOk());
  // From here on no packet arrives at the socket, so that none is acknowledged.
  sock_filter drop_all = BPF_STMT(BPF_RET | BPF_K, 0);
  const sock_fprog program = {1, &drop_all};
  ASSERT_EQ(setsockopt(socket->fd(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)), 0);
  const IslandMessage poll = MessageOf(IslandMessageKind::kPoll, a.round);
  ASSERT_THAT(SendAll(*socket, EncodeIslandMessage(poll), deadline), IsOk());
  EXPECT_THAT(a.SendValues(IslandContent::kUpdate, Some(1)), IsOk());
  const IslandMessage state = a.Await(absl::Minutes(1));
  EXPECT_EQ(state.round, 1);
  EXPECT_EQ(state.present, (std::vector<int32_t>{0}));
}

TEST_F(OuterServerTest, AnUpdateThatIsWholeStaysWhenItsIslandIsLost) {
  Start(With(2, absl::Seconds(60)));
  TestIsland a = Make(0), b = Make(1);
  a.Enter(Some(0));
  b.Enter();
  EXPECT_THAT(b.SendValues(IslandContent::kUpdate, Some(1)), IsOk());
  b.Disconnect();
  Settle();
  EXPECT_THAT(a.SendValues(IslandContent::kUpdate, Some(2)), IsOk());
  EXPECT_EQ(a.Await().present, (std::vector<int32_t>{0, 1}));
}

TEST_F(OuterServerTest, ARankThatSendsWhenItsFirstRankIsLostIsToldOnceAndSendsAgain) {
  Start(With(1, absl::Seconds(60)));
  TestIsland first = Make(0), second = Make(0);
  second.set_leads(false);
  first.Enter(Some(0));
  ASSERT_THAT(second.Join().status(), IsOk());
  IslandMessage begin = MessageOf(IslandMessageKind::kBegin);
  begin.run = first.run;
  begin.attempt = 5;
  const ModelValues update(kElements, 0.25f);
  const IslandMessage flush = MessageOf(IslandMessageKind::kFlush);
  const auto send_from_second = [&] {
    for (const TensorBlock& block : Blocks()) {
      IslandMessage put = begin;
      put.kind = IslandMessageKind::kPut;
      put.block = block;
      put.values = Bytes(ModelValues(block.place.extent.numel(), update[0]));
      EXPECT_THAT(second.client().Send(put), IsOk());
    }
    return second.client().Ask(flush).status();
  };
  first.Disconnect();
  while (second.client().Ask(flush).ok()) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_THAT(send_from_second(),
              StatusIs(absl::StatusCode::kUnavailable, ::testing::HasSubstr("has to join again")));
  ASSERT_THAT(first.Join().status(), IsOk());
  ASSERT_THAT(second.Join().status(), IsOk());
  EXPECT_THAT(first.client().Ask(begin).status(), IsOk());
  EXPECT_THAT(send_from_second(), IsOk());
  IslandMessage finish = begin;
  finish.kind = IslandMessageKind::kFinish;
  EXPECT_THAT(first.client().Ask(finish).status(), IsOk());
  Plain plain(Some(0));
  plain.Step({update});
  EXPECT_EQ(first.Fetch(first.Await()), plain.global());
}

TEST_F(OuterServerTest, TooFewIslandsWaitForOneMore) {
  Start(With(2, absl::Milliseconds(300)));
  TestIsland a = Make(0);
  a.Enter(Some(0));
  EXPECT_THAT(a.SendValues(IslandContent::kUpdate, Some(1)), IsOk());
  EXPECT_EQ(a.Await(absl::Seconds(1)).round, 0);
  TestIsland b = Make(5);
  b.Enter();
  EXPECT_THAT(b.SendValues(IslandContent::kUpdate, Some(2)), IsOk());
  EXPECT_EQ(a.Await().present, (std::vector<int32_t>{0, 5}));
}

TEST_F(OuterServerTest, AnIslandThatComesDuringARoundIsNotWaitedFor) {
  Start(With(1, absl::Seconds(60)));
  TestIsland a = Make(0), b = Make(1), c = Make(2);
  a.Enter(Some(0));
  b.Enter();
  EXPECT_THAT(a.SendValues(IslandContent::kUpdate, Some(1)), IsOk());
  EXPECT_EQ(c.Enter(), Some(0));
  EXPECT_THAT(b.SendValues(IslandContent::kUpdate, Some(2)), IsOk());
  EXPECT_EQ(a.Await().present, (std::vector<int32_t>{0, 1}));
}

TEST_F(OuterServerTest, TheNextRoundWaitsForWhoStillReadsTheCopy) {
  Start(With(1, absl::Seconds(60)));
  TestIsland a = Make(0), b = Make(1);
  a.Enter(Some(0));
  b.Enter();
  EXPECT_THAT(a.SendValues(IslandContent::kUpdate, Some(1)), IsOk());
  EXPECT_THAT(b.SendValues(IslandContent::kUpdate, Some(2)), IsOk());
  const IslandMessage state = b.Await();
  a.Fetch(a.Await());
  b.run = state.run;
  EXPECT_THAT(a.SendValues(IslandContent::kUpdate, Some(3)), IsOk());
  EXPECT_EQ(a.Await(absl::Seconds(1)).round, 1);
  const ModelValues copy = b.Fetch(state);
  EXPECT_EQ(copy, server_->global());
  EXPECT_THAT(b.SendValues(IslandContent::kUpdate, Some(4)), IsOk());
  EXPECT_EQ(a.Await().round, 2);
}

TEST_F(OuterServerTest, AnUpdateWithANaNIsLeftOutAndTheOthersGoOn) {
  Start(With(1, absl::Seconds(60)));
  TestIsland a = Make(0), b = Make(1);
  a.Enter(Some(0));
  b.Enter();
  ModelValues bad = Some(1);
  bad[5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(b.SendValues(IslandContent::kUpdate, bad),
              StatusIs(absl::StatusCode::kDataLoss, ::testing::HasSubstr("NaN")));
  EXPECT_THAT(a.SendValues(IslandContent::kUpdate, Some(2)), IsOk());
  // The island that was left out reads the copy of this round first.
  const auto state = b.Join();
  EXPECT_THAT(state.status(), IsOk());
  EXPECT_EQ(b.Fetch(*state), Some(0));
  Plain plain(Some(0));
  plain.Step({Some(2)});
  const IslandMessage after = a.Await();
  EXPECT_EQ(after.present, (std::vector<int32_t>{0}));
  EXPECT_EQ(a.Fetch(after), plain.global());
}

TEST_F(OuterServerTest, ASumThatOverflowsMakesNoStep) {
  Start(With(2, absl::Seconds(60)));
  TestIsland a = Make(0), b = Make(1);
  a.Enter(Some(0));
  b.Enter();
  const ModelValues huge(kElements, 3e38f);
  EXPECT_THAT(a.SendValues(IslandContent::kUpdate, huge), IsOk());
  EXPECT_THAT(b.SendValues(IslandContent::kUpdate, huge), IsOk());
  const IslandMessage state = a.Await();
  EXPECT_EQ(state.round, 1);
  EXPECT_TRUE(state.present.empty());
  EXPECT_EQ(a.Fetch(state), Some(0));
}

TEST_F(OuterServerTest, CodesAreDecodedBlockByBlock) {
  for (const OuterGradientType type : {OuterGradientType::kInt8, OuterGradientType::kE3M0}) {
    Start(With(1, absl::Seconds(60)));
    TestIsland a = Make(0);
    a.Enter(Some(0));
    ModelValues powers = {0.5f, -0.25f, 0.125f, 0.5f, 0, -0.5f, 0.25f, -0.25f};
    if (type == OuterGradientType::kInt8) powers.assign(kElements, 0.5f);
    EXPECT_THAT(a.SendValues(IslandContent::kUpdate, powers, type), IsOk());
    Plain plain(Some(0));
    plain.Step({powers});
    const ModelValues copy = a.Fetch(a.Await());
    for (int i = 0; i < kElements; ++i) EXPECT_NEAR(copy[i], plain.global()[i], 1e-6) << i;
  }
}

TEST_F(OuterServerTest, OthersAreRefusedByNameAndTheIslandsGoOn) {
  Start(With(1, absl::Seconds(60)));
  TestIsland a = Make(0);
  a.Enter(Some(0));
  const auto expect_refused = [&](const IslandAgreement& agreement, const std::string& why) {
    TestIsland other = Make(1);
    EXPECT_THAT(other.Join(agreement).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition, ::testing::HasSubstr(why)));
  };
  IslandAgreement agreement = TestAgreement();
  agreement.text = "model { layers: 2 }\ntrain { seed: 2 }\n";
  expect_refused(agreement,
                 "the copy is of 'train { seed: 1 }', and the island has "
                 "'train { seed: 2 }'");
  agreement = TestAgreement();
  agreement.tensors[0].shape = {3, 2};
  expect_refused(agreement, "the copy has 'a' [2, 3], and the island 'a' [3, 2]");
  agreement = TestAgreement();
  agreement.tensors.push_back({"c", {1}});
  expect_refused(agreement, "the copy has 2 parameters, and the island 3");
  agreement = TestAgreement();
  agreement.outer.momentum = 0.5;
  expect_refused(agreement, "a momentum of 0.9 (Nesterov), and the island 0.7 and 0.5");
  // A number that is taken.
  TestIsland twin(*server_, secret_, 0);
  IslandMessage join = MessageOf(IslandMessageKind::kJoin);
  ASSERT_THAT(twin.client().Connect(absl::Seconds(5)), IsOk());
  join.session = 99;
  join.leads = true;
  join.agreement = TestAgreement();
  EXPECT_THAT(twin.client().Ask(join).status(),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       ::testing::HasSubstr("island 0 has joined already")));
  TestIsland stranger(*server_, JobSecret::Random(), 1);
  EXPECT_THAT(stranger.client().Connect(absl::Seconds(5)),
              StatusIs(absl::StatusCode::kUnauthenticated));
  EXPECT_THAT(a.SendValues(IslandContent::kUpdate, Some(1)), IsOk());
  EXPECT_EQ(a.Await().round, 1);
}

TEST_F(OuterServerTest, WhoSendsWhatDoesNotFitIsClosedAndTheIslandsGoOn) {
  Start(With(1, absl::Seconds(60)));
  TestIsland a = Make(0);
  a.Enter(Some(0));
  const auto expect_closed = [&](const std::vector<IslandMessage>& messages,
                                 const std::string& why) {
    TestIsland b = Make(1);
    b.Enter();
    absl::Status status;
    for (const IslandMessage& message : messages) {
      status = message.kind == IslandMessageKind::kPut ? b.client().Send(message)
                                                       : b.client().Ask(message).status();
      if (!status.ok()) break;
    }
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(why));
    b.Disconnect();
    Settle();
  };
  IslandMessage begin = MessageOf(IslandMessageKind::kBegin);
  begin.run = a.run;
  begin.attempt = 5;
  IslandMessage put = begin;
  put.kind = IslandMessageKind::kPut;
  put.block = {"a", {{0, 0}, {2, 3}}};
  put.values = Bytes(ModelValues(6));
  const IslandMessage flush = MessageOf(IslandMessageKind::kFlush);
  IslandMessage finish = begin;
  finish.kind = IslandMessageKind::kFinish;
  IslandMessage outside = put;
  outside.block.place.start = {1, 0};
  expect_closed({begin, outside, flush}, "is not in 'a'");
  IslandMessage unknown = put;
  unknown.block.name = "zebra";
  expect_closed({begin, unknown, flush}, "no parameter 'zebra'");
  expect_closed({begin, put, put, flush}, "more elements than the model has");
  expect_closed({begin, put, flush, finish}, "it has sent 6 of 8 elements");
  expect_closed({MessageOf(IslandMessageKind::kState)}, "that only a server sends");
  // Bytes that are no message, and one that is too long.
  for (const std::string& bytes :
       {std::string("\x05\x00\x00\x00hello", 9), std::string("\xff\xff\xff\x7f", 4)}) {
    auto socket = ConnectTcp(server_->endpoint(), SteadyNow() + absl::Seconds(5));
    ASSERT_THAT(socket.status(), IsOk());
    ChannelId id;
    id.purpose = ChannelPurpose::kIslands;
    id.version = kIslandProtocolVersion;
    ASSERT_THAT(ProveAsConnector(*socket, secret_, id, SteadyNow() + absl::Seconds(5)), IsOk());
    ASSERT_THAT(SendAll(*socket, bytes, SteadyNow() + absl::Seconds(5)), IsOk());
    std::string rest(4096, '\0');
    const absl::Status end =
        ReceiveAll(*socket, &rest[0], rest.size(), SteadyNow() + absl::Seconds(5));
    EXPECT_THAT(end, StatusIs(absl::StatusCode::kUnavailable));
  }
  EXPECT_THAT(a.SendValues(IslandContent::kUpdate, Some(1)), IsOk());
  EXPECT_EQ(a.Await().round, 1);
}

TEST_F(OuterServerTest, AServerThatIsStartedAgainGoesOnFromItsState) {
  Start(With(1, absl::Seconds(60), "state"));
  Plain plain(Some(0));
  uint64_t run = 0;
  {
    TestIsland a = Make(0);
    a.Enter(Some(0));
    run = a.run;
    EXPECT_THAT(a.SendValues(IslandContent::kUpdate, Some(1)), IsOk());
    plain.Step({Some(1)});
    EXPECT_EQ(a.Fetch(a.Await()), plain.global());
  }
  server_.reset();
  Start(With(1, absl::Seconds(60), "state"));
  EXPECT_EQ(server_->round(), 1);
  TestIsland a = Make(0);
  EXPECT_EQ(a.Enter(), plain.global());
  EXPECT_EQ(a.run, run);
  // The momentum is there, too.
  EXPECT_THAT(a.SendValues(IslandContent::kUpdate, Some(2)), IsOk());
  plain.Step({Some(2)});
  EXPECT_EQ(a.Fetch(a.Await()), plain.global());
}

TEST_F(OuterServerTest, EveryDamageOfTheStateIsNoticed) {
  auto copy = GlobalCopy::Create(TestAgreement(), 100);
  ASSERT_THAT(copy.status(), IsOk());
  copy->run = 5;
  copy->round = 3;
  copy->global() = Some(1);
  copy->momentum() = Some(2);
  ASSERT_THAT(copy->Save(fs_, "state"), IsOk());
  const auto loaded = GlobalCopy::Load(fs_, "state", 100);
  ASSERT_THAT(loaded.status(), IsOk());
  EXPECT_EQ(loaded->global(), Some(1));
  EXPECT_EQ(loaded->round, 3);
  EXPECT_EQ(loaded->agreement().tensors, TestAgreement().tensors);
  EXPECT_THAT(GlobalCopy::Load(fs_, "state", 7).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, ::testing::HasSubstr("more than 7")));
  const auto whole = ReadFileToString(fs_, "state");
  ASSERT_THAT(whole.status(), IsOk());
  for (size_t i = 0; i < whole->size(); ++i) {
    std::string damaged = *whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 16);
    ASSERT_THAT(WriteFileAtomically(fs_, "damaged", damaged), IsOk());
    EXPECT_FALSE(GlobalCopy::Load(fs_, "damaged", 1 << 20).ok()) << i;
    ASSERT_THAT(WriteFileAtomically(fs_, "damaged", whole->substr(0, i)), IsOk());
    EXPECT_FALSE(GlobalCopy::Load(fs_, "damaged", 1 << 20).ok()) << i;
  }
  OuterServerOptions options = With(1, absl::Seconds(1), "damaged");
  EXPECT_THAT(OuterServer::Start(options, secret_, fs_).status(),
              StatusIs(absl::StatusCode::kDataLoss, ::testing::HasSubstr("damaged")));
}

}  // namespace
}  // namespace megatron
