// NCCL played by threads of one process on the emulated device (tensor/emulated_cuda.h), for tests.
//
// It is as late as NCCL may be: whatever needs other ranks is in progress until they have come, and
// hangs if they never do or call something else. It sums in the opposite order of ranks and rounds
// at every step, so that nothing can rest on an order of ours. Whoever uses a communicator after
// its end, or makes a call that NCCL does not allow, dies of a CHECK; so does who makes a call that
// events do not order with what other streams do to its memory (tensor/emulated_order.h).
//
// A call that is captured in a graph is made with each launch, and the launch waits for its end.
//
// An abort waits for what NCCL's waits for (nccl_api.h). One that waits for minutes never ends, and
// the program does.
#ifndef MEGATRON_COMM_NCCL_FAKE_NCCL_H_
#define MEGATRON_COMM_NCCL_FAKE_NCCL_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "megatron/comm/nccl/nccl_api.h"

namespace megatron {

// Threads: all methods may be called by any thread.
class FakeNccl : public NcclApi {
 public:
  FakeNccl();
  ~FakeNccl() override;

  // Makes all communicators of a rank of the world report this error from now on.
  void Break(int world_rank, NcclResult error);
  // The number of communicators that were made, and of those that have ended in good order and by
  // abort.
  struct Counts {
    int made = 0, destroyed = 0, aborted = 0;
  };
  Counts counts() const;
  // Returns the names of all communicators that a rank of the world has made, in their order.
  std::vector<std::string> Names(int world_rank) const;

  std::string Version() const override { return "fake"; }
  std::string Describe(NcclResult error, ncclComm* comm) const override;
  NcclResult GetUniqueId(NcclUniqueId* id) override;
  NcclResult CommInitRank(ncclComm** comm, int size, const NcclUniqueId& id, int rank,
                          const std::string& name) override;
  NcclResult CommSplit(ncclComm* parent, int color, int key, const std::string& name,
                       ncclComm** child) override;
  NcclResult AsyncError(ncclComm* comm) override;
  NcclResult CommFinalize(ncclComm* comm) override;
  NcclResult CommDestroy(ncclComm* comm) override;
  NcclResult CommAbort(ncclComm* comm) override;
  NcclResult GroupStart() override;
  NcclResult GroupEnd() override;
  NcclResult AllReduce(const Tensor& inout, ReduceOp op, ncclComm* comm,
                       const Stream& stream) override;
  NcclResult ReduceScatter(const Tensor& in, const Tensor& out, ReduceOp op, ncclComm* comm,
                           const Stream& stream) override;
  NcclResult AllGather(const Tensor& in, const Tensor& out, ncclComm* comm,
                       const Stream& stream) override;
  NcclResult Broadcast(const Tensor& inout, int root, ncclComm* comm,
                       const Stream& stream) override;
  NcclResult Send(const Tensor& tensor, int peer, ncclComm* comm, const Stream& stream) override;
  NcclResult Receive(const Tensor& tensor, int peer, ncclComm* comm, const Stream& stream) override;

 private:
  struct Clique;
  struct Meeting;

  // Makes the call now or, if the stream is being captured, with every launch of the graph, which
  // then waits for the other ranks.
  NcclResult MakeOrCapture(ncclComm* comm, const Stream& stream, const std::string& text,
                           const std::function<NcclResult()>& call);
  // Takes a communicator out of its calls.
  void LeaveCalls(ncclComm* comm);
  // Returns whether the abort of one that has left must wait.
  bool IsHeld(const ncclComm& comm) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits until the communicator's operations are finished.
  void Finish(ncclComm* comm) const;
  NcclResult Meet(ncclComm* comm, const Meeting& mine);
  NcclResult Post(ncclComm* comm, int from, int to, const Tensor& tensor, bool sends);
  ncclComm* Join(const std::shared_ptr<Clique>& clique, int rank, int world_rank,
                 const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  int ids_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::pair<NcclUniqueId, std::shared_ptr<Clique>>> cliques_ ABSL_GUARDED_BY(mutex_);
  // All that were ever made: one that has ended is known by it.
  std::vector<std::unique_ptr<ncclComm>> comms_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace megatron

#endif  // MEGATRON_COMM_NCCL_FAKE_NCCL_H_
