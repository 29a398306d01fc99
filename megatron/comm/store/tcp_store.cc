#include "megatron/comm/store/tcp_store.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <list>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/steady_now.h"
#include "megatron/comm/socket/acceptor.h"
#include "megatron/comm/socket/handshake.h"
#include "megatron/comm/socket/wake_event.h"
#include "megatron/comm/store/memory_store.h"

namespace megatron {
namespace {

// The time beyond a request's own timeout: for the way there and back, and a busy machine.
constexpr absl::Duration kAnswerTime = absl::Seconds(30);
constexpr size_t kReadBytes = 1 << 16;
// The time before another try to make a connection.
constexpr absl::Duration kRetryPause = absl::Milliseconds(50);

// One client of the server. Its requests are answered one after another.
struct Client {
  explicit Client(Socket socket) : socket(std::move(socket)) {}

  bool waiting() const { return !awaited.empty(); }
  bool idle() const { return !waiting() && out.empty(); }

  Socket socket;
  std::string in;   // not yet taken apart
  std::string out;  // not yet sent
  StoreRequest request;
  std::vector<std::string> awaited;  // keys that the request waits for
  absl::Time deadline;
  std::optional<std::string> held;  // the key that is emptied when the client goes
};

// Returns a request about one key.
absl::StatusOr<StoreRequest> RequestOf(StoreOperation operation, absl::string_view key,
                                       absl::string_view value = "") {
  MEGATRON_RETURN_IF_ERROR(CheckStoreSizes(key, value));
  StoreRequest request;
  request.operation = operation;
  request.keys = {std::string(key)};
  request.value = std::string(value);
  return request;
}

// Sends a request, and waits for the reply.
absl::StatusOr<StoreReply> Ask(const Socket& socket, const StoreRequest& request) {
  const absl::Time deadline = SteadyNow() + request.timeout + kAnswerTime;
  MEGATRON_RETURN_IF_ERROR(SendAll(socket, EncodeStoreRequest(request), deadline));
  std::string length(kStoreLengthBytes, '\0');
  MEGATRON_RETURN_IF_ERROR(ReceiveAll(socket, &length[0], length.size(), deadline));
  MEGATRON_ASSIGN_OR_RETURN(const size_t bytes, StoreFrameLength(length));
  std::string body(bytes, '\0');
  MEGATRON_RETURN_IF_ERROR(ReceiveAll(socket, &body[0], body.size(), deadline));
  return DecodeStoreReply(body);
}

}  // namespace

// All of it runs on one thread; nothing in it waits but poll().
class TcpStoreServer::Loop {
 public:
  Loop(Socket listener, const JobSecret& secret, WakeEvent stop)
      : acceptor_(std::move(listener), secret),
        stop_(std::move(stop)),
        thread_([this] { Run(); }) {}

  ~Loop() {
    stop_.Set();
    thread_.join();
  }

 private:
  using Clients = std::list<Client>;

  void Run() {
    while (true) {
      std::vector<pollfd> entries = {{stop_.fd(), POLLIN, 0}};
      for (const Client& client : clients_) {
        // A client that must read its answer first is not listened to; hanging up is always heard.
        const short events = client.out.empty() ? POLLIN : POLLOUT;
        entries.push_back({client.socket.fd(), events, 0});
      }
      acceptor_.AppendTo(&entries);
      poll(entries.data(), entries.size(),
           PollMilliseconds(NextDeadline(), acceptor_.longest_wait()));
      if (entries[0].revents != 0) return;
      auto entry = entries.begin() + 1;
      for (auto client = clients_.begin(); client != clients_.end(); ++entry) {
        const auto current = client++;
        if (entry->revents == 0 || Serve(&*current)) continue;
        StopWaiting(&*current);
        const std::optional<std::string> held = std::move(current->held);
        clients_.erase(current);
        if (held.has_value()) Put(*held, "").IgnoreError();
      }
      AnswerWhoWaitedTooLong();
      for (AcceptedChannel& channel : acceptor_.Accept()) {
        if (channel.id.purpose == ChannelPurpose::kStore) {
          clients_.emplace_back(std::move(channel.socket));
        }
      }
    }
  }

  absl::Time NextDeadline() const {
    absl::Time next = absl::InfiniteFuture();
    for (const Client& client : clients_) {
      if (client.waiting()) next = std::min(next, client.deadline);
    }
    return next;
  }

  // Returns false if the client has gone, or sent what no client sends.
  bool Serve(Client* client) {
    if (!client->out.empty()) return Flush(client);
    char bytes[kReadBytes];
    const ssize_t got = recv(client->socket.fd(), bytes, sizeof(bytes), 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    client->in.append(bytes, got);
    // One that talks on while it waits would grow without bound.
    if (client->in.size() > kStoreLengthBytes + kMaxStoreFrame + kReadBytes) return false;
    return TakeRequests(client);
  }

  bool TakeRequests(Client* client) {
    while (client->idle() && client->in.size() >= kStoreLengthBytes) {
      const absl::StatusOr<size_t> length =
          StoreFrameLength(absl::string_view(client->in).substr(0, kStoreLengthBytes));
      if (!length.ok()) return false;
      if (client->in.size() < kStoreLengthBytes + *length) return true;
      absl::StatusOr<StoreRequest> request =
          DecodeStoreRequest(absl::string_view(client->in).substr(kStoreLengthBytes, *length));
      if (!request.ok()) return false;
      client->in.erase(0, kStoreLengthBytes + *length);
      client->request = *std::move(request);
      if (!Begin(client)) return false;
    }
    return true;
  }

  bool Begin(Client* client) {
    const StoreRequest& request = client->request;
    const std::string key = request.keys.empty() ? "" : request.keys[0];
    StoreReply reply;
    switch (request.operation) {
      case StoreOperation::kSet:
        reply.status = Put(key, request.value);
        return Answer(client, reply);
      case StoreOperation::kHold:
        reply.status = Put(key, request.value);
        if (reply.status.ok()) client->held = key;
        return Answer(client, reply);
      case StoreOperation::kAdd: {
        const absl::StatusOr<int64_t> count = values_.Add(key, request.delta);
        reply.status = count.status();
        if (count.ok()) {
          reply.count = *count;
          WakeWaiters(key);
        }
        return Answer(client, reply);
      }
      case StoreOperation::kGet:
      case StoreOperation::kWait:
        break;
    }
    // A wrong key is an error now; a missing one is waited for.
    reply.status = values_.Wait(request.keys, absl::ZeroDuration());
    if (reply.status.code() != absl::StatusCode::kDeadlineExceeded) return Finish(client, reply);
    client->deadline = SteadyNow() + request.timeout;
    client->awaited = values_.Missing(request.keys);
    for (const std::string& missing : client->awaited) waiters_.emplace(missing, client);
    return true;
  }

  absl::Status Put(const std::string& key, const std::string& value) {
    MEGATRON_RETURN_IF_ERROR(values_.Set(key, value));
    WakeWaiters(key);
    return absl::OkStatus();
  }

  // Answers a Get or Wait.
  bool Finish(Client* client, StoreReply reply) {
    if (reply.status.ok() && client->request.operation == StoreOperation::kGet) {
      reply.value = *values_.Get(client->request.keys[0], absl::ZeroDuration());
    }
    return Answer(client, reply);
  }

  void StopWaiting(Client* client) {
    for (const std::string& key : client->awaited) {
      const auto [begin, end] = waiters_.equal_range(key);
      for (auto waiter = begin; waiter != end; ++waiter) {
        if (waiter->second != client) continue;
        waiters_.erase(waiter);
        break;
      }
    }
    client->awaited.clear();
  }

  void WakeWaiters(const std::string& key) {
    const auto [begin, end] = waiters_.equal_range(key);
    std::vector<Client*> woken;
    for (auto waiter = begin; waiter != end; ++waiter) woken.push_back(waiter->second);
    waiters_.erase(begin, end);
    for (Client* client : woken) {
      auto& awaited = client->awaited;
      const auto found = std::find(awaited.begin(), awaited.end(), key);
      if (found != awaited.end()) awaited.erase(found);
      // If it has gone, poll() will say so.
      if (awaited.empty()) (void)Finish(client, StoreReply());
    }
  }

  void AnswerWhoWaitedTooLong() {
    const absl::Time now = SteadyNow();
    for (Client& client : clients_) {
      if (!client.waiting() || now < client.deadline) continue;
      StoreReply reply;
      reply.status = KeysAreMissing(client.request.timeout, client.awaited);
      StopWaiting(&client);
      (void)Answer(&client, reply);
    }
  }

  bool Answer(Client* client, const StoreReply& reply) {
    client->out = EncodeStoreReply(reply);
    return Send(client);
  }

  bool Send(Client* client) {
    const ssize_t sent =
        send(client->socket.fd(), client->out.data(), client->out.size(), MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    client->out.erase(0, sent);
    return true;
  }

  // Continues with what the client has asked in the meantime.
  bool Flush(Client* client) { return Send(client) && TakeRequests(client); }

  Acceptor acceptor_;
  MemoryStore values_;
  Clients clients_;
  std::multimap<std::string, Client*> waiters_;
  const WakeEvent stop_;
  std::thread thread_;  // last: it uses all others
};

TcpStoreServer::TcpStoreServer(Endpoint endpoint, std::unique_ptr<Loop> loop)
    : endpoint_(std::move(endpoint)), loop_(std::move(loop)) {}

TcpStoreServer::~TcpStoreServer() = default;

absl::StatusOr<std::unique_ptr<TcpStoreServer>> TcpStoreServer::Create(const Endpoint& at,
                                                                       const JobSecret& secret) {
  MEGATRON_ASSIGN_OR_RETURN(Socket listener, ListenTcp(at), _ << "while starting the store");
  return Create(std::move(listener), secret);
}

absl::StatusOr<std::unique_ptr<TcpStoreServer>> TcpStoreServer::Create(Socket listener,
                                                                       const JobSecret& secret) {
  MEGATRON_ASSIGN_OR_RETURN(Endpoint endpoint, LocalEndpoint(listener));
  MEGATRON_ASSIGN_OR_RETURN(WakeEvent stop, WakeEvent::Create(), _ << "while starting the store");
  auto loop = std::make_unique<Loop>(std::move(listener), secret, std::move(stop));
  return std::unique_ptr<TcpStoreServer>(new TcpStoreServer(std::move(endpoint), std::move(loop)));
}

absl::StatusOr<std::unique_ptr<TcpStoreClient>> TcpStoreClient::Connect(const Endpoint& server,
                                                                        const JobSecret& secret,
                                                                        absl::Duration timeout) {
  std::unique_ptr<TcpStoreClient> client(new TcpStoreClient(server, secret));
  MEGATRON_ASSIGN_OR_RETURN(Socket socket,
                            ConnectToJob(server, secret, ChannelId(), SteadyNow() + timeout),
                            _.SetPrepend() << "the job's store: ");
  MEGATRON_ASSIGN_OR_RETURN(const Endpoint local, LocalEndpoint(socket));
  client->local_host_ = local.host;
  absl::MutexLock lock(&client->mutex_);
  client->idle_.push_back(std::move(socket));
  return client;
}

absl::StatusOr<Socket> TcpStoreClient::TakeConnection() {
  // A call that is over, or another part of the process, may give a descriptor back. A server to
  // which very many connect at once drops those that it has not come to.
  const absl::Time until = SteadyNow() + kAnswerTime;
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (!idle_.empty()) {
        Socket socket = std::move(idle_.back());
        idle_.pop_back();
        return socket;
      }
    }
    absl::StatusOr<Socket> socket = ConnectTcp(server_, SteadyNow() + kAnswerTime);
    absl::Status status = socket.status();
    bool may_come = absl::IsResourceExhausted(status);
    if (status.ok()) {
      status = ProveAsConnector(*socket, secret_, ChannelId(), SteadyNow() + kAnswerTime);
      if (status.ok()) return socket;
      may_come = absl::IsUnavailable(status);
    }
    if (!may_come || SteadyNow() >= until) return status;
    absl::SleepFor(kRetryPause);
  }
}

// A connection on which anything went wrong is dropped: an answer might still come on it.
absl::StatusOr<StoreReply> TcpStoreClient::Request(const StoreRequest& request) {
  const auto ask = [&]() -> absl::StatusOr<StoreReply> {
    MEGATRON_ASSIGN_OR_RETURN(Socket socket, TakeConnection());
    MEGATRON_ASSIGN_OR_RETURN(StoreReply reply, Ask(socket, request));
    absl::MutexLock lock(&mutex_);
    idle_.push_back(std::move(socket));
    return reply;
  };
  absl::StatusOr<StoreReply> reply = ask();
  if (reply.ok()) return reply;
  return Lost(reply.status());
}

// Whatever it is, the store is lost to us.
absl::Status TcpStoreClient::Lost(const absl::Status& status) const {
  return absl::UnavailableError(
      absl::StrCat("the job's store at ", server_.ToString(), ": ", status.message()));
}

absl::Status TcpStoreClient::Set(absl::string_view key, absl::string_view value) {
  MEGATRON_ASSIGN_OR_RETURN(const StoreRequest request,
                            RequestOf(StoreOperation::kSet, key, value));
  MEGATRON_ASSIGN_OR_RETURN(const StoreReply reply, Request(request));
  return reply.status;
}

absl::Status TcpStoreClient::Hold(absl::string_view key, absl::string_view value) {
  MEGATRON_ASSIGN_OR_RETURN(const StoreRequest request,
                            RequestOf(StoreOperation::kHold, key, value));
  absl::MutexLock lock(&hold_mutex_);
  if (!holder_.valid()) {
    absl::StatusOr<Socket> socket = TakeConnection();
    if (!socket.ok()) return Lost(socket.status());
    holder_ = *std::move(socket);
  }
  const absl::StatusOr<StoreReply> reply = Ask(holder_, request);
  if (reply.ok()) return reply->status;
  holder_.Close();
  return Lost(reply.status());
}

absl::StatusOr<std::string> TcpStoreClient::Get(absl::string_view key, absl::Duration timeout) {
  MEGATRON_ASSIGN_OR_RETURN(StoreRequest request, RequestOf(StoreOperation::kGet, key));
  request.timeout = timeout;
  MEGATRON_ASSIGN_OR_RETURN(StoreReply reply, Request(request));
  if (!reply.status.ok()) return reply.status;
  return std::move(reply.value);
}

absl::StatusOr<int64_t> TcpStoreClient::Add(absl::string_view key, int64_t delta) {
  MEGATRON_ASSIGN_OR_RETURN(StoreRequest request, RequestOf(StoreOperation::kAdd, key));
  request.delta = delta;
  MEGATRON_ASSIGN_OR_RETURN(const StoreReply reply, Request(request));
  if (!reply.status.ok()) return reply.status;
  return reply.count;
}

// Waits for the keys in pieces that fit a frame.
absl::Status TcpStoreClient::Wait(absl::Span<const std::string> keys, absl::Duration timeout) {
  for (const std::string& key : keys) MEGATRON_RETURN_IF_ERROR(CheckStoreSizes(key, ""));
  const absl::Time deadline = SteadyNow() + timeout;
  for (size_t begin = 0; begin < keys.size();) {
    StoreRequest request;
    request.operation = StoreOperation::kWait;
    request.timeout = begin == 0 ? timeout : deadline - SteadyNow();
    for (size_t bytes = 0; begin < keys.size() && bytes < kMaxStoreValue / 2; ++begin) {
      request.keys.push_back(keys[begin]);
      bytes += keys[begin].size() + sizeof(uint32_t);
    }
    MEGATRON_ASSIGN_OR_RETURN(const StoreReply reply, Request(request));
    MEGATRON_RETURN_IF_ERROR(reply.status);
  }
  return absl::OkStatus();
}

}  // namespace megatron
