// The thread that watches the NCCL groups of one rank. It reports what fails on the device to the
// world on the host, and aborts what the device is doing when that world has failed.
#ifndef MEGATRON_COMM_NCCL_NCCL_WATCH_H_
#define MEGATRON_COMM_NCCL_NCCL_WATCH_H_

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "megatron/comm/nccl/nccl_group.h"

namespace megatron {

class Communicator;

// Threads: all methods may be called by any thread.
class NcclWatch {
 public:
  // `device` is that of the groups.
  NcclWatch(std::shared_ptr<Communicator> host, int device, absl::Duration interval);
  ~NcclWatch() { Stop(); }

  // Groups end in the order in which they are added, which is the same on all ranks.
  void Add(std::shared_ptr<NcclGroup> group);
  std::vector<std::string> PendingCalls() const;

  // Ends the thread, and the groups: collectively, if all is well and all come in time.
  void Finish(absl::Duration patience);

 private:
  void Run();
  void Stop();
  void AbortAll();
  std::vector<std::shared_ptr<NcclGroup>> Groups() const;

  const std::shared_ptr<Communicator> host_;
  const int device_;
  const absl::Duration interval_;
  mutable absl::Mutex mutex_;
  std::vector<std::shared_ptr<NcclGroup>> groups_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_NCCL_NCCL_WATCH_H_
