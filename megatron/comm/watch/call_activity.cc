#include "megatron/comm/watch/call_activity.h"

#include <pthread.h>

#include <algorithm>

#include "megatron/base/patient_lock.h"

namespace megatron {
namespace {

constexpr absl::Duration kPatience = absl::Milliseconds(100);

}  // namespace

std::vector<std::string> CallActivities::Describe() const {
  const PatientLock lock(&mutex_, kPatience);
  if (!lock.held()) return {"a thread hangs at the beginning or the end of a call"};
  std::vector<std::string> lines;
  for (const CallActivity* activity : list_) {
    lines.push_back(activity->answers_.describe() + activity->answers_.describe_awaited());
  }
  return lines;
}

std::vector<WaitingCall> CallActivities::WaitingCalls() const {
  const PatientLock lock(&mutex_, kPatience);
  std::vector<WaitingCall> calls;
  if (!lock.held()) return calls;
  for (const CallActivity* activity : list_) {
    const CallActivity::Answers& answers = activity->answers_;
    calls.push_back({activity->serial_, activity->clock_, answers.awaited(), answers.describe()});
  }
  return calls;
}

std::set<int> CallActivities::Awaited() const {
  std::set<int> awaited;
  for (const WaitingCall& call : WaitingCalls()) {
    awaited.insert(call.awaited.begin(), call.awaited.end());
  }
  return awaited;
}

absl::Duration CallActivities::ProcessorTime() const {
  const PatientLock lock(&mutex_, kPatience);
  absl::Duration total;
  if (!lock.held()) return total;
  for (const CallActivity* activity : list_) {
    timespec time = {};
    clock_gettime(activity->clock_, &time);
    total += absl::DurationFromTimespec(time);
  }
  return total;
}

CallActivity::CallActivity(CallActivities* activities, const Answers& answers)
    : activities_(*activities), answers_(answers) {
  pthread_getcpuclockid(pthread_self(), &clock_);
  absl::MutexLock lock(&activities_.mutex_);
  serial_ = ++activities_.begun_;
  activities_.list_.push_back(this);
  ++activities_.count_;
}

CallActivity::~CallActivity() {
  absl::MutexLock lock(&activities_.mutex_);
  auto& list = activities_.list_;
  list.erase(std::find(list.begin(), list.end(), this));
  --activities_.count_;
}

}  // namespace megatron
