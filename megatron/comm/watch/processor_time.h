// The processor time of a thread or process.
#ifndef MEGATRON_COMM_WATCH_PROCESSOR_TIME_H_
#define MEGATRON_COMM_WATCH_PROCESSOR_TIME_H_

#include <time.h>

#include "absl/time/time.h"

namespace megatron {

// Returns the time of a processor-time clock, as pthread_getcpuclockid gives it for a thread; zero
// if the thread has ended.
inline absl::Duration ProcessorTime(clockid_t clock) {
  timespec time = {};
  clock_gettime(clock, &time);
  return absl::DurationFromTimespec(time);
}

}  // namespace megatron

#endif  // MEGATRON_COMM_WATCH_PROCESSOR_TIME_H_
