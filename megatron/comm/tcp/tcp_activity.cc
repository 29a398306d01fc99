#include "megatron/comm/tcp/tcp_activity.h"

#include <pthread.h>

#include <algorithm>

#include "megatron/base/patient_lock.h"

namespace megatron {
namespace {

constexpr absl::Duration kPatience = absl::Milliseconds(100);

}  // namespace

std::vector<std::string> TcpActivities::Describe() const {
  const PatientLock lock(&mutex_, kPatience);
  if (!lock.held()) return {"a thread hangs at the beginning or the end of a call"};
  std::vector<std::string> lines;
  for (const TcpActivity* activity : list_) lines.push_back(activity->describe_());
  return lines;
}

bool TcpActivities::Await(int world_rank) const {
  const PatientLock lock(&mutex_, kPatience);
  return lock.held() && std::any_of(list_.begin(), list_.end(), [&](const TcpActivity* activity) {
           return activity->awaits_(world_rank);
         });
}

absl::Duration TcpActivities::ProcessorTime() const {
  const PatientLock lock(&mutex_, kPatience);
  absl::Duration total;
  if (!lock.held()) return total;
  for (const TcpActivity* activity : list_) {
    timespec time = {};
    clock_gettime(activity->clock_, &time);
    total += absl::DurationFromTimespec(time);
  }
  return total;
}

TcpActivity::TcpActivity(TcpActivities* activities, absl::FunctionRef<std::string()> describe,
                         absl::FunctionRef<bool(int)> awaits)
    : activities_(*activities), describe_(describe), awaits_(awaits) {
  pthread_getcpuclockid(pthread_self(), &clock_);
  absl::MutexLock lock(&activities_.mutex_);
  activities_.list_.push_back(this);
  ++activities_.count_;
}

TcpActivity::~TcpActivity() {
  absl::MutexLock lock(&activities_.mutex_);
  auto& list = activities_.list_;
  list.erase(std::find(list.begin(), list.end(), this));
  --activities_.count_;
}

}  // namespace megatron
