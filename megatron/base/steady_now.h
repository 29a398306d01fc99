// SteadyNow: the time of a clock that nobody sets, for deadlines and the lengths of waits.
#ifndef MEGATRON_BASE_STEADY_NOW_H_
#define MEGATRON_BASE_STEADY_NOW_H_

#include <chrono>

#include "absl/time/time.h"

namespace megatron {

// Returns the time since a moment that is the same for all processes of a machine, as if that were
// absl::UnixEpoch(). It is no date: compare it with other values of this function alone, and wait
// for a length of time, not until such a time. A machine's clock that is set changes nothing.
inline absl::Time SteadyNow() {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace megatron

#endif  // MEGATRON_BASE_STEADY_NOW_H_
