#include "megatron/http/server.h"

#include <pthread.h>
#include <sys/socket.h>

#include <atomic>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/base/steady_now.h"

namespace megatron::http {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kGet[] = "GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n";
constexpr char kGetAndClose[] =
    "GET /hello HTTP/1.1\r\nHost: 127.0.0.1:9\r\nConnection: close\r\n\r\n";

size_t ThreadsOfThisProcess() {
  return PosixFileSystem().List("/proc/self/task").value_or(std::vector<std::string>()).size();
}

// Gives the threads that start meanwhile a stack of so many bytes.
class DefaultStackBytes {
 public:
  explicit DefaultStackBytes(size_t bytes) {
    EXPECT_EQ(pthread_getattr_default_np(&before_), 0);
    pthread_attr_t attributes;
    EXPECT_EQ(pthread_attr_init(&attributes), 0);
    EXPECT_EQ(pthread_attr_setstacksize(&attributes, bytes), 0);
    EXPECT_EQ(pthread_setattr_default_np(&attributes), 0);
    pthread_attr_destroy(&attributes);
  }
  ~DefaultStackBytes() {
    EXPECT_EQ(pthread_setattr_default_np(&before_), 0);
    pthread_attr_destroy(&before_);
  }

 private:
  pthread_attr_t before_;
};

// Returns the head of a request that ends its connection, without the line that ends the head.
std::string Post(absl::string_view path, int body_bytes) {
  return absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: localhost\r\nContent-Length: ", body_bytes,
                      "\r\nConnection: close\r\n");
}

class ServerTest : public ::testing::Test {
 protected:
  ServerTest() {
    options_.limits.body_bytes = 64;
    options_.request_time = absl::Milliseconds(400);
    options_.idle_time = absl::Milliseconds(800);
    options_.send_time = absl::Milliseconds(400);
  }

  void Start() {
    auto server = Server::Start(options_, [this](Request& request, const Client& client) {
      ++calls_;
      Response response;
      if (request.path == "/wait") {
        while (!client.Gone()) absl::SleepFor(absl::Milliseconds(5));
        ++gone_;
      }
      if (request.path == "/free") {
        request.FreeBody();
        go_on_.WaitForNotification();
      }
      if (request.path == "/slow") go_on_.WaitForNotification();
      if (request.path == "/stream") {
        response.stream = [this](Client* reader) {
          bool sent = reader->Send("one") && reader->Send("") && reader->Send("two");
          // Goes on as long as somebody reads, if it has no end.
          while (endless_ && sent && !reader->Gone()) sent = reader->Send(std::string(1000, 'x'));
          if (endless_) ++gone_;
        };
        return response;
      }
      response.body = absl::StrCat(request.method, " ", request.path, " ", request.body, tail_);
      return response;
    });
    ASSERT_THAT(server, ::absl_testing::IsOk());
    server_ = *std::move(server);
  }

  Socket Connect() const {
    auto socket = ConnectTcp(server_->endpoint(), SteadyNow() + absl::Seconds(10));
    EXPECT_THAT(socket, ::absl_testing::IsOk());
    return *std::move(socket);
  }

  static void Send(const Socket& socket, absl::string_view text) {
    EXPECT_THAT(SendAll(socket, text, SteadyNow() + absl::Seconds(10)), ::absl_testing::IsOk());
  }

  // Reads until the text ends so, or the connection ends.
  static std::string ReadUntil(const Socket& socket, absl::string_view end) {
    std::string text;
    char byte;
    while (ReceiveAll(socket, &byte, 1, SteadyNow() + absl::Seconds(20)).ok()) {
      text += byte;
      if (!end.empty() && absl::EndsWith(text, end)) break;
    }
    return text;
  }
  static std::string ReadAll(const Socket& socket) { return ReadUntil(socket, ""); }

  // Returns whether the server ends the connection without a byte.
  static bool EndsInSilence(const Socket& socket) {
    char byte;
    return absl::IsUnavailable(ReceiveAll(socket, &byte, 1, SteadyNow() + absl::Seconds(20)));
  }

  static bool Becomes(const std::atomic<int>& count, int value) {
    const absl::Time deadline = SteadyNow() + absl::Seconds(20);
    while (count != value && SteadyNow() < deadline) absl::SleepFor(absl::Milliseconds(5));
    return count == value;
  }

  // Returns the answer to the bytes, after which the connection has ended.
  std::string Ask(absl::string_view bytes) const {
    const Socket socket = Connect();
    Send(socket, bytes);
    return ReadAll(socket);
  }

  ServerOptions options_;
  std::string tail_ = "|";
  bool endless_ = false;
  std::atomic<int> calls_{0}, gone_{0};
  absl::Notification go_on_;
  std::unique_ptr<Server> server_;
};

TEST_F(ServerTest, AnswersSeveralRequestsOfAConnection) {
  Start();
  const Socket socket = Connect();
  for (int i = 0; i < 3; ++i) {
    Send(socket, kGet);
    EXPECT_THAT(ReadUntil(socket, "|"), StartsWith("HTTP/1.1 200 OK\r\n"));
  }
  // Two at once are answered in their order.
  Send(socket, absl::StrCat(kGet, kGetAndClose));
  const std::string both = ReadAll(socket);
  EXPECT_THAT(both, HasSubstr("GET /hello |HTTP/1.1 200 OK"));
  EXPECT_EQ(calls_, 5);
}

TEST_F(ServerTest, AHeadRequestHasNoBody) {
  Start();
  const std::string answer = Ask("HEAD / HTTP/1.1\r\nHost: [::1]:1\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(answer, HasSubstr("Content-Length: 8\r\n"));
  EXPECT_TRUE(absl::EndsWith(answer, "\r\n\r\n"));
}

TEST_F(ServerTest, AsksForTheBodyOfAClientThatWaits) {
  Start();
  const Socket socket = Connect();
  Send(socket,
       "POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 2\r\n"
       "Expect: 100-continue\r\n\r\n");
  EXPECT_EQ(ReadUntil(socket, "\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  Send(socket, "hi");
  EXPECT_THAT(ReadAll(socket), HasSubstr("POST / hi|"));
}

TEST_F(ServerTest, MistakesAreAnsweredAndEndTheConnection) {
  Start();
  EXPECT_THAT(Ask("nonsense\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Ask("\x16\x03\x01"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Ask(std::string(9000, 'x')), StartsWith("HTTP/1.1 431 "));
  EXPECT_THAT(Ask("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 65\r\n\r\n"),
              StartsWith("HTTP/1.1 413 "));
  EXPECT_EQ(calls_, 0);
}

TEST_F(ServerTest, ItsOwnErrorsHaveTheFormThatIsAskedFor) {
  options_.error = [](int status, absl::string_view sentence) {
    Response response;
    response.status = status;
    response.body = absl::StrCat("<", sentence, ">");
    return response;
  };
  Start();
  for (const auto& [request, status, sentence] :
       {std::tuple("nonsense\r\n\r\n", 400, "<the request line is not"),
        std::tuple("GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n", 400,
                   "<the field Host does not name this machine>"),
        std::tuple("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 65\r\n\r\n", 413,
                   "<the body has more than 64 bytes>"),
        std::tuple("GET / HTTP/1.1\r\n", 408,
                   "<the request took longer than 0.4 seconds to arrive>")}) {
    const std::string answer = Ask(request);
    EXPECT_THAT(answer, StartsWith(absl::StrCat("HTTP/1.1 ", status, " ")));
    EXPECT_THAT(answer, HasSubstr(sentence));
  }
  options_.connections = 1;
  Start();
  const Socket first = Connect();
  Send(first, "GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n");
  ASSERT_TRUE(Becomes(calls_, 1));
  EXPECT_THAT(ReadAll(Connect()), HasSubstr("<there are too many connections"));
}

TEST_F(ServerTest, AnotherNameOfThisMachineIsRefused) {
  Start();
  const auto ask = [this](const char* host) {
    return Ask(absl::StrCat("GET / HTTP/1.1\r\nHost: ", host, "\r\nConnection: close\r\n\r\n"));
  };
  for (const char* host : {"evil.example", "127.evil.example", "127.0.0.1.evil.example:80",
                           "[::1].evil.example", "localhost.evil.example", "128.0.0.1", "[::2]"}) {
    EXPECT_THAT(ask(host), HasSubstr("Host does not name this machine")) << host;
  }
  EXPECT_EQ(calls_, 0);
  for (const char* host : {"127.0.0.1:8000", "127.8.9.10", "LocalHost:1", "[::1]", "[::1]:8000"})
    EXPECT_THAT(ask(host), HasSubstr("200 OK")) << host;
}

TEST_F(ServerTest, SlowAndSilentClientsLoseTheirPlaces) {
  options_.connections = 2;
  options_.idle_time = absl::Seconds(600);
  Start();
  const Socket slow = Connect();
  Send(slow, "G");
  const Socket silent = Connect();
  std::thread drip([&slow] {
    for (int i = 0; i < 10; ++i) {
      SendAll(slow, "G", SteadyNow()).IgnoreError();
      absl::SleepFor(absl::Milliseconds(100));
    }
  });
  EXPECT_THAT(ReadAll(slow), StartsWith("HTTP/1.1 408 "));
  EXPECT_TRUE(EndsInSilence(silent));
  drip.join();
  EXPECT_THAT(Ask(kGetAndClose), HasSubstr("200 OK"));
}

TEST_F(ServerTest, AConnectionBetweenRequestsEndsAtTheIdleTime) {
  Start();
  const Socket socket = Connect();
  Send(socket, kGet);
  EXPECT_THAT(ReadUntil(socket, "|"), HasSubstr("200 OK"));
  EXPECT_TRUE(EndsInSilence(socket));
}

TEST_F(ServerTest, OneConnectionTooManyIsToldSo) {
  options_.connections = 1;
  Start();
  const Socket first = Connect();
  Send(first, "GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n");
  ASSERT_TRUE(Becomes(calls_, 1));
  const Socket second = Connect();
  const std::string refused = ReadAll(second);
  EXPECT_THAT(refused, StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(refused, HasSubstr("Retry-After: 1\r\n"));
  EXPECT_EQ(gone_, 0);
}

TEST_F(ServerTest, AConnectionThatGetsNoThreadIsToldSo) {
  Start();
  {
    // No address space has room for such a stack.
    const DefaultStackBytes huge(size_t{1} << 60);
    const std::string refused = ReadAll(Connect());
    EXPECT_THAT(refused, StartsWith("HTTP/1.1 503 "));
    EXPECT_THAT(refused, HasSubstr("the system starts no thread for this connection"));
    EXPECT_THAT(refused, HasSubstr("Retry-After: 1\r\n"));
  }
  EXPECT_THAT(Ask(kGetAndClose), HasSubstr("200 OK"));
}

TEST_F(ServerTest, ThePlaceOfAConnectionThatHasEndedIsFreeAtOnce) {
  options_.connections = 2;
  options_.request_time = absl::Seconds(600);
  Start();
  const Socket busy = Connect();
  Send(busy, "GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n");
  ASSERT_TRUE(Becomes(calls_, 1));
  for (int i = 0; i < 50; ++i) EXPECT_THAT(Ask(kGetAndClose), HasSubstr("200 OK")) << i;
}

TEST_F(ServerTest, BodiesOfAllConnectionsHaveABudget) {
  options_.request_time = absl::Seconds(600);
  options_.all_body_bytes = 2 * 64;
  Start();
  const std::string body(64, 'x');
  // This handler gives its own back before it answers.
  const Socket first = Connect();
  Send(first, absl::StrCat(Post("/free", 64), "\r\n", body));
  ASSERT_TRUE(Becomes(calls_, 1));
  std::string answer;
  const absl::Time deadline = SteadyNow() + absl::Seconds(20);
  while (!absl::StrContains(answer, "200 OK") && SteadyNow() < deadline)
    answer = Ask(absl::StrCat(Post("/", 64), "\r\n", body));
  EXPECT_THAT(answer, HasSubstr(absl::StrCat("POST / ", body, "|")));
  // This one keeps them.
  const Socket second = Connect();
  Send(second, absl::StrCat(Post("/slow", 64), "\r\n", body));
  ASSERT_TRUE(Becomes(calls_, 3));
  const std::string refused = Ask(absl::StrCat(Post("/", 1), "\r\nx"));
  EXPECT_THAT(refused, StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(refused, HasSubstr("Retry-After: 1\r\n"));
  EXPECT_EQ(calls_, 3);
  // What has no body needs nothing of it.
  EXPECT_THAT(Ask(kGetAndClose), HasSubstr("200 OK"));
  go_on_.Notify();
  EXPECT_THAT(ReadAll(first), HasSubstr("POST /free |"));
  EXPECT_THAT(ReadAll(second), HasSubstr(absl::StrCat("POST /slow ", body, "|")));
}

TEST_F(ServerTest, HeadsWithoutTheirBodiesTakeNothingOfTheBudget) {
  options_.request_time = absl::Seconds(600);
  options_.all_body_bytes = 2 * 64;
  Start();
  const Socket first = Connect(), second = Connect();
  for (const Socket* socket : {&first, &second}) {
    Send(*socket, absl::StrCat(Post("/", 64), "Expect: 100-continue\r\n\r\n"));
    EXPECT_EQ(ReadUntil(*socket, "\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  }
  const std::string body(64, 'x');
  EXPECT_THAT(Ask(absl::StrCat(Post("/", 64), "\r\n", body)), HasSubstr("200 OK"));
  for (const Socket* socket : {&first, &second}) {
    Send(*socket, body);
    EXPECT_THAT(ReadAll(*socket), HasSubstr(absl::StrCat("POST / ", body, "|")));
  }
}

TEST_F(ServerTest, ALongBodyTakesItsShareOfTheBudgetAsItArrives) {
  constexpr int kBytes = 20'000;
  options_.request_time = options_.send_time = absl::Seconds(600);
  options_.limits.body_bytes = 2 * kBytes;
  options_.all_body_bytes = 2 * kBytes;
  Start();
  std::string body;
  for (int i = 0; body.size() < kBytes; ++i) absl::StrAppend(&body, i, ",");
  body.resize(kBytes);
  EXPECT_THAT(Ask(absl::StrCat(Post("/", kBytes), "\r\n", body)),
              HasSubstr(absl::StrCat("POST / ", body, "|")));
  // The head is taken; nothing is left for the last byte of the body.
  const Socket socket = Connect();
  Send(socket, absl::StrCat(Post("/", kBytes + 1), "Expect: 100-continue\r\n\r\n"));
  EXPECT_EQ(ReadUntil(socket, "\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  Send(socket, absl::StrCat(body, "x"));
  EXPECT_THAT(ReadAll(socket), StartsWith("HTTP/1.1 503 "));
  EXPECT_EQ(calls_, 1);
}

TEST_F(ServerTest, AnIdleConnectionMakesPlaceForANewOne) {
  options_.connections = 2;
  options_.request_time = options_.idle_time = absl::Seconds(600);
  Start();
  const Socket busy = Connect(), idle = Connect();
  Send(busy, "GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n");
  ASSERT_TRUE(Becomes(calls_, 1));
  Send(idle, kGet);
  EXPECT_THAT(ReadUntil(idle, "|"), HasSubstr("200 OK"));
  // The server may see a while after its client that the answer has ended.
  const absl::Time deadline = SteadyNow() + absl::Seconds(20);
  std::string answer;
  while (!absl::StrContains(answer, "200 OK") && SteadyNow() < deadline) {
    const Socket next = Connect();
    SendAll(next, kGetAndClose, SteadyNow() + absl::Seconds(1)).IgnoreError();
    answer = ReadAll(next);
  }
  EXPECT_THAT(answer, HasSubstr("200 OK"));
  EXPECT_TRUE(EndsInSilence(idle));
  EXPECT_EQ(gone_, 0);
}

TEST_F(ServerTest, AClientThatDoesNotReadLosesItsPlace) {
  options_.connections = 1;
  tail_ = std::string(64 << 20, 'x');
  Start();
  const Socket deaf = Connect();
  Send(deaf, kGet);
  for (int i = 0; i < 100 && calls_ < 2; ++i) {
    absl::SleepFor(absl::Milliseconds(100));
    const Socket next = Connect();
    SendAll(next, kGetAndClose, SteadyNow() + absl::Seconds(1)).IgnoreError();
    absl::SleepFor(absl::Milliseconds(50));
  }
  EXPECT_GE(calls_, 2);
}

TEST_F(ServerTest, AStreamComesInChunksAndTheConnectionGoesOn) {
  Start();
  const Socket socket = Connect();
  Send(socket, "GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const std::string answer = ReadUntil(socket, "0\r\n\r\n");
  EXPECT_THAT(answer, HasSubstr("Transfer-Encoding: chunked\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n"));
  EXPECT_THAT(answer, ::testing::Not(HasSubstr("Content-Length")));
  Send(socket, kGetAndClose);
  EXPECT_THAT(ReadAll(socket), HasSubstr("200 OK"));
  EXPECT_TRUE(
      absl::EndsWith(Ask("HEAD /stream HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
                     "chunked\r\n\r\n"));
}

TEST_F(ServerTest, AStreamToHttp10EndsWithTheConnection) {
  Start();
  const std::string answer = Ask("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_THAT(answer, HasSubstr("Connection: close\r\n\r\nonetwo"));
  EXPECT_TRUE(absl::EndsWith(answer, "onetwo"));
}

TEST_F(ServerTest, AHandlerSeesThatItsClientIsGone) {
  Start();
  for (int i = 1; i <= 3; ++i) {
    {
      const Socket socket = Connect();
      Send(socket, "GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n");
      ASSERT_TRUE(Becomes(calls_, i));
      EXPECT_EQ(gone_, i - 1);
    }
    EXPECT_TRUE(Becomes(gone_, i));
  }
  // So does one whose server ends.
  const Socket last = Connect();
  Send(last, "GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n");
  ASSERT_TRUE(Becomes(calls_, 4));
  server_.reset();
  EXPECT_EQ(gone_, 4);
}

TEST_F(ServerTest, AStreamEndsWithoutAReader) {
  endless_ = true;
  Start();
  {
    const Socket socket = Connect();
    Send(socket, "GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
    ReadUntil(socket, "xxx");
  }
  EXPECT_TRUE(Becomes(gone_, 1));
  // One that stays and does not read is dropped at the deadline of a piece.
  const Socket deaf = Connect();
  Send(deaf, "GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_TRUE(Becomes(gone_, 2));
}

TEST_F(ServerTest, DrainingEndsConnectionsAfterTheirAnswers) {
  options_.request_time = options_.idle_time = absl::Seconds(600);
  Start();
  const Socket busy = Connect(), idle = Connect(), silent = Connect();
  // The second request, and those of connections from now on, are not answered.
  Send(busy, absl::StrCat("GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n", kGet));
  ASSERT_TRUE(Becomes(calls_, 1));
  Send(idle, kGet);
  EXPECT_THAT(ReadUntil(idle, "|"), HasSubstr("200 OK"));
  std::thread drain([this] { server_->Drain(SteadyNow() + absl::Seconds(600)); });
  EXPECT_TRUE(EndsInSilence(idle));
  EXPECT_TRUE(EndsInSilence(silent));
  EXPECT_THAT(ReadAll(Connect()), HasSubstr("the server is stopping"));
  go_on_.Notify();
  const std::string answer = ReadAll(busy);
  drain.join();
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("Connection: close\r\n"));
  EXPECT_TRUE(absl::EndsWith(answer, "GET /slow |")) << answer;
  EXPECT_EQ(calls_, 2);
}

TEST_F(ServerTest, DrainingEndsAtItsDeadline) {
  Start();
  const Socket busy = Connect();
  Send(busy, "GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n");
  ASSERT_TRUE(Becomes(calls_, 1));
  server_->Drain(SteadyNow() + absl::Milliseconds(100));
  EXPECT_EQ(gone_, 0);
  server_.reset();
  EXPECT_EQ(gone_, 1);
}

TEST_F(ServerTest, NoThreadOutlivesIt) {
  options_.request_time = options_.idle_time = absl::Seconds(600);
  const size_t before = ThreadsOfThisProcess();
  Start();
  std::vector<Socket> sockets;
  for (int i = 0; i < 5; ++i) sockets.push_back(Connect());
  Send(sockets[0], kGet);
  EXPECT_THAT(ReadUntil(sockets[0], "|"), HasSubstr("200 OK"));
  EXPECT_GT(ThreadsOfThisProcess(), before);
  const absl::Time start = SteadyNow();
  server_.reset();
  EXPECT_LT(SteadyNow() - start, absl::Seconds(10));
  EXPECT_EQ(ThreadsOfThisProcess(), before);
  for (const Socket& socket : sockets) EXPECT_EQ(ReadAll(socket), "");
}

TEST_F(ServerTest, APortInUseIsAnError) {
  Start();
  ServerOptions second = options_;
  second.listen = server_->endpoint();
  const auto server =
      Server::Start(second, [](const Request&, const Client&) { return Response(); });
  ASSERT_FALSE(server.ok());
  EXPECT_THAT(server.status().message(), HasSubstr("in use"));
}

}  // namespace
}  // namespace megatron::http
