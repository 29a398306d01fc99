// LinkProxy: a slow network between ranks of one machine, without root. Ranks that have numbered
// *hosts* connect to each other through it.
//
//   MEGATRON_ASSIGN_OR_RETURN(auto proxy, LinkProxy::Create(link));
//   options.route = proxy->RouteOf(rank, hosts);   // each rank's TcpWorldOptions::route
//
// What is modelled. Each host has one link to the network, with a rate in either direction that all
// its connections share, in pieces of up to 16 KiB. A byte arrives `delay` after it has left, and
// `jitter` more at most, in order. A lost packet holds up its connection, as TCP does when only the
// time-out repairs it: what follows arrives that much later.
//
// What is not: TCP's windows and its congestion control, which would also lower the rate after a
// loss, and the repair after three later packets, which takes one round trip only. Connections are
// those of the machine's loopback, whose buffers take some MB before a sender has to wait.
//
// Threads: all methods may be called by any thread.
#ifndef MEGATRON_COMM_LINK_PROXY_LINK_PROXY_H_
#define MEGATRON_COMM_LINK_PROXY_LINK_PROXY_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "megatron/comm/socket/socket.h"

namespace megatron {

struct LinkOptions {
  absl::Duration delay;         // the time from host to host
  absl::Duration jitter;        // the most that chance adds to it
  double bytes_per_second = 0;  // the rate of a host's link in each direction; 0: any
  double loss = 0;              // the probability that a packet of 1448 bytes is lost
  // The time that a lost packet holds up its connection: Linux's shortest time-out.
  absl::Duration retransmission_timeout = absl::Milliseconds(200);
  uint64_t seed = 1;  // the seed of jitter and loss
};

// TcpWorldOptions::route of a rank.
using LinkRoute = std::function<absl::StatusOr<Endpoint>(int peer, const Endpoint& address)>;

class LinkProxy {
 public:
  // Errors of the options say what is wrong with them.
  static absl::StatusOr<std::unique_ptr<LinkProxy>> Create(const LinkOptions& options);
  virtual ~LinkProxy() = default;

  // Returns an address of this machine: what connects there from host `from` reaches `to` on host
  // `at`. It is good until the proxy ends.
  virtual absl::StatusOr<Endpoint> Route(int from, int at, const Endpoint& to) = 0;
  // Cuts a host's link: its connections to other hosts end, and no new one is made.
  virtual void Cut(int host) = 0;
  // Returns the bytes that a host has sent to others, without headers of packets.
  virtual int64_t BytesFrom(int host) const = 0;

  // hosts[r] is the host of rank r. Ranks of one host connect directly.
  LinkRoute RouteOf(int rank, std::vector<int> hosts);
};

// A LinkProxy in a child process, for ranks that are processes. It ends with this object, or with
// the thread that started it.
class LinkProcess {
 public:
  // This process may not have other threads.
  static absl::StatusOr<std::unique_ptr<LinkProcess>> Start(const LinkOptions& options);
  ~LinkProcess();

  // The same as LinkProxy's. Children of this process may use it.
  LinkRoute RouteOf(int rank, std::vector<int> hosts) const;

 private:
  LinkProcess(pid_t child, Endpoint server) : child_(child), server_(std::move(server)) {}

  const pid_t child_;
  const Endpoint server_;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_LINK_PROXY_LINK_PROXY_H_
