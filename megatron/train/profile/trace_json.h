// Writes the trace of a rank as JSON for ui.perfetto.dev or chrome://tracing.
//
// The format is the Trace Event Format (Google, 2016): complete events "X" with times in
// microseconds, counters "C", names as metadata "M". The rank is the process; each stream is a
// thread, and a GPU's stream is two threads: the host that enqueues, and the device.
#ifndef MEGATRON_TRAIN_PROFILE_TRACE_JSON_H_
#define MEGATRON_TRAIN_PROFILE_TRACE_JSON_H_

#include <string>
#include <vector>

#include "megatron/tensor/trace/trace.h"

namespace megatron {

// `title` tells the rank from others: "rank 3 of 8".
std::string TraceJson(int rank, const std::string& title, const std::vector<TracedStream>& streams);

// A rank of a trace of several.
struct TracedRank {
  int rank = 0;
  std::string title;
  std::vector<TracedStream> streams;
};

std::string TraceJson(const std::vector<TracedRank>& ranks);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PROFILE_TRACE_JSON_H_
