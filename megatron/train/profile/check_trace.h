// Checks that a trace is one that ui.perfetto.dev and chrome://tracing show in full. For tests.
#ifndef MEGATRON_TRAIN_PROFILE_CHECK_TRACE_H_
#define MEGATRON_TRAIN_PROFILE_CHECK_TRACE_H_

#include <string>

#include "absl/status/status.h"

namespace megatron {

// Reads a file in the Trace Event Format. Returns an error that names the first event which
//   - lacks ph, pid or name, or, being complete ("X"), tid, ts or dur, or has a negative time;
//   - belongs to a process or a thread without a name;
//   - overlaps another one of its thread without lying within it: viewers draw no such event.
// Times are compared in nanoseconds, as Perfetto keeps them. A trace without events is an error.
absl::Status CheckTrace(const std::string& text);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PROFILE_CHECK_TRACE_H_
