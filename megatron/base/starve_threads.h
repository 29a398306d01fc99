// Threads that get no processor for a while, as on a machine that has too much to do.
//
//   const std::set<pid_t> before = ThreadIds();
//   FaultMonitor monitor(...);
//   Starve(ThreadsSince(before), absl::Seconds(6));
#ifndef MEGATRON_BASE_STARVE_THREADS_H_
#define MEGATRON_BASE_STARVE_THREADS_H_

#include <sys/types.h>

#include <set>

#include "absl/time/time.h"

namespace megatron {

// The threads of this process.
std::set<pid_t> ThreadIds();
// Those that were not there before.
std::set<pid_t> ThreadsSince(const std::set<pid_t>& before);

// Keeps threads of this process, wherever they are, in a signal handler for so long. Returns at
// once. Uses SIGUSR2.
void Starve(const std::set<pid_t>& threads, absl::Duration time);

}  // namespace megatron

#endif  // MEGATRON_BASE_STARVE_THREADS_H_
