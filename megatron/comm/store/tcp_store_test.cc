#include "megatron/comm/store/tcp_store.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/steady_now.h"
#include "megatron/comm/socket/acceptor.h"
#include "megatron/comm/socket/handshake.h"
#include "megatron/comm/socket/hmac_sha256.h"
#include "megatron/comm/store/store_conformance.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(60);

struct ServedStore {
  ServedStore() {
    auto created = TcpStoreServer::Create(Endpoint{"127.0.0.1", 0}, secret);
    CHECK(created.ok()) << created.status();
    server = *std::move(created);
    client = Connect();
  }

  std::unique_ptr<TcpStoreClient> Connect() const {
    auto connected = TcpStoreClient::Connect(server->endpoint(), secret, kPatience);
    CHECK(connected.ok()) << connected.status();
    return *std::move(connected);
  }

  Socket ConnectAsStranger() const {
    auto socket = ConnectTcp(server->endpoint(), SteadyNow() + kPatience);
    CHECK(socket.ok()) << socket.status();
    return *std::move(socket);
  }

  Socket ConnectAuthenticated() const {
    Socket socket = ConnectAsStranger();
    const absl::Status status =
        ProveAsConnector(socket, secret, ChannelId(), SteadyNow() + kPatience);
    CHECK(status.ok()) << status;
    return socket;
  }

  const JobSecret secret = JobSecret::Random();
  std::unique_ptr<TcpStoreServer> server;
  std::unique_ptr<TcpStoreClient> client;
};

std::shared_ptr<Store> NewServedStore() {
  const auto served = std::make_shared<ServedStore>();
  return std::shared_ptr<Store>(served, served->client.get());
}

INSTANTIATE_TEST_SUITE_P(Tcp, StoreConformanceTest, ::testing::Values(NewServedStore));

// Returns true once the server has closed the connection.
bool IsClosed(const Socket& socket) {
  char byte;
  while (true) {
    const absl::Status status = ReceiveAll(socket, &byte, 1, SteadyNow() + kPatience);
    if (!status.ok()) return status.code() == absl::StatusCode::kUnavailable;
  }
}

TEST(TcpStoreTest, ClientsSeeEachOthersKeys) {
  const ServedStore served;
  const auto other = served.Connect();
  EXPECT_THAT(served.client->Set("key", "value"), IsOk());
  EXPECT_THAT(other->Get("key", absl::ZeroDuration()), IsOkAndHolds("value"));
  EXPECT_EQ(other->local_host(), "127.0.0.1");
}

TEST(TcpStoreTest, TheClientMayComeBeforeTheServer) {
  auto placeholder = ListenTcp({"127.0.0.1", 0});
  ASSERT_THAT(placeholder, IsOk());
  const auto endpoint = LocalEndpoint(*placeholder);
  ASSERT_THAT(endpoint, IsOk());
  placeholder->Close();
  const JobSecret secret = JobSecret::Random();
  std::unique_ptr<TcpStoreServer> server;
  std::thread late([&] {
    absl::SleepFor(absl::Milliseconds(100));
    auto created = TcpStoreServer::Create(*endpoint, secret);
    ASSERT_THAT(created, IsOk());
    server = *std::move(created);
  });
  EXPECT_THAT(TcpStoreClient::Connect(*endpoint, secret, kPatience).status(), IsOk());
  late.join();
}

TEST(TcpStoreTest, AServerThatNeverComesIsNamedAtTheDeadline) {
  auto placeholder = ListenTcp({"127.0.0.1", 0});
  ASSERT_THAT(placeholder, IsOk());
  const auto endpoint = LocalEndpoint(*placeholder);
  ASSERT_THAT(endpoint, IsOk());
  placeholder->Close();
  EXPECT_THAT(
      TcpStoreClient::Connect(*endpoint, JobSecret::Random(), absl::Milliseconds(50)).status(),
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr(endpoint->ToString())));
}

TEST(TcpStoreTest, AnotherJobsClientIsRefusedAtOnce) {
  const ServedStore served;
  EXPECT_THAT(
      TcpStoreClient::Connect(served.server->endpoint(), JobSecret::Random(), kPatience).status(),
      StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("another job")));
}

// Whoever listens on the port learns nothing that lets it pass for the server.
TEST(TcpStoreTest, AServerThatDoesNotKnowTheSecretIsRefused) {
  auto listener = ListenTcp({"127.0.0.1", 0});
  ASSERT_THAT(listener, IsOk());
  const auto endpoint = LocalEndpoint(*listener);
  ASSERT_THAT(endpoint, IsOk());
  std::thread impostor([&] {
    Socket socket;
    while (!socket.valid()) socket = *AcceptTcp(*listener);
    const std::string greeting =
        absl::StrCat(absl::string_view("MGTN\1\0\0\0", 8), RandomBytes(32));
    EXPECT_THAT(SendAll(socket, greeting, SteadyNow() + kPatience), IsOk());
    std::string answer(88, '\0');
    EXPECT_THAT(ReceiveAll(socket, &answer[0], answer.size(), SteadyNow() + kPatience), IsOk());
    // Gives back the client's own proof.
    EXPECT_THAT(SendAll(socket, answer.substr(56), SteadyNow() + kPatience), IsOk());
  });
  EXPECT_THAT(TcpStoreClient::Connect(*endpoint, JobSecret::Random(), kPatience).status(),
              StatusIs(absl::StatusCode::kUnauthenticated));
  impostor.join();
}

TEST(TcpStoreTest, ARecordedHandshakeIsRefused) {
  const ServedStore served;
  // Plays the server to a client that knows the secret, and so gets a valid answer to a greeting.
  const Socket honest = served.ConnectAsStranger();
  std::string greeting(40, '\0');
  ASSERT_THAT(ReceiveAll(honest, &greeting[0], greeting.size(), SteadyNow() + kPatience), IsOk());
  auto listener = ListenTcp({"127.0.0.1", 0});
  ASSERT_THAT(listener, IsOk());
  const auto endpoint = LocalEndpoint(*listener);
  ASSERT_THAT(endpoint, IsOk());
  std::string answer(88, '\0');
  std::thread relay([&] {
    Socket socket;
    while (!socket.valid()) socket = *AcceptTcp(*listener);
    EXPECT_THAT(SendAll(socket, greeting, SteadyNow() + kPatience), IsOk());
    EXPECT_THAT(ReceiveAll(socket, &answer[0], answer.size(), SteadyNow() + kPatience), IsOk());
    EXPECT_THAT(SendAll(socket, std::string(32, '\0'), SteadyNow() + kPatience), IsOk());
  });
  EXPECT_THAT(TcpStoreClient::Connect(*endpoint, served.secret, kPatience).status(),
              StatusIs(absl::StatusCode::kUnauthenticated));
  relay.join();
  // The same answer fits no other greeting.
  const Socket replay = served.ConnectAsStranger();
  EXPECT_THAT(SendAll(replay, answer, SteadyNow() + kPatience), IsOk());
  std::string reply(40 + 32, 'x');
  ASSERT_THAT(ReceiveAll(replay, &reply[0], reply.size(), SteadyNow() + kPatience), IsOk());
  EXPECT_EQ(reply.substr(40), std::string(32, '\0'));
  EXPECT_TRUE(IsClosed(replay));
}

TEST(TcpStoreTest, HostileConnectionsDoNotDisturbClients) {
  const ServedStore served;
  std::vector<Socket> silent;  // the request comes one byte at a time
  for (int i = 0; i < 200; ++i) {
    silent.push_back(served.ConnectAsStranger());
    EXPECT_THAT(SendAll(silent.back(), i % 2 == 0 ? "G" : "", SteadyNow() + kPatience), IsOk());
    const Socket garbage = served.ConnectAsStranger();
    (void)SendAll(garbage, RandomBytes(1 + 37 * i), SteadyNow() + absl::Seconds(1));
    EXPECT_THAT(served.client->Set(absl::StrCat("key", i), "value"), IsOk());
  }
  EXPECT_THAT(served.Connect()->Get("key199", kPatience), IsOkAndHolds("value"));
}

TEST(TcpStoreTest, AConnectionThatNeverProvesItselfIsDropped) {
  auto listener = ListenTcp({"127.0.0.1", 0});
  ASSERT_THAT(listener, IsOk());
  const auto endpoint = LocalEndpoint(*listener);
  ASSERT_THAT(endpoint, IsOk());
  AcceptorOptions options;
  options.handshake_time = absl::Milliseconds(50);
  Acceptor acceptor(*std::move(listener), JobSecret::Random(), options);
  const auto socket = ConnectTcp(*endpoint, SteadyNow() + kPatience);
  ASSERT_THAT(socket, IsOk());
  const absl::Time begin = SteadyNow();
  while (SteadyNow() < begin + 2 * options.handshake_time) EXPECT_TRUE(acceptor.Accept().empty());
  EXPECT_TRUE(IsClosed(*socket));
}

TEST(TcpStoreTest, AClientThatSendsNonsenseLosesItsConnectionAlone) {
  const ServedStore served;
  const std::vector<std::string> nonsense = {
      std::string(4, '\xff'),          // a huge length
      std::string("\4\0\0\0abcd", 8),  // a short body
      absl::StrCat(std::string("\40\0\0\0", 4), std::string(32, '\x7f')),
  };
  for (const std::string& bytes : nonsense) {
    const Socket socket = served.ConnectAuthenticated();
    EXPECT_THAT(SendAll(socket, bytes, SteadyNow() + kPatience), IsOk());
    EXPECT_TRUE(IsClosed(socket));
    EXPECT_THAT(served.client->Set("key", "value"), IsOk());
  }
}

TEST(TcpStoreTest, AClientThatGoesWhileItWaitsIsForgotten) {
  const ServedStore served;
  {
    const Socket socket = served.ConnectAuthenticated();
    StoreRequest request;
    request.operation = StoreOperation::kGet;
    request.keys = {"key"};
    request.timeout = kPatience;
    EXPECT_THAT(SendAll(socket, EncodeStoreRequest(request), SteadyNow() + kPatience), IsOk());
  }
  EXPECT_THAT(served.client->Set("other", ""), IsOk());
  EXPECT_THAT(served.client->Set("key", "value"), IsOk());
  EXPECT_THAT(served.client->Get("key", kPatience), IsOkAndHolds("value"));
}

TEST(TcpStoreTest, WhatAClientHoldsIsEmptiedWhenItEnds) {
  const ServedStore served;
  std::unique_ptr<TcpStoreClient> other = served.Connect();
  EXPECT_THAT(other->Hold("before", "value"), IsOk());
  EXPECT_THAT(other->Hold("last", "value"), IsOk());
  EXPECT_THAT(served.client->Get("last", kPatience), IsOkAndHolds("value"));
  other.reset();
  const absl::Time deadline = SteadyNow() + kPatience;
  while (*served.client->Get("last", kPatience) != "" && SteadyNow() < deadline)
    absl::SleepFor(absl::Milliseconds(1));
  EXPECT_THAT(served.client->Get("last", kPatience), IsOkAndHolds(""));
  EXPECT_THAT(served.client->Get("before", kPatience), IsOkAndHolds("value"));
}

TEST(TcpStoreTest, ALostServerIsAnErrorAtOnceForThoseWhoWait) {
  ServedStore served;
  std::thread closer([&] {
    absl::SleepFor(absl::Milliseconds(50));
    served.server.reset();
  });
  EXPECT_THAT(served.client->Get("key", kPatience),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("store at 127.0.0.1")));
  closer.join();
  EXPECT_THAT(served.client->Set("key", ""), StatusIs(absl::StatusCode::kUnavailable));
}

// As of a server to which very many connect at once.
TEST(TcpStoreTest, AConnectionThatTheServerDropsIsMadeAnew) {
  absl::StatusOr<Socket> listener = ListenTcp({"127.0.0.1", 0});
  ASSERT_THAT(listener, IsOk());
  const auto endpoint = LocalEndpoint(*listener);
  ASSERT_THAT(endpoint, IsOk());
  Socket same(dup(listener->fd()));
  ASSERT_TRUE(same.valid());
  const JobSecret secret = JobSecret::Random();
  auto server = TcpStoreServer::Create(*std::move(listener), secret);
  ASSERT_THAT(server, IsOk());
  const auto client = TcpStoreClient::Connect(*endpoint, secret, kPatience);
  ASSERT_THAT(client, IsOk());
  server->reset();
  // The connection that the client has ends with this call.
  EXPECT_THAT((*client)->Set("key", "value"), StatusIs(absl::StatusCode::kUnavailable));
  std::thread late([&] {
    Socket dropped;
    while (!dropped.valid()) dropped = *AcceptTcp(same);
    dropped.Close();
    server = TcpStoreServer::Create(std::move(same), secret);
    EXPECT_THAT(server, IsOk());
  });
  EXPECT_THAT((*client)->Set("key", "value"), IsOk());
  late.join();
}

TEST(TcpStoreTest, APortInUseIsNamed) {
  const ServedStore served;
  EXPECT_THAT(
      TcpStoreServer::Create(served.server->endpoint(), served.secret).status(),
      StatusIs(absl::StatusCode::kUnavailable,
               AllOf(HasSubstr(served.server->endpoint().ToString()), HasSubstr("in use"))));
}

TEST(EndpointTest, ReadsWhatItWrites) {
  for (const char* text : {"10.0.0.1:29500", "[::1]:1", "node-7.example:65535"}) {
    const auto endpoint = Endpoint::Parse(text);
    ASSERT_THAT(endpoint, IsOk()) << text;
    EXPECT_EQ(endpoint->ToString(), text);
  }
  for (const char* text : {"", "host", "host:", ":80", "host:65536", "host:-1", "host:x"}) {
    EXPECT_THAT(Endpoint::Parse(text).status(), StatusIs(absl::StatusCode::kInvalidArgument))
        << text;
  }
}

TEST(JobSecretTest, ReadsWhatItWrites) {
  const JobSecret secret = JobSecret::Random();
  const auto read = JobSecret::FromHex(secret.ToHex());
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(read->bytes(), secret.bytes());
  EXPECT_THAT(JobSecret::FromHex("abc").status(), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(JobSecret::FromHex(std::string(64, 'g')).status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(JobSecretTest, RefusesAFileThatOthersMayRead) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/secret");
  const JobSecret secret = JobSecret::Random();
  std::ofstream(path) << secret.ToHex() << "\n";
  ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  EXPECT_THAT(JobSecret::FromFile(path).status(),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr(path)));
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  const auto read = JobSecret::FromFile(path);
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(read->bytes(), secret.bytes());
}

TEST(TcpStoreTest, AnAcceptorWithoutDescriptorsSaysSoUntilItHasSome) {
  auto listener = ListenTcp({"127.0.0.1", 0});
  ASSERT_THAT(listener, IsOk());
  const auto endpoint = LocalEndpoint(*listener);
  ASSERT_THAT(endpoint, IsOk());
  Acceptor acceptor(*std::move(listener), JobSecret::Random());
  const auto socket = ConnectTcp(*endpoint, SteadyNow() + kPatience);
  ASSERT_THAT(socket, IsOk());
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit no_more = {0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &no_more), 0);
  const absl::Time until = SteadyNow() + kPatience;
  while (acceptor.status().ok() && SteadyNow() < until) acceptor.Accept();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_THAT(acceptor.status(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("(ulimit -n)")));
  while (!acceptor.status().ok() && SteadyNow() < until) acceptor.Accept();
  EXPECT_THAT(acceptor.status(), IsOk());
}

TEST(TcpStoreTest, AClientWithoutDescriptorsWaitsForOne) {
  const ServedStore served;
  EXPECT_THAT(served.client->Hold("key", "value"), IsOk());  // on its only connection
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  // All numbers below the next one are in use.
  const int next = dup(STDERR_FILENO);
  ASSERT_GE(next, 0);
  close(next);
  const rlimit no_more = {static_cast<rlim_t>(next), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &no_more), 0);
  std::thread giver([&] {
    absl::SleepFor(absl::Milliseconds(300));
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  });
  EXPECT_THAT(served.client->Set("other", "value"), IsOk());
  giver.join();
}

TEST(TcpStoreServer, IsNotStartedWhereItCouldNotBeStopped) {
  auto listener = ListenTcp({"127.0.0.1", 0});
  ASSERT_THAT(listener, IsOk());
  const JobSecret secret = JobSecret::Random();
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit no_more = {0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &no_more), 0);
  const auto server = TcpStoreServer::Create(*std::move(listener), secret);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_THAT(server, StatusIs(absl::StatusCode::kResourceExhausted,
                               HasSubstr("while starting the store")));
}

}  // namespace
}  // namespace megatron
