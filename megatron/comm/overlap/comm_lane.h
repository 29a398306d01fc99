// CommLane: a queue of communication that overlaps with a rank's computation. Its jobs run one
// after the other in the order given, on a thread (comm_worker.h) or on a stream of the GPU
// (comm_stream.h).
//
// Ranks that add jobs in the same order, and whose jobs use groups that nobody else uses, can wait
// for each other's jobs without a deadlock.
#ifndef MEGATRON_COMM_OVERLAP_COMM_LANE_H_
#define MEGATRON_COMM_OVERLAP_COMM_LANE_H_

#include <cstdint>
#include <functional>

#include "megatron/tensor/stream.h"

namespace megatron {

class CommLane {
 public:
  // Communicates on the stream that it is given.
  using Job = std::function<void(const Stream&)>;

  // Runs the remaining jobs, then ends.
  virtual ~CommLane() = default;

  // Adds a job that begins after all work that the computing stream was given before. Returns its
  // number, counted from 1.
  virtual int64_t Add(Job job) = 0;
  // Makes everything that the caller does on its stream from now on happen after the job of this
  // number. Number 0 stands for no job.
  virtual void Wait(int64_t number) = 0;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_OVERLAP_COMM_LANE_H_
