// A kernel of cuDNN for the calls of one description.
#ifndef MEGATRON_OPS_CUDA_CUDNN_PLAN_H_
#define MEGATRON_OPS_CUDA_CUDNN_PLAN_H_

#include <array>
#include <cstdint>
#include <memory>

#include "megatron/ops/cuda/cudnn/attention_call.h"
#include "megatron/tensor/cuda_device.h"

namespace megatron::ops::cuda {

// The device pointers of one call's operands.
struct CudnnPointers {
  std::array<void*, kCudnnRoles> tensors{};
  // The arrays of packed sequences: offsets, int64 [sequences + 1] of each tensor, in elements;
  // lengths, int32 [sequences].
  std::array<void*, kCudnnRoles> offsets{};
  void *query_lengths = nullptr, *key_lengths = nullptr;
  void* workspace = nullptr;
};

// Threads: one at a time, like the stream.
class CudnnPlan {
 public:
  virtual ~CudnnPlan() = default;

  virtual int64_t workspace_bytes() const = 0;
  // Enqueues the kernel.
  virtual void Run(const CudaStream& stream, const CudnnPointers& at) const = 0;
};

// Threads: any.
class CudnnPlanMaker {
 public:
  virtual ~CudnnPlanMaker() = default;

  // Returns null if cuDNN has no kernel. It takes up to some seconds, and must not be called while
  // the stream's work is recorded into a graph.
  virtual std::unique_ptr<CudnnPlan> Make(const CudaStream& stream,
                                          const CudnnAttention& attention) = 0;
};

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_CUDNN_PLAN_H_
