// The communicator of CUDA tensors by NCCL, for ranks that have a GPU each: processes, on one host
// or several, or threads.
//
// It stands on a communicator of the same ranks for host tensors (tcp_communicator.h,
// thread_communicator.h), which keeps what NCCL does not have: it carries NCCL's id to all, runs
// calls on CPU streams and barriers, compares calls, knows who is missing, and is where every
// failure is told. So errors are as sticky and as widely known as there.
//
//   auto world = NcclWorld::Create(NcclLibrary(), tcp->communicator(), options);
//   ProcessGroup all((*world)->communicator());
//
// Run enqueues and returns; nobody waits for the device. A thread of the world looks after it: when
// NCCL reports an error, when the device does not finish a call in time, or when the world on the
// host has failed for any reason, all of this rank's NCCL communicators are aborted, so that what
// waits for the device goes on, and the world fails on all ranks with group, call and number.
//
// Sums of floating numbers are formed in NCCL's order, which the number of ranks, the network and
// NCCL's version decide, and in bf16 and fp16 rounded more than once: the same bits on every rank
// and in every run of one setup, not those of other backends. With sum_in_rank_order they are:
// parts are exchanged and summed in fp32 in the order of ranks by our own kernels
// (rank_order_sum.h).
//
// Integers of 16 bits, which NCCL does not know, are reduced on the host.
#ifndef MEGATRON_COMM_NCCL_NCCL_COMMUNICATOR_H_
#define MEGATRON_COMM_NCCL_NCCL_COMMUNICATOR_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "megatron/comm/nccl/nccl_api.h"

namespace megatron {

class Communicator;

struct NcclWorldOptions {
  int device = 0;  // used by this rank only
  absl::Duration connect_deadline = absl::Minutes(5);
  // The longest time that the device takes for one call from when the one before it was done.
  absl::Duration deadline = absl::Minutes(10);
  absl::Duration watch_interval = absl::Milliseconds(100);
  // All ranks alike: compare each collective call across ranks before it is enqueued, so that a
  // mismatch is named at once and not found as a hang. The host then waits in every call.
  bool compare_calls = false;
  bool sum_in_rank_order = false;
};

// One rank's part in a world. Threads: all methods may be called by any thread.
class NcclWorld {
 public:
  // Collective over `host`. The thread has made a CudaStream of the device, so that this is its
  // current one.
  static absl::StatusOr<std::unique_ptr<NcclWorld>> Create(NcclApi* api,
                                                           std::shared_ptr<Communicator> host,
                                                           const NcclWorldOptions& options);
  // Waits for the other ranks to come to theirs, for a few seconds and while all is well. The
  // communicators may live on, but calls of CUDA tensors fail.
  ~NcclWorld();

  // The communicator of all ranks; the same one each time.
  const std::shared_ptr<Communicator>& communicator() const { return communicator_; }
  // Describes the calls that the device had not done when the world failed, or has not done now,
  // one line for each.
  std::vector<std::string> PendingCalls() const;

 private:
  explicit NcclWorld(std::shared_ptr<class NcclWatch> watch) : watch_(std::move(watch)) {}

  const std::shared_ptr<NcclWatch> watch_;
  std::shared_ptr<Communicator> communicator_;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_NCCL_NCCL_COMMUNICATOR_H_
