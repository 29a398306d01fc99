#include "megatron/http/server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/steady_now.h"

namespace megatron::http {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(100);
constexpr absl::Duration kLinger = absl::Milliseconds(500);
constexpr size_t kReadBytes = 4096;

// Waits until there is something to read. Returns false at the deadline.
bool WaitToRead(const Socket& socket, absl::Time deadline) {
  while (SteadyNow() < deadline) {
    pollfd entry = {socket.fd(), POLLIN, 0};
    if (poll(&entry, 1, PollMilliseconds(deadline, absl::Seconds(1))) > 0) return true;
  }
  return false;
}

enum class Received { kBytes, kEnd, kLate };

// Appends what has come, at least a byte.
Received Receive(const Socket& socket, absl::Time deadline, std::string* received) {
  char buffer[kReadBytes];
  for (;;) {
    const ssize_t got = recv(socket.fd(), buffer, sizeof(buffer), 0);
    if (got > 0) {
      received->append(buffer, got);
      return Received::kBytes;
    }
    if (got == 0 || (errno != EAGAIN && errno != EINTR)) return Received::kEnd;
    if (!WaitToRead(socket, deadline)) return Received::kLate;
  }
}

// Ends the connection so that the client can read the last answer: closing while bytes of the
// client are unread would take that away from it.
void Leave(const Socket& socket) {
  shutdown(socket.fd(), SHUT_WR);
  const absl::Time deadline = SteadyNow() + kLinger;
  std::string rest;
  while (SteadyNow() < deadline && Receive(socket, deadline, &rest) == Received::kBytes)
    rest.clear();
  shutdown(socket.fd(), SHUT_RDWR);
}

class ConnectedClient : public Client {
 public:
  ConnectedClient(const Socket& socket, absl::Duration send_time, bool in_chunks)
      : socket_(socket), send_time_(send_time), in_chunks_(in_chunks) {}

  bool Gone() const override {
    pollfd entry = {socket_.fd(), POLLRDHUP, 0};
    return failed_ || (poll(&entry, 1, 0) > 0 && entry.revents != 0);
  }

  bool Send(absl::string_view piece) override {
    if (piece.empty()) return !failed_;
    return in_chunks_ ? SendBytes(Chunk(piece)) : SendBytes(piece);
  }

  // Sends what is no piece of a body. Nothing is sent after a failure.
  bool SendBytes(absl::string_view bytes) {
    if (!failed_) failed_ = !SendAll(socket_, bytes, SteadyNow() + send_time_).ok();
    return !failed_;
  }

 private:
  const Socket& socket_;
  const absl::Duration send_time_;
  const bool in_chunks_;
  bool failed_ = false;
};

// Anybody may own a name that begins like an address, such as 127.example.com.
bool IsLoopback(absl::string_view host) {
  if (absl::EqualsIgnoreCase(host, "localhost") || host == "::1") return true;
  in_addr address;
  return inet_pton(AF_INET, std::string(host).c_str(), &address) == 1 &&
         ntohl(address.s_addr) >> 24 == 127;
}

// Returns whether the field Host names this machine itself, with or without a port.
bool NamesLoopback(absl::string_view host) {
  if (absl::ConsumePrefix(&host, "[::1]")) return host.empty() || host.front() == ':';
  return IsLoopback(host.substr(0, host.find(':')));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options,
                                                      Handler handler) {
  MEGATRON_ASSIGN_OR_RETURN(Socket listener, ListenTcp(options.listen));
  MEGATRON_ASSIGN_OR_RETURN(Endpoint endpoint, LocalEndpoint(listener));
  return std::unique_ptr<Server>(
      new Server(options, std::move(handler), std::move(listener), std::move(endpoint)));
}

Server::Server(const ServerOptions& options, Handler handler, Socket listener, Endpoint endpoint)
    : options_(options),
      body_budget_(options.all_body_bytes),
      handler_(std::move(handler)),
      listener_(std::move(listener)),
      endpoint_(std::move(endpoint)),
      thread_([this] { Accept(); }) {}

Server::~Server() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
    // Whoever waits for its connection sees its end.
    for (const Connection& connection : connections_) shutdown(connection.socket.fd(), SHUT_RDWR);
  }
  thread_.join();
  std::list<Connection> rest;
  {
    absl::MutexLock lock(&mutex_);
    rest.swap(connections_);
  }
  for (Connection& connection : rest) connection.thread.join();
}

void Server::Drain(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  draining_ = true;
  for (Connection& connection : connections_) {
    if (connection.waiting) CloseWaiting(&connection);
  }
  const auto all_done = [this] {
    mutex_.AssertHeld();
    return std::all_of(connections_.begin(), connections_.end(),
                       [](const Connection& connection) { return connection.done; });
  };
  mutex_.AwaitWithTimeout(absl::Condition(&all_done), deadline - SteadyNow());
}

bool Server::draining() {
  absl::MutexLock lock(&mutex_);
  return draining_;
}

void Server::CloseWaiting(Connection* connection) {
  connection->closing = true;
  shutdown(connection->socket.fd(), SHUT_RDWR);
}

void Server::Accept() {
  for (;;) {
    pollfd entry = {listener_.fd(), POLLIN, 0};
    poll(&entry, 1, static_cast<int>(absl::ToInt64Milliseconds(kLook)));
    {
      absl::MutexLock lock(&mutex_);
      if (stop_) return;
    }
    JoinFinished();
    absl::StatusOr<Socket> accepted = AcceptTcp(listener_);
    if (!accepted.ok()) {
      absl::SleepFor(kLook);  // this process has no descriptor left, for now
    } else if (accepted->valid()) {
      Open(*std::move(accepted));
    }
  }
}

void Server::Open(Socket socket) {
  absl::MutexLock lock(&mutex_);
  // A connection whose client has had its answer may not have seen its own end yet.
  const auto may_decide = [this] {
    mutex_.AssertHeld();
    return stop_ || draining_ || HasPlace();
  };
  mutex_.AwaitWithTimeout(absl::Condition(&may_decide), kLook);
  // Nobody would end a connection that begins now.
  if (stop_) return;
  const auto refuse = [this](const Socket& refused, absl::string_view sentence) {
    Response full = options_.error(503, sentence);
    full.fields = {{"Retry-After", "1"}};
    // Nobody waits for a client that does not read.
    SendAll(refused, ResponseText(full, false, false), SteadyNow()).IgnoreError();
  };
  if (draining_) return refuse(socket, "the server is stopping");
  if (!MakePlace()) return refuse(socket, "there are too many connections; try again later");
  Connection& connection = connections_.emplace_back(std::move(socket));
  try {
    connection.thread = std::thread([this, &connection] { Serve(&connection); });
  } catch (const std::system_error&) {
    // Nobody else catches it, and a run must not end because its metrics are asked for.
    refuse(connection.socket, "the system starts no thread for this connection; try again later");
    connections_.pop_back();
  }
}

bool Server::HasPlace() const {
  const auto is_open = [](const Connection& connection) {
    return !connection.closing && !connection.done;
  };
  const auto is_idle = [&](const Connection& connection) {
    return is_open(connection) && connection.idle_since < absl::InfiniteFuture();
  };
  return std::count_if(connections_.begin(), connections_.end(), is_open) < options_.connections ||
         std::any_of(connections_.begin(), connections_.end(), is_idle);
}

bool Server::MakePlace() {
  int open = 0;
  Connection* idle = nullptr;
  for (Connection& connection : connections_) {
    if (connection.closing || connection.done) continue;
    ++open;
    if (idle == nullptr || connection.idle_since < idle->idle_since) idle = &connection;
  }
  if (open < options_.connections) return true;
  if (idle == nullptr || idle->idle_since == absl::InfiniteFuture()) return false;
  CloseWaiting(idle);
  return true;
}

void Server::JoinFinished() {
  std::list<Connection> finished;
  {
    absl::MutexLock lock(&mutex_);
    for (auto it = connections_.begin(); it != connections_.end();) {
      const auto next = std::next(it);
      if (it->done) finished.splice(finished.end(), connections_, it);
      it = next;
    }
  }
  for (Connection& connection : finished) connection.thread.join();
}

void Server::Serve(Connection* connection) {
  std::string received;
  bool is_first = true;
  while (AwaitRequest(connection, is_first, &received) && ServeOne(connection->socket, &received))
    is_first = false;
  Leave(connection->socket);
  absl::MutexLock lock(&mutex_);
  connection->done = true;
}

bool Server::AwaitRequest(Connection* connection, bool is_first, std::string* received) {
  {
    absl::MutexLock lock(&mutex_);
    if (draining_) return false;
    if (!received->empty()) return true;
    connection->waiting = true;
    if (!is_first) connection->idle_since = SteadyNow();
  }
  const absl::Duration time = is_first ? options_.request_time : options_.idle_time;
  const Received got = Receive(connection->socket, SteadyNow() + time, received);
  absl::MutexLock lock(&mutex_);
  connection->waiting = false;
  connection->idle_since = absl::InfiniteFuture();
  return got == Received::kBytes && !connection->closing;
}

ParsedRequest Server::ReadRequest(const Socket& socket, std::string* received) {
  const absl::Time deadline = SteadyNow() + options_.request_time;
  bool continued = false;
  std::vector<ByteBudget::Share> shares;
  size_t room = 0;  // the bytes of the body that the shares are for
  const auto bad = [](int status, std::string reason) {
    ParsedRequest parsed;
    parsed.state = ParsedRequest::State::kBad;
    parsed.status = status;
    parsed.reason = std::move(reason);
    return parsed;
  };
  for (;;) {
    ParsedRequest parsed = ParseRequest(*received, options_.limits);
    if (parsed.state == ParsedRequest::State::kBad) return parsed;
    const bool is_done = parsed.state == ParsedRequest::State::kDone;
    const size_t arrived = std::min(parsed.body_bytes, received->size() - parsed.head_bytes);
    if (arrived > room) {
      const size_t wanted = std::min(parsed.body_bytes, std::max(arrived, 2 * room));
      shares.push_back(body_budget_.Take(2 * (wanted - room)));
      if (shares.back() == nullptr)
        return bad(503, "the server holds as many bytes of requests as it takes; try again later");
      room = wanted;
    }
    const size_t needed = options_.limits.head_bytes + room + kReadBytes;
    if (!is_done && room > 0 && received->capacity() < needed) {
      // A string that grows by itself, or by reserve, may have twice the room that is asked for.
      std::string grown;
      grown.reserve(needed);
      grown.append(*received);
      received->swap(grown);
    }
    if (is_done) {
      if (!shares.empty()) {
        parsed.request.body_share =
            std::make_shared<std::vector<ByteBudget::Share>>(std::move(shares));
      }
      // An assignment would keep the room of the body.
      std::string(*received, parsed.bytes).swap(*received);
      return parsed;
    }
    if (parsed.expects_continue && !std::exchange(continued, true)) {
      const absl::Time sent_by = SteadyNow() + options_.send_time;
      if (!SendAll(socket, "HTTP/1.1 100 Continue\r\n\r\n", sent_by).ok()) return parsed;
    }
    const Received got = Receive(socket, deadline, received);
    if (got == Received::kEnd) return parsed;
    if (got == Received::kLate) {
      const double seconds = absl::ToDoubleSeconds(options_.request_time);
      return bad(408, absl::StrCat("the request took longer than ", seconds,
                                   seconds == 1 ? " second" : " seconds", " to arrive"));
    }
  }
}

bool Server::ServeOne(const Socket& socket, std::string* received) {
  ParsedRequest parsed = ReadRequest(socket, received);
  if (parsed.state == ParsedRequest::State::kIncomplete) return false;
  const bool bad = parsed.state == ParsedRequest::State::kBad;
  // What has come of the body has no share any more.
  if (bad) std::string().swap(*received);
  const bool to_head = parsed.request.method == "HEAD";
  const bool in_chunks = !parsed.request.is_http_1_0;
  ConnectedClient client(socket, options_.send_time, in_chunks);
  Response response =
      bad ? options_.error(parsed.status, parsed.reason) : Answer(parsed.request, client);
  if (bad && parsed.status == 503) response.fields = {{"Retry-After", "1"}};
  parsed.request.FreeBody();
  const bool keep_alive =
      !bad && parsed.request.keep_alive && (!response.stream || in_chunks) && !draining();
  if (!response.stream)
    return client.SendBytes(ResponseText(response, to_head, keep_alive)) && keep_alive;
  if (!client.SendBytes(StreamHead(response, in_chunks, keep_alive))) return false;
  if (to_head) return keep_alive;
  response.stream(&client);
  return client.SendBytes(in_chunks ? kLastChunk : "") && keep_alive;
}

Response Server::Answer(Request& request, const Client& client) const {
  const absl::string_view host = request.Field("host");
  if (IsLoopback(options_.listen.host) && !host.empty() && !NamesLoopback(host))
    return options_.error(400, "the field Host does not name this machine");
  return handler_(request, client);
}

}  // namespace megatron::http
