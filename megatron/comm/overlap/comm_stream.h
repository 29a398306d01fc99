// A lane on a second CUDA stream, beside the one that computes. The host enqueues a job in Add and
// never waits.
#ifndef MEGATRON_COMM_OVERLAP_COMM_STREAM_H_
#define MEGATRON_COMM_OVERLAP_COMM_STREAM_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "megatron/comm/overlap/comm_lane.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/stream.h"

namespace megatron {

class CommStream : public CommLane {
 public:
  // `name` is for the reader of a trace.
  CommStream(const Stream& compute, const std::string& name);

  int64_t Add(Job job) override;
  void Wait(int64_t number) override;

 private:
  const Stream compute_;
  CudaStream cuda_;
  const Stream stream_;  // a stream on cuda_
  CudaEvent given_;      // follows the computing stream's work before the last Add
  // The event at index number % size follows job `number`. A later job reuses it; then waiting for
  // `number` waits for the later job.
  std::vector<std::unique_ptr<CudaEvent>> done_;
  int64_t added_ = 0;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_OVERLAP_COMM_STREAM_H_
