// The times of the parts of single steps, a few of them spread over a run, for a replay.
//
//   StepSampler sampler(&trace);
//   ...                                            // each step:
//   sampler.Begin();
//   ... the step ...
//   sampler.End();
//   ...                                            // at the end of the run:
//   std::vector<std::vector<StepTimes>> all = GatherStepTimes(sampler.samples(), world);
#ifndef MEGATRON_TRAIN_METRICS_STEP_TIMES_H_
#define MEGATRON_TRAIN_METRICS_STEP_TIMES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "megatron/comm/process_group.h"
#include "megatron/tensor/trace/trace.h"

namespace megatron {

// Nanoseconds: all of a part's time, and that of the calls with other ranks within it.
struct PartTime {
  int64_t time = 0, calls = 0;

  int64_t own() const { return time - calls; }
};

// One step of one rank. Its parts follow each other; waiting for exchanges that run beside them is
// in none of them.
struct StepTimes {
  PartTime head;  // until the pipeline begins
  // The steps of the stage's plan (pipeline/stage_plan.h) in order: all of them, or the actions
  // where exchanges run beside them.
  std::vector<PartTime> pipeline;
  std::vector<int64_t> beside;  // the times of the exchanges that run beside the actions, in order
  PartTime tail;  // from there until the norm of the gradients is known, for which all ranks wait
  PartTime rest;  // the update, and what follows it
  int64_t reduction = 0;  // the calls of the tail that reduce gradients
  int64_t total = 0;      // the whole step

  // The rank's own work, without calls.
  int64_t work() const;
};

// Reads the step that the recorded streams hold, the first of several; the first stream computes.
// Nothing if there is none with all of its parts.
std::optional<StepTimes> ReadStepTimes(const std::vector<TracedStream>& streams);

// Records steps of a rank, at most `most`, at equal distances that grow with the run. All ranks
// record the same steps, if all make the same calls.
class StepSampler {
 public:
  // The trace's first stream is the one that computes; nothing else may record with the trace
  // between Begin and End. `trace` must outlive this.
  explicit StepSampler(Trace* trace, size_t most = 16) : trace_(trace), most_(most) {}

  // Tells that a step begins, and that it has ended. The first step is not recorded.
  void Begin();
  void End();

  // The recorded steps; one that could not be read has an empty pipeline.
  const std::vector<StepTimes>& samples() const { return samples_; }

 private:
  Trace* const trace_;
  const size_t most_;
  int64_t steps_ = 0, distance_ = 1;
  bool recording_ = false;
  std::vector<StepTimes> samples_;
};

// Returns what all ranks give, by rank, or, of many ranks, the newest steps of it; after a failure
// of the group only what this one gives. All ranks give as many steps.
std::vector<std::vector<StepTimes>> GatherStepTimes(const std::vector<StepTimes>& mine,
                                                    const ProcessGroup& world);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_METRICS_STEP_TIMES_H_
