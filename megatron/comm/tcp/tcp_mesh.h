// The data connections of one rank to all others of a TcpWorld, and the thread that serves them.
// The control connections are in tcp_control.h, the collectives in tcp_call.h and tcp_exchange.h.
//
// Data connections carry calls and tensors and may be held up by a receiver that is not ready.
// Senders write from their own threads as far as the socket takes it; the rest is written, and
// everything is read, by the thread of the mesh.
//
// Tensors are received in place: a rank that lets another one send data has named the memory before
// (ReceiveData), so that data is never stored in between and never blocks what comes behind it.
//
// A failure of the world ends every wait, and then the mesh touches no memory of callers. If a rank
// hangs while it holds the lock of the mesh, the waits of that process do not end: status() tells
// of the failure all the same, and the monitor has to end the process.
//
// Threads: all methods may be called by any thread; each TcpOperation belongs to one.
#ifndef MEGATRON_COMM_TCP_TCP_MESH_H_
#define MEGATRON_COMM_TCP_TCP_MESH_H_

#include <poll.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "megatron/comm/socket/job_secret.h"
#include "megatron/comm/socket/socket.h"
#include "megatron/comm/socket/wake_event.h"
#include "megatron/comm/store/store.h"
#include "megatron/comm/tcp/tcp_channel.h"
#include "megatron/comm/tcp/tcp_connect.h"
#include "megatron/comm/tcp/tcp_control.h"
#include "megatron/comm/tcp/tcp_frame.h"
#include "megatron/comm/watch/call_activity.h"

namespace megatron {

// Identifies a message, or a part of a tensor, in transit from `peer` or to it.
struct MessageKey {
  FrameKind kind = FrameKind::kCall;
  int peer = 0;  // world rank
  uint64_t group = 0;
  uint64_t sequence = 0;
  uint32_t tag = 0;

  template <typename H>
  friend H AbslHashValue(H h, const MessageKey& key) {
    return H::combine(std::move(h), key.kind, key.peer, key.group, key.sequence, key.tag);
  }
  friend bool operator==(const MessageKey& a, const MessageKey& b) {
    return std::tie(a.kind, a.peer, a.group, a.sequence, a.tag) ==
           std::tie(b.kind, b.peer, b.group, b.sequence, b.tag);
  }
};

class TcpMesh {
 public:
  static absl::StatusOr<std::shared_ptr<TcpMesh>> Connect(Store* store, const JobSecret& secret,
                                                          const TcpWorldOptions& options);
  ~TcpMesh();

  int rank() const { return options_.rank; }
  int size() const { return options_.size; }
  const TcpWorldOptions& options() const { return options_; }

  absl::Status status() const { return control_.status(); }
  // Fails the whole world, on all ranks, and ends this rank's calls before it returns.
  void Fail(const absl::Status& reason);
  // Fails the whole world without waiting: this rank's calls end soon after.
  void Abort(const absl::Status& reason) { control_.Fail(reason); }
  TcpControl& control() { return control_; }
  CallActivities* activities() { return &activities_; }
  // Says goodbye, waits until everything sent has arrived, and ends all connections.
  void Leave();

  // Returns whether `peer` has said that it makes no more calls.
  bool has_left(int peer) const;
  // Returns whether nothing that this rank has sent is in transit, and it has read all that has
  // arrived. It waits for no thread that hangs.
  bool Idle() const;

  // Sends a message, which the receiver keeps until a call takes it.
  void Send(const MessageKey& key, std::string message);
  // Waits for one of the messages and takes it. kDeadlineExceeded: none came in time. kUnavailable:
  // a rank that has to send one of them has left. Else the status of the world, which has failed.
  struct Received {
    size_t index = 0;  // index of its key
    std::string message;
  };
  absl::StatusOr<Received> ReceiveAny(absl::Span<const MessageKey> keys, absl::Time deadline);

  // Sends a part of a tensor. The memory must stay, and not change, until the operation has been
  // waited for or the world has failed.
  void SendData(const MessageKey& key, const char* data, size_t bytes, TcpOperation* operation);
  // Receives a part of a tensor. It must be called before the message that lets the peer send.
  void ReceiveData(const MessageKey& key, char* data, size_t bytes, TcpOperation* operation);
  // Waits until all parts have been sent and received. kDeadlineExceeded and kUnavailable are those
  // of ReceiveAny.
  absl::Status Await(TcpOperation* operation, absl::Time deadline);
  // Returns the world ranks that parts are missing from or cannot be sent to.
  std::vector<int> AwaitedPeers(const TcpOperation* operation) const;

 private:
  struct Peer {
    Peer(int rank, Socket socket) : rank(rank), data(std::move(socket)) {}

    const int rank;
    TcpChannel data;
    bool left = false;  // it has said goodbye, and all that it had sent has been read
  };
  struct Expected {
    char* data = nullptr;
    size_t bytes = 0;
    TcpOperation* operation = nullptr;
  };

  TcpMesh(const TcpWorldOptions& options, std::vector<TcpPeerSockets> sockets, WakeEvent wake,
          WakeEvent wake_control);

  void Run();
  void CollectEntries(std::vector<pollfd>* entries) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Serve(Peer* peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<TcpChannel::Target> Begin(const Peer& peer, const FrameHeader& header)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Finish(Peer* peer, const FrameHeader& header, std::string message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Left(Peer* peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends all calls after a failure of the world.
  void EndCalls() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool over() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return ended_ || stop_; }
  absl::Status WhyOver() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void Enqueue(TcpChannel* channel, TcpOutFrame frame) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits in short steps, so that those who watch this thread see that it lives.
  bool AwaitUntil(const absl::Condition& condition, absl::Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AllArrived() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const TcpWorldOptions options_;
  const WakeEvent wake_;
  CallActivities activities_;
  TcpControl control_;
  mutable absl::Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;  // a failure has ended all calls
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool any_left_ ABSL_GUARDED_BY(mutex_) = false;
  // The peers by world rank; null for this rank. Their contents are guarded by mutex_.
  std::vector<std::unique_ptr<Peer>> peers_;
  absl::flat_hash_map<MessageKey, std::string> messages_ ABSL_GUARDED_BY(mutex_);
  size_t message_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<MessageKey, Expected> expected_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_TCP_TCP_MESH_H_
