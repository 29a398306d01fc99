#include "megatron/comm/link_proxy/link_proxy.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <deque>
#include <list>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/memory/memory.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/steady_now.h"
#include "megatron/comm/socket/wake_event.h"

namespace megatron {
namespace {

constexpr size_t kPieceBytes = 1 << 14;
constexpr double kPacketBytes = 1448;  // the data of a packet in an Ethernet frame
// Data may wait so long for the link's rate before its sender has to wait.
constexpr absl::Duration kQueue = absl::Milliseconds(20);
constexpr size_t kMostPieces = 4096;  // the most that a connection has on their way
constexpr absl::Duration kConnectTime = absl::Seconds(5);
constexpr absl::Duration kRequestTime = absl::Seconds(10), kAskTime = absl::Seconds(30);
constexpr size_t kMostRequestBytes = 512;

// The data of a connection that goes one way.
struct Direction {
  struct Piece {
    absl::Time due;
    std::string bytes;
    size_t sent = 0;
  };

  Socket* from = nullptr;
  Socket* to = nullptr;
  int from_host = 0, to_host = 0;
  std::deque<Piece> pieces;
  absl::Time last_due = absl::InfinitePast();
  bool ended = false;   // its sender makes no more
  bool passed = false;  // its receiver knows that
};

struct Connection {
  Socket near, far;
  std::array<Direction, 2> directions;
  bool broken = false;

  bool ended() const { return broken || (directions[0].passed && directions[1].passed); }
};

class LinkProxyImpl : public LinkProxy {
 public:
  LinkProxyImpl(const LinkOptions& options, WakeEvent wake)
      : options_(options), wake_(std::move(wake)), random_(options.seed) {
    thread_ = std::thread([this] { Run(); });
  }

  ~LinkProxyImpl() override {
    {
      absl::MutexLock lock(&mutex_);
      stop_ = true;
    }
    wake_.Set();
    thread_.join();
  }

  absl::StatusOr<Endpoint> Route(int from, int at, const Endpoint& to) override {
    MEGATRON_ASSIGN_OR_RETURN(Socket listener, ListenTcp({"127.0.0.1", 0}));
    MEGATRON_ASSIGN_OR_RETURN(const Endpoint endpoint, LocalEndpoint(listener));
    absl::MutexLock lock(&mutex_);
    doors_.push_back({std::move(listener), from, at, to});
    wake_.Set();
    return endpoint;
  }

  void Cut(int host) override {
    absl::MutexLock lock(&mutex_);
    links_[host].cut = true;
    wake_.Set();
  }

  int64_t BytesFrom(int host) const override {
    absl::MutexLock lock(&mutex_);
    const auto link = links_.find(host);
    return link == links_.end() ? 0 : link->second.sent;
  }

 private:
  // A place where connections of one route are taken.
  struct Door {
    Socket listener;
    int from = 0, at = 0;
    Endpoint to;
  };
  // A host's link, and when each direction of it is free again.
  struct Link {
    absl::Time out_free = absl::InfinitePast(), in_free = absl::InfinitePast();
    int64_t sent = 0;
    bool cut = false;
  };

  void Run() {
    std::vector<pollfd> entries;
    while (true) {
      absl::Time next;
      {
        absl::MutexLock lock(&mutex_);
        if (stop_) return;
        EndConnections();
        next = CollectEntries(&entries);
      }
      const absl::Duration wait =
          std::clamp(next - SteadyNow(), absl::ZeroDuration(), absl::Seconds(60));
      const timespec timeout = absl::ToTimespec(wait);
      ppoll(entries.data(), entries.size(), &timeout, nullptr);
      wake_.Clear();
      absl::MutexLock lock(&mutex_);
      Accept();
      for (Connection& connection : connections_) {
        for (Direction& direction : connection.directions) {
          if (!connection.broken) Serve(&connection, &direction);
        }
      }
      // Each has its turn to be first.
      if (!connections_.empty()) {
        connections_.splice(connections_.end(), connections_, connections_.begin());
      }
    }
  }

  void EndConnections() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    connections_.remove_if([&](const Connection& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      const Direction& way = connection.directions[0];
      return connection.ended() || links_[way.from_host].cut || links_[way.to_host].cut;
    });
  }

  // Returns when there is something to do, whatever the sockets do.
  absl::Time CollectEntries(std::vector<pollfd>* entries) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const absl::Time now = SteadyNow();
    absl::Time next = absl::InfiniteFuture();
    entries->assign(1, {wake_.fd(), POLLIN, 0});
    for (const Door& door : doors_) entries->push_back({door.listener.fd(), POLLIN, 0});
    for (const Connection& connection : connections_) {
      for (const Direction& direction : connection.directions) {
        const absl::Time readable = MayRead(direction);
        if (!direction.ended && readable <= now) {
          entries->push_back({direction.from->fd(), POLLIN, 0});
        } else if (!direction.ended) {
          next = std::min(next, readable);
        }
        if (direction.pieces.empty()) continue;
        if (direction.pieces.front().due > now) {
          next = std::min(next, direction.pieces.front().due);
        } else {
          entries->push_back({direction.to->fd(), POLLOUT, 0});
        }
      }
    }
    return next;
  }

  // Returns when the links of both ends have room. A receiver that takes nothing is waited for.
  absl::Time MayRead(const Direction& direction) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (direction.pieces.size() >= kMostPieces) return absl::InfiniteFuture();
    if (options_.bytes_per_second == 0) return absl::InfinitePast();
    return std::max(links_[direction.from_host].out_free,
                    links_[direction.to_host].in_free - options_.delay) -
           kQueue;
  }

  void Accept() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const Door& door : doors_) {
      while (true) {
        absl::StatusOr<Socket> accepted = AcceptTcp(door.listener);
        if (!accepted.ok() || !accepted->valid()) break;
        if (links_[door.from].cut || links_[door.at].cut) continue;  // it is closed
        absl::StatusOr<Socket> far = ConnectTcp(door.to, SteadyNow() + kConnectTime);
        if (!far.ok()) continue;
        connections_.emplace_back();
        Connection& connection = connections_.back();
        connection.near = *std::move(accepted);
        connection.far = *std::move(far);
        connection.directions[0].from = connection.directions[1].to = &connection.near;
        connection.directions[0].to = connection.directions[1].from = &connection.far;
        connection.directions[0].from_host = connection.directions[1].to_host = door.from;
        connection.directions[0].to_host = connection.directions[1].from_host = door.at;
      }
    }
  }

  void Serve(Connection* connection, Direction* direction) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const absl::Time now = SteadyNow();
    if (!direction->ended && MayRead(*direction) <= now) Read(connection, direction, now);
    while (!direction->pieces.empty() && direction->pieces.front().due <= now) {
      Direction::Piece& piece = direction->pieces.front();
      const ssize_t sent = send(direction->to->fd(), piece.bytes.data() + piece.sent,
                                piece.bytes.size() - piece.sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0) {
        connection->broken |= errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR;
        return;
      }
      piece.sent += sent;
      if (piece.sent == piece.bytes.size()) direction->pieces.pop_front();
    }
    if (direction->ended && direction->pieces.empty() && !direction->passed) {
      shutdown(direction->to->fd(), SHUT_WR);
      direction->passed = true;
    }
  }

  void Read(Connection* connection, Direction* direction, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::string bytes(kPieceBytes, '\0');
    const ssize_t got = recv(direction->from->fd(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0) {
      connection->broken |= errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR;
      return;
    }
    if (got == 0) {
      direction->ended = true;
      return;
    }
    bytes.resize(got);
    Link& out = links_[direction->from_host];
    Link& in = links_[direction->to_host];
    out.sent += got;
    absl::Time due = now + options_.delay;
    if (options_.bytes_per_second > 0) {
      const absl::Duration time = absl::Seconds(got / options_.bytes_per_second);
      const absl::Time leaves = std::max(now, out.out_free);
      out.out_free = leaves + time;
      in.in_free = std::max(leaves + options_.delay, in.in_free) + time;
      due = in.in_free;
    }
    if (options_.jitter > absl::ZeroDuration()) due += options_.jitter * Chance();
    const double packets = std::ceil(got / kPacketBytes);
    if (options_.loss > 0 && Chance() < 1 - std::pow(1 - options_.loss, packets)) {
      due += options_.retransmission_timeout;
    }
    direction->last_due = std::max(due, direction->last_due);
    direction->pieces.push_back({direction->last_due, std::move(bytes), 0});
  }

  double Chance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return std::uniform_real_distribution<double>()(random_);
  }

  const LinkOptions options_;
  const WakeEvent wake_;
  mutable absl::Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::mt19937_64 random_ ABSL_GUARDED_BY(mutex_);
  std::list<Door> doors_ ABSL_GUARDED_BY(mutex_);
  std::list<Connection> connections_ ABSL_GUARDED_BY(mutex_);
  std::map<int, Link> links_ ABSL_GUARDED_BY(mutex_);  // by host
  std::thread thread_;
};

// Reads up to the end of a line, which the result lacks.
absl::StatusOr<std::string> ReadLine(const Socket& socket, absl::Time deadline) {
  std::string line;
  while (line.size() < kMostRequestBytes) {
    char byte;
    MEGATRON_RETURN_IF_ERROR(ReceiveAll(socket, &byte, 1, deadline));
    if (byte == '\n') return line;
    line += byte;
  }
  return absl::InvalidArgumentError("a line that is too long");
}

absl::StatusOr<Endpoint> Answer(const std::string& request, LinkProxy* proxy) {
  const std::vector<std::string> words = absl::StrSplit(request, ' ');
  int from = 0, at = 0;
  if (words.size() != 3 || !absl::SimpleAtoi(words[0], &from) || !absl::SimpleAtoi(words[1], &at)) {
    return absl::InvalidArgumentError("a request is HOST HOST ADDRESS");
  }
  MEGATRON_ASSIGN_OR_RETURN(const Endpoint to, Endpoint::Parse(words[2]));
  return proxy->Route(from, at, to);
}

// Answers other processes, which ask for routes, until the listener fails.
absl::Status Serve(const Socket& listener, LinkProxy* proxy) {
  while (true) {
    pollfd entry = {listener.fd(), POLLIN, 0};
    if (poll(&entry, 1, -1) < 0 && errno != EINTR) return absl::ErrnoToStatus(errno, "poll");
    MEGATRON_ASSIGN_OR_RETURN(const Socket asker, AcceptTcp(listener));
    if (!asker.valid()) continue;
    const absl::Time deadline = SteadyNow() + kRequestTime;
    const absl::StatusOr<std::string> request = ReadLine(asker, deadline);
    if (!request.ok()) continue;  // it has given up
    const absl::StatusOr<Endpoint> route = Answer(*request, proxy);
    const std::string answer = route.ok() ? absl::StrCat("ok ", route->ToString(), "\n")
                                          : absl::StrCat("no ", route.status().message(), "\n");
    SendAll(asker, answer, deadline).IgnoreError();
  }
}

// Asks the process at `server` for a route.
absl::StatusOr<Endpoint> Ask(const Endpoint& server, int from, int at, const Endpoint& to) {
  const absl::Time deadline = SteadyNow() + kAskTime;
  MEGATRON_ASSIGN_OR_RETURN(const Socket socket, ConnectTcp(server, deadline),
                            _ << "while asking the link's proxy at " << server.ToString());
  MEGATRON_RETURN_IF_ERROR(
      SendAll(socket, absl::StrCat(from, " ", at, " ", to.ToString(), "\n"), deadline));
  MEGATRON_ASSIGN_OR_RETURN(const std::string answer, ReadLine(socket, deadline));
  if (answer.substr(0, 3) != "ok ") {
    return absl::InternalError(
        absl::StrCat("the link's proxy at ", server.ToString(), " answers '", answer, "'"));
  }
  return Endpoint::Parse(answer.substr(3));
}

}  // namespace

absl::StatusOr<std::unique_ptr<LinkProxy>> LinkProxy::Create(const LinkOptions& options) {
  if (options.delay < absl::ZeroDuration() || options.jitter < absl::ZeroDuration() ||
      options.retransmission_timeout < absl::ZeroDuration()) {
    return absl::InvalidArgumentError("the times of a link are not negative");
  }
  if (!(options.bytes_per_second >= 0) || !std::isfinite(options.bytes_per_second)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a link's rate of ", options.bytes_per_second, " bytes a second is none"));
  }
  if (!(options.loss >= 0 && options.loss < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a link loses from 0 to less than 1 of its packets, not ", options.loss));
  }
  MEGATRON_ASSIGN_OR_RETURN(WakeEvent wake, WakeEvent::Create());
  return std::make_unique<LinkProxyImpl>(options, std::move(wake));
}

LinkRoute LinkProxy::RouteOf(int rank, std::vector<int> hosts) {
  return [this, rank, hosts = std::move(hosts)](int peer,
                                                const Endpoint& to) -> absl::StatusOr<Endpoint> {
    if (hosts[rank] == hosts[peer]) return to;
    return Route(hosts[rank], hosts[peer], to);
  };
}

absl::StatusOr<std::unique_ptr<LinkProcess>> LinkProcess::Start(const LinkOptions& options) {
  MEGATRON_RETURN_IF_ERROR(LinkProxy::Create(options).status());
  MEGATRON_ASSIGN_OR_RETURN(const Socket listener, ListenTcp({"127.0.0.1", 0}));
  MEGATRON_ASSIGN_OR_RETURN(const Endpoint server, LocalEndpoint(listener));
  const pid_t child = fork();
  if (child < 0) return absl::ErrnoToStatus(errno, "fork");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const auto proxy = LinkProxy::Create(options);
    if (proxy.ok()) Serve(listener, proxy->get()).IgnoreError();
    _exit(1);
  }
  return absl::WrapUnique(new LinkProcess(child, server));
}

LinkProcess::~LinkProcess() {
  kill(child_, SIGKILL);
  while (waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

LinkRoute LinkProcess::RouteOf(int rank, std::vector<int> hosts) const {
  return [server = server_, rank, hosts = std::move(hosts)](
             int peer, const Endpoint& to) -> absl::StatusOr<Endpoint> {
    if (hosts[rank] == hosts[peer]) return to;
    return Ask(server, hosts[rank], hosts[peer], to);
  };
}

}  // namespace megatron
