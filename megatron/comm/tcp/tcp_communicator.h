// The communicator between processes, on one host or several, over TCP. It takes CPU tensors.
//
// Every rank is connected to every other; data goes straight from the rank that has it to the rank
// that needs it, and each sum is formed by one rank in the order of ranks: the same bits as with
// ThreadWorld, whatever arrives first. A group is only a name on frames, so that Split makes no
// connection and any number of groups work side by side.
//
// At the beginning of a call every rank tells every other what it calls; no tensor moves before all
// ranks have arrived and agree. So a missing rank and a call that does not match are named, on
// every rank. Tensors of up to kTcpEagerBytes (tcp_group.h) travel with that message.
//
// A failure anywhere ends every call of every group of the world, on all ranks: a mismatched call,
// a rank that does not arrive before the deadline, one that has left or died or fallen silent, an
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

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "megatron/comm/socket/job_secret.h"
#include "megatron/comm/store/store.h"
#include "megatron/comm/tcp/tcp_connect.h"
#include "megatron/comm/watch/deadlock.h"
#include "megatron/comm/world.h"

namespace megatron {

class Communicator;

// One rank's part in a world. Threads: all methods may be called by any thread. Those of World that
// take a rank are asked about this one.
class TcpWorld : public World {
 public:
  // Returns when all ranks are connected to all others. The store is not used afterwards.
  static absl::StatusOr<std::unique_ptr<TcpWorld>> Create(Store* store, const JobSecret& secret,
                                                          const TcpWorldOptions& options);
  // Leaves: whoever waits for this rank, now or later, fails at once. Its communicators may live
  // on, but their calls fail.
  ~TcpWorld() override;

  // The communicator of all ranks; the same one each time. Each group may be used by another
  // thread.
  const std::shared_ptr<Communicator>& communicator() const { return communicator_; }

  // Returns the ranks that are not known to be lost or to have left, this one among them,
  // ascending. After a failure it goes on finding ranks that end.
  std::vector<int> LiveRanks() const;

  int size() const override;
  bool spans_processes() const override { return true; }
  absl::Status status() const override;
  void Abort(const absl::Status& reason) override;
  void SetFailureHook(FailureHook hook) override;
  std::vector<std::string> CallsAtFailure(int rank) const override;
  std::optional<std::map<int, std::string>> GatherStates(std::string state,
                                                         absl::Time deadline) override;
  bool InCall(int rank) const override;
  absl::Duration CallersProcessorTime(int rank) const override;
  bool IsAwaited(int rank) const override;
  std::vector<WaitingCall> WaitingCalls(int rank) const override;
  bool Idle() const override;
  void ShareBlockedCalls(const std::vector<WaitingCall>& calls) override;
  WaitingRanks OthersBlocked() const override;
  absl::Duration broadcast_age() const override;
  // No rank waits for a lock of another rank here: every call reports its own deadline.
  absl::Status Overdue() const override { return absl::OkStatus(); }

 private:
  explicit TcpWorld(std::shared_ptr<class TcpMesh> mesh);

  const std::shared_ptr<TcpMesh> mesh_;
  std::shared_ptr<Communicator> communicator_;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_TCP_TCP_COMMUNICATOR_H_
