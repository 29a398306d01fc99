// A lane on a second CUDA stream, beside the one that computes. A job begins after all work that
// the computing stream was given before Add. The host enqueues it in Add and never waits.
#ifndef MEGATRON_OPTIM_COMM_STREAM_H_
#define MEGATRON_OPTIM_COMM_STREAM_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "megatron/optim/comm_lane.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/stream.h"

namespace megatron {

class CommStream : public CommLane {
 public:
  CommStream(const Stream& compute, std::function<void(const Job&, const Stream&)> run);

  int64_t Add(const Job& job) override;
  void Wait(int64_t number) override;

 private:
  const Stream compute_;
  const std::function<void(const Job&, const Stream&)> run_;
  CudaStream cuda_;
  const Stream stream_;  // a stream on cuda_
  CudaEvent given_;      // follows the computing stream's work before the last Add
  // The event at index number % size follows job `number`. A later job reuses it; then waiting for
  // `number` waits for the later job.
  std::vector<std::unique_ptr<CudaEvent>> done_;
  int64_t added_ = 0;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_COMM_STREAM_H_
