// The control connections of one rank to all others of a TcpWorld. They carry heartbeats with
// status broadcasts, reasons to abort, what ranks were doing and goodbyes, and so know whether the
// world has failed.
//
// TcpControl has its own thread and locks. Data goes over other connections: a rank that hangs over
// data, with whatever lock, still sends heartbeats, learns of failures and can report what it was
// doing.
//
// A failure is final. The first one becomes the status and is sent to all other ranks.
//
// Threads: all methods may be called by any thread. docs/watching.md has the order of locks.
#ifndef MEGATRON_COMM_TCP_TCP_CONTROL_H_
#define MEGATRON_COMM_TCP_TCP_CONTROL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "megatron/comm/socket/first_error.h"
#include "megatron/comm/socket/wake_event.h"
#include "megatron/comm/tcp/tcp_channel.h"
#include "megatron/comm/tcp/tcp_connect.h"
#include "megatron/comm/watch/call_activity.h"
#include "megatron/comm/world.h"

namespace megatron {

class TcpControl {
 public:
  // Takes the control connection of each of `sockets`. `changed` is called after a failure and
  // after a goodbye, and must not block. `activities` are the calls of this rank.
  TcpControl(const TcpWorldOptions& options, std::vector<TcpPeerSockets>* sockets,
             const CallActivities* activities, WakeEvent wake, std::function<void()> changed);
  ~TcpControl() { Stop(); }

  bool ok() const { return failure_.ok(); }
  absl::Status status() const { return failure_.Get(); }
  // Fails the whole world, on all ranks. `lost` is a rank that cannot be reached any more, or -1.
  void Fail(const absl::Status& reason, int lost = -1) { Fail(reason, lost, /*broadcast=*/true); }
  // Fails the world because of what `peer` did. The message adds what this rank was doing.
  void FailBy(int peer, absl::StatusCode code, const std::string& what);
  std::string Describe(int peer) const;   // "rank 3 of world (10.0.0.7:41870)"
  void SetFailureHook(FailureHook hook);  // the same as World's

  // Tells that the data connection of `peer` has ended. It is lost unless it soon says goodbye.
  void DataEnded(int peer) { peers_[peer]->data_ended = true; }
  bool said_goodbye(int peer) const { return peers_[peer]->said_goodbye; }
  // Tells that all ranks have their connections. Until then a rank may be connecting to others, and
  // is not silent before its first heartbeat.
  void AllAreConnected();
  // Returns whether another rank waits for this one, or did at its last heartbeat.
  bool IsAwaited() const;
  // Sets the status broadcast, which goes to all ranks with every heartbeat until it is replaced;
  // "": there is none.
  void SetBroadcast(std::string broadcast);
  // Returns the status broadcasts of the other ranks, by rank. None is older than broadcast_age().
  std::map<int, std::string> Broadcasts() const;
  absl::Duration broadcast_age() const { return 3 * options_.heartbeat_interval; }

  // Returns after a failure the ranks that can still be reached from here, this one among them,
  // ascending. Ranks that had been silent for long when the failure came are not among them: only
  // one rank of a machine that is cut off is named as lost.
  std::vector<int> LiveRanks() const;
  // These two are as World's. A rank whose loss others have told it of gathers nothing: they do.
  std::vector<std::string> CallsAtFailure() const;
  std::optional<std::map<int, std::string>> GatherStates(std::string state, absl::Time deadline);

  // Leaving takes three steps: SayGoodbye; wait for AllArrived, which tells that everything sent
  // has arrived; Stop.
  void SayGoodbye();
  bool AllArrived() const;
  void Stop();

 private:
  struct Peer {
    Peer(int rank, TcpPeerSockets* sockets);

    const int rank;
    const std::string address;
    TcpChannel channel;
    std::atomic<int64_t> last_heard;        // nanoseconds
    std::atomic<bool> is_connected{false};  // to all others: its silence counts
    // Its last status broadcast, and when it came. Guarded by mutex_.
    std::string broadcast;
    absl::Time broadcast_at;
    // True if the data connection had ended at the last tick. Used by the thread only.
    bool data_had_ended = false;
    std::atomic<bool> data_ended{false};
    std::atomic<bool> said_goodbye{false};
    std::atomic<bool> awaits_us{false};  // said by its last heartbeat
    std::atomic<bool> lost{false};       // seen by this rank, or reported by another
  };

  void Fail(const absl::Status& reason, int lost, bool broadcast) ABSL_LOCKS_EXCLUDED(mutex_);
  void MarkSilentRanksLost();
  void SendAbort(const absl::Status& reason, int lost) ABSL_LOCKS_EXCLUDED(mutex_);
  void Run();
  void Serve(Peer* peer) ABSL_LOCKS_EXCLUDED(mutex_);
  void Tick(absl::Time due) ABSL_LOCKS_EXCLUDED(mutex_);
  void Send(Peer* peer, FrameKind kind, std::string message, uint32_t tag = 0)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const TcpWorldOptions options_;
  const CallActivities& activities_;
  const std::function<void()> changed_;
  const WakeEvent wake_;

  absl::Mutex fail_mutex_;  // held while a failure is reported
  FailureHook failure_hook_ ABSL_GUARDED_BY(fail_mutex_);
  std::vector<std::string> calls_at_failure_;  // written once, before failure_ is
  std::atomic<bool> calls_at_failure_known_{false};
  std::atomic<bool> is_missed_{false};  // the failure is that others have lost this rank
  FirstError failure_;

  mutable absl::Mutex mutex_ ABSL_ACQUIRED_AFTER(fail_mutex_);  // also guards the channels
  // The peers by world rank; null for this rank.
  const std::vector<std::unique_ptr<Peer>> peers_;
  std::map<int, std::string> states_ ABSL_GUARDED_BY(mutex_);
  std::string own_broadcast_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_TCP_TCP_CONTROL_H_
