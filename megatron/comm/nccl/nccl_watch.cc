#include "megatron/comm/nccl/nccl_watch.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "megatron/base/steady_now.h"
#include "megatron/comm/communicator.h"
#include "megatron/tensor/cuda_device.h"

namespace megatron {

NcclWatch::NcclWatch(std::shared_ptr<Communicator> host, int device, absl::Duration interval)
    : host_(std::move(host)), device_(device), interval_(interval), thread_([this] { Run(); }) {
  pthread_setname_np(thread_.native_handle(), "nccl watch");  // named in reports
}

void NcclWatch::Add(std::shared_ptr<NcclGroup> group) {
  const absl::MutexLock lock(&mutex_);
  groups_.push_back(std::move(group));
}

std::vector<std::shared_ptr<NcclGroup>> NcclWatch::Groups() const {
  const absl::MutexLock lock(&mutex_);
  return groups_;
}

std::vector<std::string> NcclWatch::PendingCalls() const {
  std::vector<std::string> lines;
  for (const std::shared_ptr<NcclGroup>& group : Groups()) {
    for (std::string& line : group->PendingCalls()) lines.push_back(std::move(line));
  }
  return lines;
}

// One after the other they would wait for each other: NCCL ends no communicator while the device is
// in a call of another one.
void NcclWatch::AbortAll() {
  std::vector<std::thread> aborts;
  for (std::shared_ptr<NcclGroup>& group : Groups()) {
    aborts.emplace_back([this, group = std::move(group)] {
      UseCudaDevice(device_);
      group->Abort();
    });
  }
  for (std::thread& abort : aborts) abort.join();
}

void NcclWatch::Run() {
  UseCudaDevice(device_);
  const auto stopped = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stop_; };
  while (true) {
    {
      const absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stopped), interval_)) return;
    }
    const absl::Time now = SteadyNow();
    for (const std::shared_ptr<NcclGroup>& group : Groups()) {
      const absl::Status status = group->Watch(now);
      if (!status.ok()) host_->Abort(status);
    }
    if (host_->status().ok()) continue;
    return AbortAll();
  }
}

void NcclWatch::Stop() {
  {
    const absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void NcclWatch::Finish(absl::Duration patience) {
  Stop();
  const absl::Time end = SteadyNow() + patience;
  for (const std::shared_ptr<NcclGroup>& group : Groups()) {
    if (!host_->status().ok()) break;
    group->Finish(std::max(absl::ZeroDuration(), end - SteadyNow()));
  }
  AbortAll();
}

}  // namespace megatron
