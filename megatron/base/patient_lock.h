// Takes a mutex, but gives up if it stays taken for so long that its holder must be hanging.
//
//   const PatientLock lock(&mutex_, absl::Milliseconds(100));
//   if (!lock.held()) return "unknown";
//
// It is meant for threads that watch others: a watched thread may hold any lock while it hangs, and
// the watcher must not hang with it.
#ifndef MEGATRON_BASE_PATIENT_LOCK_H_
#define MEGATRON_BASE_PATIENT_LOCK_H_

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "megatron/base/steady_now.h"

namespace megatron {

class PatientLock {
 public:
  PatientLock(absl::Mutex* mutex, absl::Duration patience) ABSL_NO_THREAD_SAFETY_ANALYSIS
      : mutex_(*mutex),
        held_(mutex->TryLock()) {
    const absl::Time until = SteadyNow() + patience;
    while (!held_ && SteadyNow() < until) {
      absl::SleepFor(absl::Microseconds(200));
      held_ = mutex_.TryLock();
    }
  }
  ~PatientLock() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (held_) mutex_.Unlock();
  }
  PatientLock(const PatientLock&) = delete;
  PatientLock& operator=(const PatientLock&) = delete;

  bool held() const { return held_; }

 private:
  absl::Mutex& mutex_;
  bool held_;
};

}  // namespace megatron

#endif  // MEGATRON_BASE_PATIENT_LOCK_H_
