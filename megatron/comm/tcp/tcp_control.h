// The control connections of one rank to all others of a TcpWorld: signs of life, reasons to abort,
// what ranks were doing, farewells; and with them whether the world has failed.
//
// It has a thread and a lock of its own. Data goes other ways: a rank that hangs over data, with
// whatever lock, goes on giving signs of life, hears of failures and can tell what it was at.
//
// A failure is final. The first one becomes the status and is told to all other ranks.
//
// Threads: all methods may be called by any thread.
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
#include "megatron/comm/tcp/tcp_activity.h"
#include "megatron/comm/tcp/tcp_channel.h"
#include "megatron/comm/tcp/tcp_connect.h"

namespace megatron {

class TcpControl {
 public:
  // Takes the control connection of each of `sockets`. `changed` is called after a failure and
  // after a farewell, and waits for nobody; `activities` are what this rank is doing.
  TcpControl(const TcpWorldOptions& options, std::vector<TcpPeerSockets>* sockets,
             const TcpActivities* activities, std::function<void()> changed);
  ~TcpControl() { Stop(); }

  bool ok() const { return failure_.ok(); }
  absl::Status status() const { return failure_.Get(); }
  // Fails the whole world, on all ranks. `lost` is a rank that cannot be reached any more, or -1.
  void Fail(const absl::Status& reason, int lost = -1) { Fail(reason, lost, /*tell=*/true); }
  // By what `peer` did, with what this rank was doing then.
  void FailBy(int peer, absl::StatusCode code, const std::string& what);
  std::string Describe(int peer) const;  // "rank 3 of world (10.0.0.7:41870)"
  // Called once, at the first failure and before the status says so, by the thread that found it;
  // it may call nothing of this world. Null: none.
  void SetFailureHook(std::function<void(const absl::Status&)> hook);

  // Its data connection has ended. Unless it says soon why, it is lost.
  void DataEnded(int peer) { peers_[peer]->data_ended = true; }
  bool said_farewell(int peer) const { return peers_[peer]->said_farewell; }
  // Another rank waits for this one, or did when it last gave a sign of life.
  bool IsAwaited() const;
  // Goes to all with every sign of life, until it is replaced; "" tells nothing.
  void SetNews(std::string news);
  // What others have told so, if they still do; it is not older than NewsTime.
  std::map<int, std::string> News() const;
  absl::Duration NewsTime() const { return 3 * options_.heartbeat_interval; }

  // After a failure: the ranks that can still be reached from here, this one among them, ascending.
  // Whoever had been silent for long when it came is none of them: a machine that is cut off is
  // named by one of its ranks.
  std::vector<int> LiveRanks() const;
  // After a failure: what this rank was doing when it came, one line for each of its calls.
  std::vector<std::string> Doing() const;
  // After a failure: gives `state` to the lowest live rank, and there returns those of all, by
  // rank, as far as they have come before the deadline. Elsewhere it returns nothing.
  std::optional<std::map<int, std::string>> GatherStates(std::string state, absl::Time deadline);

  // The end: SayFarewell, wait until it is Quiet, for all has arrived that was sent, and Stop.
  void SayFarewell();
  bool Quiet() const;
  void Stop();

 private:
  struct Peer {
    Peer(int rank, TcpPeerSockets* sockets);

    const int rank;
    const std::string address;
    TcpChannel channel;
    std::atomic<int64_t> last_heard;  // nanoseconds
    std::string news;                 // at its last sign of life; under mutex_
    absl::Time news_at;
    bool data_had_ended = false;  // at the last tick; the thread's
    std::atomic<bool> data_ended{false};
    std::atomic<bool> said_farewell{false};
    std::atomic<bool> awaits_us{false};  // at its last sign of life
    std::atomic<bool> lost{false};       // here, or to another rank that has said so
  };

  void Fail(const absl::Status& reason, int lost, bool tell) ABSL_LOCKS_EXCLUDED(mutex_);
  void LoseTheSilent();
  void TellAbort(const absl::Status& reason, int lost) ABSL_LOCKS_EXCLUDED(mutex_);
  void Run();
  void Serve(Peer* peer) ABSL_LOCKS_EXCLUDED(mutex_);
  void Tick(absl::Time due) ABSL_LOCKS_EXCLUDED(mutex_);
  void Send(Peer* peer, FrameKind kind, std::string message, uint32_t tag = 0)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const TcpWorldOptions options_;
  const TcpActivities& activities_;
  const std::function<void()> changed_;
  const WakeEvent wake_;

  absl::Mutex fail_mutex_;  // held while a failure is told
  std::function<void(const absl::Status&)> failure_hook_ ABSL_GUARDED_BY(fail_mutex_);
  std::vector<std::string> doing_;  // written once, before failure_ is
  std::atomic<bool> doing_known_{false};
  FirstError failure_;

  // Comes after fail_mutex_. By world rank; null for this rank. It guards the channels.
  mutable absl::Mutex mutex_;
  const std::vector<std::unique_ptr<Peer>> peers_;
  std::map<int, std::string> states_ ABSL_GUARDED_BY(mutex_);
  std::string own_news_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_TCP_TCP_CONTROL_H_
