// The connections of one rank to all others of a TcpWorld, and the thread that serves them. What
// collectives do with them is tcp_communicator.cc's.
//
// To every other rank there are two connections. *Data* carries calls and tensors and may be held
// up by a receiver that is not ready; *control* carries signs of life, farewells and reasons to
// abort and never is. One thread per rank reads both. Senders write from their own threads as far
// as the socket takes it, and that thread writes the rest.
//
// Tensors are received where they belong: whoever lets another rank send data has named the memory
// before (Receive), so that data is never stored in between and never blocks what comes behind it.
//
// A failure is final. The first one becomes the status, is told to all other ranks, and ends every
// wait; from then on the mesh touches no memory of callers.
//
// Threads: all methods may be called by any thread; each Operation belongs to one.
#ifndef MEGATRON_COMM_TCP_MESH_H_
#define MEGATRON_COMM_TCP_MESH_H_

#include <poll.h>
#include <time.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "megatron/comm/job_secret.h"
#include "megatron/comm/socket.h"
#include "megatron/comm/store.h"
#include "megatron/comm/tcp_channel.h"
#include "megatron/comm/tcp_connect.h"
#include "megatron/comm/tcp_frame.h"

namespace megatron {

// Names a message, or a part of a tensor, on its way from `peer` or to it.
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

  absl::Status status() const;
  // Fails the whole world, on all ranks.
  void Fail(const absl::Status& reason);
  // Called once, at the first failure and before anybody who waits is released, by the thread that
  // found it; it may call nothing of this mesh. Null: none.
  void SetFailureHook(std::function<void(const absl::Status&)> hook);
  // After a failure: the ranks that can still be reached from here, this one among them, ascending.
  std::vector<int> LiveRanks() const;
  // After a failure: what this rank was doing when it came, one line for each of its calls.
  std::vector<std::string> Doing() const;
  // After a failure: gives `state` to the lowest live rank, and there returns those of all, by
  // rank, as far as they have come before the deadline. Elsewhere it returns nothing.
  std::optional<std::map<int, std::string>> GatherStates(std::string state, absl::Time deadline);
  // Says farewell, waits until what was sent has arrived, and ends all connections.
  void Leave();

  // What this rank is doing, for messages about failures, as long as the object lives. `describe`
  // is called by another thread.
  class Activity {
   public:
    Activity(TcpMesh* mesh, absl::FunctionRef<std::string()> describe);
    ~Activity();
    Activity(const Activity&) = delete;
    Activity& operator=(const Activity&) = delete;
    std::string Describe() const { return describe_(); }
    clockid_t clock() const { return clock_; }

   private:
    TcpMesh& mesh_;
    clockid_t clock_;  // the processor time of the thread
    const absl::FunctionRef<std::string()> describe_;
  };

  // Of the threads that are doing something.
  absl::Duration CallersProcessorTime() const;

  // It has said that it makes no more calls.
  bool has_left(int peer) const;

  // A message, which the receiver keeps until somebody takes it.
  void Send(const MessageKey& key, std::string message);
  // Waits for one of these and takes it. kDeadlineExceeded; kUnavailable if a rank that one of them
  // would come from has left; the status of the world, if it has failed.
  struct Received {
    size_t index = 0;  // in the keys
    std::string message;
  };
  absl::StatusOr<Received> ReceiveAny(absl::Span<const MessageKey> keys, absl::Time deadline);

  // A part of a tensor. Memory must stay, and not change, until the operation has been waited for
  // or the world has failed.
  void SendData(const MessageKey& key, const char* data, size_t bytes, TcpOperation* operation);
  // Must come before the message that lets the peer send.
  void ReceiveData(const MessageKey& key, char* data, size_t bytes, TcpOperation* operation);
  // Waits until all parts have been sent and received.
  absl::Status Await(TcpOperation* operation, absl::Time deadline);
  // The world ranks that parts are missing from or cannot be sent to.
  std::vector<int> AwaitedPeers(const TcpOperation* operation) const;

 private:
  struct Peer {
    Peer(int rank, TcpPeerSockets sockets);

    const int rank;
    const std::string address;
    TcpChannel data, control;
    absl::Time last_heard;
    bool said_farewell = false;  // on control
    bool left = false;           // and all that it had to say has been read
    bool data_ended = false;     // at the last tick, without a word
    bool lost = false;           // here, or to another rank that has said so
  };
  struct Expected {
    char* data = nullptr;
    size_t bytes = 0;
    TcpOperation* operation = nullptr;
  };

  TcpMesh(const TcpWorldOptions& options, std::vector<std::unique_ptr<Peer>> peers);

  void Run();
  void CollectEntries(std::vector<pollfd>* entries) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Serve(Peer* peer, short data_events, short control_events)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Read(Peer* peer, TcpChannel* channel) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Ended(Peer* peer, bool control) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<TcpChannel::Target> Begin(Peer* peer, bool control, const FrameHeader& header)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Finish(Peer* peer, bool control, const FrameHeader& header, std::string message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Left(Peer* peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Tick() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Enqueue(TcpChannel* channel, TcpOutFrame frame) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `lost` is a rank that cannot be reached any more, or -1.
  void FailLocked(const absl::Status& reason, bool tell, int lost = -1)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A failure of `peer`, with what this rank was doing then.
  void FailBy(const Peer& peer, absl::StatusCode code, const std::string& what)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<int> LiveRanksLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // In short waits, so that whoever watches this thread sees that it lives.
  bool AwaitUntil(const absl::Condition& condition, absl::Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Quiet() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Wake();
  std::string Describe(const Peer& peer) const;

  const TcpWorldOptions options_;
  const Socket wake_;
  mutable absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<const Activity*> activities_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> doing_ ABSL_GUARDED_BY(mutex_);  // at the failure
  std::function<void(const absl::Status&)> failure_hook_ ABSL_GUARDED_BY(mutex_);
  std::map<int, std::string> states_ ABSL_GUARDED_BY(mutex_);
  // By world rank; null for this rank. What they hold is guarded by mutex_.
  const std::vector<std::unique_ptr<Peer>> peers_;
  absl::flat_hash_map<MessageKey, std::string> messages_ ABSL_GUARDED_BY(mutex_);
  size_t message_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<MessageKey, Expected> expected_ ABSL_GUARDED_BY(mutex_);
  absl::Time next_tick_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_TCP_MESH_H_
