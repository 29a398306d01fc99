// A lane on a CUDA stream of its own, beside the one that computes. The host enqueues a job where
// it is given, behind what the computing stream was given before, and waits for nothing.
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
  const Stream stream_;  // cuda_
  CudaEvent given_;
  // Of job `number` at number % size, until it is a later one's: whoever waits then waits longer.
  std::vector<std::unique_ptr<CudaEvent>> done_;
  int64_t added_ = 0;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_COMM_STREAM_H_
