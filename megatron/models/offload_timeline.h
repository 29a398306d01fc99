// The time that a stage needs whose first layers keep in host memory what backward reads: the work
// of ActivationStore, with a length for each pass and each copy.
//
//   const int64_t segments =
//       MostHiddenSegments({first_stage, last_stage}, /*bytes_per_second=*/5e10);
#ifndef MEGATRON_MODELS_OFFLOAD_TIMELINE_H_
#define MEGATRON_MODELS_OFFLOAD_TIMELINE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "megatron/pipeline/schedule.h"

namespace megatron {

// One micro-batch in a segment (activation_store.h), or in the head.
struct SegmentSeconds {
  double forward = 0, backward = 0;
};

struct TimedSegment {
  SegmentSeconds seconds;
  double bytes = 0;  // what it keeps for backward
};

// A chunk of a stage.
struct TimedChunk {
  std::vector<TimedSegment> segments;  // in the order of the layers
  SegmentSeconds head;                 // what comes behind them; 0 without a head
};

struct TimedStage {
  std::vector<TimedChunk> chunks;
  std::vector<Action> actions;  // those of a step: forward passes and whole backward passes
  // Whether a segment writes the input of the next one, which then needs its window earlier.
  bool writes_next_input = false;
};

// Returns the seconds of the stage's step, in which it waits for copies and for no other stage, if
// the first `count` segments of each chunk are offloaded.
double SecondsWithOffload(const TimedStage& stage, int64_t count, double bytes_per_second);

// Returns the largest number of first segments of each chunk that costs none of the stages any
// time. Where a chunk has fewer, all of its own count.
int64_t MostHiddenSegments(absl::Span<const TimedStage> stages, double bytes_per_second);

}  // namespace megatron

#endif  // MEGATRON_MODELS_OFFLOAD_TIMELINE_H_
