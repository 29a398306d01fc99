// One rank's end of one group's NCCL communicator: what is enqueued there, when it is done, what
// has failed, and how it ends. What calls mean is in nccl_communicator.cc.
//
// A call is enqueued by the thread that the group belongs to, which does not wait for the device.
// Whether the device has done it, and in time, is seen by whoever calls Watch now and then.
//
// Threads: Enqueue, Split and Initialize by one; all else by any. No lock is held while NCCL works,
// but for the one by which a communicator's end is waited for, nor while the communicator on the
// host is asked for anything.
#ifndef MEGATRON_COMM_NCCL_NCCL_GROUP_H_
#define MEGATRON_COMM_NCCL_NCCL_GROUP_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "megatron/comm/nccl/nccl_api.h"
#include "megatron/tensor/cuda_device.h"

namespace megatron {

class Communicator;

struct NcclGroupOptions {
  int device = 0;
  // The time for NCCL to connect the ranks, after all have arrived.
  absl::Duration connect_deadline;
  // The time for the device to finish a call, after the one before.
  absl::Duration deadline;
};

class NcclGroup {
 public:
  // `host` are the same ranks, who tell by it what has failed; without a communicator of NCCL yet.
  NcclGroup(NcclApi* api, std::shared_ptr<Communicator> host, const NcclGroupOptions& options)
      : api_(*api), host_(std::move(host)), options_(options) {}
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  // Collective. Afterwards NCCL has connected all ranks.
  absl::Status Initialize(const NcclUniqueId& id);
  // Collective over this group. `child` gets its communicator where the color is not negative.
  absl::Status Split(int color, int key, NcclGroup* child);

  // Enqueues calls of NCCL that together are one call of the group. `what` names it in messages.
  using Calls = std::function<NcclResult(ncclComm*)>;
  absl::Status Enqueue(const std::string& what, const Calls& calls, const Stream& stream);

  // The first thing that has gone wrong on the device or in NCCL's own threads.
  absl::Status Watch(absl::Time now);
  // Describes what the device has not done yet, oldest first: one line each, of at most three
  // calls. It waits for no call of NCCL that hangs.
  std::vector<std::string> PendingCalls() const;

  // Ends what the device is doing here. Nothing is enqueued any more from when this begins. It
  // returns when the communicator is gone, for which it may wait long (NcclApi::CommAbort): groups
  // of one device are aborted at once, each by a thread.
  void Abort();
  // Ends the communicator where all is well, in place of Abort. Collective. If the others do not
  // arrive in time, the communicator remains, to be aborted.
  void Finish(absl::Duration patience);

 private:
  struct UnderWay {
    std::string what;
    uint64_t number;
    absl::Time since;  // it is its turn
    std::unique_ptr<CudaEvent> done;
  };

  // Waits until the communicator is no longer in progress.
  absl::Status Settle(const std::string& what, absl::Duration patience);
  absl::Status Error(const std::string& what, NcclResult error, ncclComm* comm) const;
  // Returns "rank 1 of tp-0, call 17, all-reduce(sum) of fp32[4]".
  std::string Describe(const UnderWay& call) const;
  std::string CallText(uint64_t number, const std::string& what) const;
  void Retire(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes the communicator out of use, and ends it. Returns when it has ended, whoever ends it.
  void End(NcclResult (NcclApi::*end)(ncclComm*));

  NcclApi& api_;
  const std::shared_ptr<Communicator> host_;
  const NcclGroupOptions options_;

  absl::Mutex end_mutex_;  // held while the communicator ends
  mutable absl::Mutex mutex_ ABSL_ACQUIRED_AFTER(end_mutex_);
  ncclComm* comm_ ABSL_GUARDED_BY(mutex_) = nullptr;
  uint64_t calls_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<UnderWay> under_way_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<CudaEvent>> free_events_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace megatron

#endif  // MEGATRON_COMM_NCCL_NCCL_GROUP_H_
