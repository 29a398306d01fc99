// Communicator between processes, on one host or several, over TCP. CPU tensors.
//
// Every rank is connected to every other; data goes straight from the rank that has it to the rank
// that needs it, and each sum is formed by one rank in the order of ranks: the same bits as with
// ThreadWorld, whatever arrives first. A group is only a name on frames, so that Split makes no
// connection and any number of groups work side by side.
//
// A call begins with every rank telling every other what it calls; no tensor moves before all have
// come and agree. That is how a missing rank and a call that does not match are named, on every
// rank. Tensors of up to kTcpEagerBytes (tcp_group.h) ride along with that message.
//
// A failure anywhere ends every call of every group of the world, on all ranks: a mismatched call,
// a rank that does not come before the deadline, one that has left or died or fallen silent, an
// Abort.
//
//   auto store = TcpStoreClient::Connect(server, secret, absl::Minutes(5));
//   TcpWorldOptions options;
//   options.rank = 3;
//   options.size = 8;
//   options.host = (*store)->local_host();
//   auto world = TcpWorld::Create(store->get(), secret, options);
//   ProcessGroup all((*world)->communicator());
#ifndef MEGATRON_COMM_TCP_TCP_COMMUNICATOR_H_
#define MEGATRON_COMM_TCP_TCP_COMMUNICATOR_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "megatron/comm/communicator.h"
#include "megatron/comm/deadlock.h"
#include "megatron/comm/socket/job_secret.h"
#include "megatron/comm/store/store.h"
#include "megatron/comm/tcp/tcp_connect.h"

namespace megatron {

// One rank's part in a world. Threads: all methods may be called by any thread.
class TcpWorld {
 public:
  // Returns when all ranks are connected to all others. Nobody uses the store afterwards.
  static absl::StatusOr<std::unique_ptr<TcpWorld>> Create(Store* store, const JobSecret& secret,
                                                          const TcpWorldOptions& options);
  // Leaves: whoever waits for this rank, now or later, fails at once. Its communicators may live
  // on, but their calls fail.
  ~TcpWorld();

  // Of all ranks; the same one each time. Each group may be used by another thread.
  const std::shared_ptr<Communicator>& communicator() const { return communicator_; }

  void Abort(const absl::Status& reason);
  // The first failure.
  absl::Status status() const;
  // Called once, at the first failure and before anybody who waits is released, by the thread that
  // found it; it may call nothing of this world. Null: none.
  void SetFailureHook(std::function<void(const absl::Status&)> hook);
  // Of the threads that are in calls now: they wake up now and then, however long they wait.
  absl::Duration CallersProcessorTime() const;
  bool InCall() const;  // whether there are any
  // Whether another rank waits for this one, or did a heartbeat_interval ago.
  bool IsAwaited() const;
  // The calls that this rank is in, and whom they wait for.
  std::vector<WaitingCall> Waiting() const;
  // Whether nothing is on its way from or to the calls of this rank.
  bool Idle() const;
  // Tells all ranks with every sign of life that this one is blocked in these calls; none: it is
  // not.
  void ShareBlocked(const std::vector<WaitingCall>& calls);
  // What the others say so, and how old that can be.
  WaitingRanks OthersBlocked() const;
  absl::Duration NewsTime() const;
  // After a failure: what this rank was doing when it came, one line for each of its calls.
  std::vector<std::string> Doing() const;
  // After a failure: gives `state`, a text about this rank, to the lowest rank that can be reached.
  // There it returns the states of all such ranks, by rank, as far as they have come before the
  // deadline; elsewhere nothing.
  std::optional<std::map<int, std::string>> GatherStates(std::string state, absl::Time deadline);

 private:
  explicit TcpWorld(std::shared_ptr<class TcpMesh> mesh);

  const std::shared_ptr<TcpMesh> mesh_;
  std::shared_ptr<Communicator> communicator_;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_TCP_TCP_COMMUNICATOR_H_
