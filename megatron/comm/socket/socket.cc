#include "megatron/comm/socket/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/steady_now.h"

namespace megatron {
namespace {

constexpr int kBacklog = 1024;

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

absl::StatusOr<Addresses> Resolve(const Endpoint& endpoint, int flags) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(endpoint.host.c_str(), absl::StrCat(endpoint.port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("no address for '", endpoint.host, "': ", gai_strerror(error)));
  }
  return Addresses(found, freeaddrinfo);
}

absl::Status Error(const char* what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

// The error of a call that gives a descriptor.
absl::Status DescriptorError(const char* what) {
  switch (errno) {
    case EMFILE:
      return absl::ResourceExhaustedError(
          absl::StrCat(what, ": ", std::strerror(errno), ": raise the limit (ulimit -n)"));
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
      return absl::ResourceExhaustedError(absl::StrCat(what, ": ", std::strerror(errno)));
    default:
      return Error(what);
  }
}

Socket NewSocket(const addrinfo& address) {
  return Socket(socket(address.ai_family, address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC,
                       address.ai_protocol));
}

// Small messages leave at once.
void SetNoDelay(const Socket& socket) {
  const int yes = 1;
  setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
}

absl::Status WaitFor(const Socket& socket, short events, absl::Time deadline) {
  while (true) {
    pollfd entry = {socket.fd(), events, 0};
    const int ready = poll(&entry, 1, PollMilliseconds(deadline, absl::Seconds(60)));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return Error("poll");
    if (SteadyNow() >= deadline) return absl::DeadlineExceededError("the time is over");
  }
}

absl::StatusOr<Socket> ConnectTo(const addrinfo& address, absl::Time deadline) {
  Socket socket = NewSocket(address);
  if (!socket.valid()) return DescriptorError("socket");
  if (connect(socket.fd(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return Error("connect");
    MEGATRON_RETURN_IF_ERROR(WaitFor(socket, POLLOUT, deadline));
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
    errno = error;
    if (error != 0) return Error("connect");
  }
  SetNoDelay(socket);
  return socket;
}

absl::StatusOr<Endpoint> FromSockaddr(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
    return Endpoint{text, ntohs(v4.sin_port)};
  }
  if (address.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
    return Endpoint{text, ntohs(v6.sin6_port)};
  }
  return absl::InternalError("not an address of the Internet");
}

}  // namespace

std::string Endpoint::ToString() const {
  if (absl::StrContains(host, ':')) return absl::StrCat("[", host, "]:", port);
  return absl::StrCat(host, ":", port);
}

absl::StatusOr<Endpoint> Endpoint::Parse(absl::string_view text) {
  Endpoint endpoint;
  const size_t colon = text.rfind(':');
  absl::string_view host = text.substr(0, colon);
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]")) {
    host = host.substr(1, host.size() - 2);
  }
  if (colon == absl::string_view::npos || host.empty() ||
      !absl::SimpleAtoi(text.substr(colon + 1), &endpoint.port) || endpoint.port < 0 ||
      endpoint.port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not HOST:PORT"));
  }
  endpoint.host = std::string(host);
  return endpoint;
}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    Close();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void Socket::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

absl::StatusOr<Socket> ListenTcp(const Endpoint& at) {
  MEGATRON_ASSIGN_OR_RETURN(const Addresses addresses, Resolve(at, AI_PASSIVE));
  Socket socket = NewSocket(*addresses);
  if (!socket.valid()) return DescriptorError("socket");
  const int yes = 1;
  setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (bind(socket.fd(), addresses->ai_addr, addresses->ai_addrlen) != 0 ||
      listen(socket.fd(), kBacklog) != 0) {
    return Error(absl::StrCat("listen at ", at.ToString()).c_str());
  }
  return socket;
}

absl::StatusOr<Socket> ConnectTcp(const Endpoint& to, absl::Time deadline) {
  MEGATRON_ASSIGN_OR_RETURN(const Addresses addresses, Resolve(to, 0));
  int left = 0;
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next)
    ++left;
  absl::Status failure;
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    // Where packets to one address are dropped silently, as those to an IPv6 address may be, the
    // next one has time, too.
    const absl::Time now = SteadyNow();
    absl::StatusOr<Socket> socket = ConnectTo(*address, now + (deadline - now) / left--);
    if (socket.ok()) return socket;
    failure = socket.status();
  }
  return absl::Status(failure.code(), absl::StrCat(to.ToString(), ": ", failure.message()));
}

absl::StatusOr<Socket> AcceptTcp(const Socket& listener) {
  Socket socket(accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (socket.valid()) {
    SetNoDelay(socket);
    return socket;
  }
  switch (errno) {
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
      return DescriptorError("accept");
    default:  // nobody, or somebody who has gone again
      return Socket();
  }
}

absl::StatusOr<Endpoint> LocalEndpoint(const Socket& socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return Error("getsockname");
  }
  return FromSockaddr(address);
}

std::string PeerText(const Socket& socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (getpeername(socket.fd(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return "?";
  const absl::StatusOr<Endpoint> endpoint = FromSockaddr(address);
  return endpoint.ok() ? endpoint->ToString() : "?";
}

absl::Status SendAll(const Socket& socket, absl::string_view bytes, absl::Time deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(sent);
    } else if (errno == EAGAIN) {
      MEGATRON_RETURN_IF_ERROR(WaitFor(socket, POLLOUT, deadline));
    } else if (errno != EINTR) {
      return Error("send");
    }
  }
  return absl::OkStatus();
}

absl::Status ReceiveAll(const Socket& socket, char* bytes, size_t size, absl::Time deadline) {
  while (size > 0) {
    const ssize_t got = recv(socket.fd(), bytes, size, 0);
    if (got > 0) {
      bytes += got;
      size -= got;
    } else if (got == 0) {
      return absl::UnavailableError("the connection was closed");
    } else if (errno == EAGAIN) {
      MEGATRON_RETURN_IF_ERROR(WaitFor(socket, POLLIN, deadline));
    } else if (errno != EINTR) {
      return Error("receive");
    }
  }
  return absl::OkStatus();
}

int PollMilliseconds(absl::Time deadline, absl::Duration longest) {
  const absl::Duration left = std::min(deadline - SteadyNow(), longest);
  if (left <= absl::ZeroDuration()) return 0;
  return static_cast<int>(absl::ToInt64Milliseconds(left)) + 1;
}

}  // namespace megatron
