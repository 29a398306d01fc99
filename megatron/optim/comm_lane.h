// Where a rank's overlapped communication happens, one job after the other in the order given: a
// thread (comm_worker.h) or a stream of the GPU (comm_stream.h).
//
// With the same order on every rank, and groups that nobody else uses, ranks can wait for each
// other's jobs without waiting in a circle.
#ifndef MEGATRON_OPTIM_COMM_LANE_H_
#define MEGATRON_OPTIM_COMM_LANE_H_

#include <cstdint>

namespace megatron {

class CommLane {
 public:
  struct Job {
    int kind = 0, unit = 0;  // what they mean is the owner's matter
  };

  // Does what was given, then ends.
  virtual ~CommLane() = default;

  // Returns the job's number, counted from 1.
  virtual int64_t Add(const Job& job) = 0;
  // What the caller does from now on, on its stream, happens after the job of this number; 0: after
  // none.
  virtual void Wait(int64_t number) = 0;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_COMM_LANE_H_
