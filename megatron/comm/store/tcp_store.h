// A Store for ranks that are processes, on one host or several: a server in one of them, or beside
// them, and a client in each.
//
// Client and server prove to each other that they know the job's secret before anything is read
// (handshake.h). Strangers and clients that break off or fall silent disturb no other client.
//
//   auto server = TcpStoreServer::Create({"127.0.0.1", 0}, secret);       // in one process
//   auto store = TcpStoreClient::Connect((*server)->endpoint(), secret, absl::Seconds(60));
#ifndef MEGATRON_COMM_STORE_TCP_STORE_H_
#define MEGATRON_COMM_STORE_TCP_STORE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "megatron/comm/socket/job_secret.h"
#include "megatron/comm/socket/socket.h"
#include "megatron/comm/store/store.h"
#include "megatron/comm/store/store_protocol.h"

namespace megatron {

// Serves from a thread of its own until it is destroyed; then its clients get kUnavailable.
class TcpStoreServer {
 public:
  // Port 0 means any; see endpoint(). The host decides who can reach it: "127.0.0.1" for this
  // machine alone, "0.0.0.0" for all interfaces.
  static absl::StatusOr<std::unique_ptr<TcpStoreServer>> Create(const Endpoint& at,
                                                                const JobSecret& secret);
  // Serves on a socket that listens already.
  static absl::StatusOr<std::unique_ptr<TcpStoreServer>> Create(Socket listener,
                                                                const JobSecret& secret);
  ~TcpStoreServer();

  const Endpoint& endpoint() const { return endpoint_; }

 private:
  class Loop;
  TcpStoreServer(Endpoint endpoint, std::unique_ptr<Loop> loop);

  const Endpoint endpoint_;
  const std::unique_ptr<Loop> loop_;
};

// Each call that runs at the same time as others has a connection of its own, so that a Get that
// waits holds up no Set.
class TcpStoreClient : public Store {
 public:
  // Tries again until the server is there. kUnauthenticated, at once, if it has another secret.
  static absl::StatusOr<std::unique_ptr<TcpStoreClient>> Connect(const Endpoint& server,
                                                                 const JobSecret& secret,
                                                                 absl::Duration timeout);

  absl::Status Set(absl::string_view key, absl::string_view value) override;
  absl::Status Hold(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) override;
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta) override;
  absl::Status Wait(absl::Span<const std::string> keys, absl::Duration timeout) override;

  // This process's address on the way to the server: where others on its network can reach it.
  const std::string& local_host() const { return local_host_; }

 private:
  TcpStoreClient(Endpoint server, JobSecret secret)
      : server_(std::move(server)), secret_(std::move(secret)) {}

  absl::StatusOr<Socket> TakeConnection();
  absl::StatusOr<StoreReply> Request(const StoreRequest& request);
  // Returns the error of a call whose connection has failed.
  absl::Status Lost(const absl::Status& status) const;

  const Endpoint server_;
  const JobSecret secret_;
  std::string local_host_;
  absl::Mutex mutex_;
  std::vector<Socket> idle_ ABSL_GUARDED_BY(mutex_);
  absl::Mutex hold_mutex_;
  Socket holder_ ABSL_GUARDED_BY(hold_mutex_);  // the connection that holds a key
};

}  // namespace megatron

#endif  // MEGATRON_COMM_STORE_TCP_STORE_H_
