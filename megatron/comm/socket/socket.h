// TCP sockets with deadlines instead of blocking, and Status instead of errno.
//
// All sockets are non-blocking and closed on exec. Waiting ends at a deadline with
// kDeadlineExceeded; a peer that is not there or has gone gives kUnavailable.
#ifndef MEGATRON_COMM_SOCKET_SOCKET_H_
#define MEGATRON_COMM_SOCKET_SOCKET_H_

#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace megatron {

// A host's name or address, and a port.
struct Endpoint {
  std::string host;
  int port = 0;

  std::string ToString() const;  // "10.0.0.1:29500", "[::1]:29500"
  static absl::StatusOr<Endpoint> Parse(absl::string_view text);
};

// Owns a file descriptor.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket() { Close(); }

  int fd() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Close();

 private:
  int fd_ = -1;
};

// The next three return kResourceExhausted where no descriptor is free.
//
// Port 0 asks for any free one.
absl::StatusOr<Socket> ListenTcp(const Endpoint& at);
// Makes one attempt at each of the host's addresses, which share out the time.
absl::StatusOr<Socket> ConnectTcp(const Endpoint& to, absl::Time deadline);
// An accepted connection, ready for use; an invalid Socket if none is waiting.
absl::StatusOr<Socket> AcceptTcp(const Socket& listener);

// This side's address, with the number of the port.
absl::StatusOr<Endpoint> LocalEndpoint(const Socket& socket);
// Returns "10.0.0.1:29500", or "?" for a connection that is gone.
std::string PeerText(const Socket& socket);

absl::Status SendAll(const Socket& socket, absl::string_view bytes, absl::Time deadline);
absl::Status ReceiveAll(const Socket& socket, char* bytes, size_t size, absl::Time deadline);

// Returns the timeout for poll(): at least 1 ms while there is time, so that waits do not spin; at
// most `longest`.
int PollMilliseconds(absl::Time deadline, absl::Duration longest);

}  // namespace megatron

#endif  // MEGATRON_COMM_SOCKET_SOCKET_H_
