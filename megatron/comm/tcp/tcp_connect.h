// Connects the ranks of a TcpWorld, each to all others. They find each other through a Store.
#ifndef MEGATRON_COMM_TCP_TCP_CONNECT_H_
#define MEGATRON_COMM_TCP_TCP_CONNECT_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "megatron/comm/socket/job_secret.h"
#include "megatron/comm/socket/socket.h"
#include "megatron/comm/store/store.h"

namespace megatron {

struct TcpWorldOptions {
  int rank = 0;
  int size = 1;
  // Distinguishes the worlds of one store: a name is good for one of them.
  std::string name = "world";
  // The address at which this rank listens while the world is made, and at which the others reach
  // it: one of this machine's, TcpStoreClient::local_host() for example.
  std::string host = "127.0.0.1";
  // Returns where this rank reaches another rank's address. Null: at that address. Tests and
  // benchmarks lead connections through a slow link (link_proxy/link_proxy.h).
  std::function<absl::StatusOr<Endpoint>(int peer, const Endpoint& address)> route;
  // The longest time until all ranks have arrived.
  absl::Duration connect_deadline = absl::Minutes(5);
  // on_waiting is called with the ranks that have not arrived yet, first after this time, then when
  // twice as much has passed, and so on. It is called on rank 0, to which all others connect. May
  // be null.
  std::function<void(const std::vector<int>& missing)> on_waiting;
  absl::Duration first_notice = absl::Seconds(10);
  // Asked every second while ranks are missing, by one thread at a time: true says that they need
  // not be waited for, and the world fails with kCancelled. May be null.
  std::function<bool()> is_over;
  // The longest time that one wait of a call takes.
  absl::Duration deadline = absl::Minutes(10);
  // A rank that gives no sign of life for the limit is lost, whether or not it is waited for. This
  // counts from its first sign, or from when all have arrived.
  absl::Duration heartbeat_interval = absl::Seconds(1);
  absl::Duration silence_limit = absl::Seconds(10);
};

struct TcpPeerSockets {
  Socket data, control;
  std::string address;  // named in messages
};

// Returns the sockets by world rank; this rank's own are invalid. Errors name the ranks that have
// not arrived. kResourceExhausted: this rank could open no connection for seconds.
absl::StatusOr<std::vector<TcpPeerSockets>> ConnectRanks(Store* store, const JobSecret& secret,
                                                         const TcpWorldOptions& options);

}  // namespace megatron

#endif  // MEGATRON_COMM_TCP_TCP_CONNECT_H_
