// Attention by cuDNN: finds or makes the plan of a call, and gives it what it wants besides the
// call's operands, in the stream's workspace. Plans are kept for the life of the runner, so that a
// shape that came before costs no more than its launch.
#ifndef MEGATRON_OPS_CUDA_CUDNN_ATTENTION_RUNNER_H_
#define MEGATRON_OPS_CUDA_CUDNN_ATTENTION_RUNNER_H_

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "megatron/ops/cuda/cudnn/attention_call.h"
#include "megatron/ops/cuda/cudnn/plan.h"
#include "megatron/tensor/stream.h"

namespace megatron::ops::cuda {

// Threads: any, each with a stream of its own.
class CudnnAttentionRunner {
 public:
  // Of a workspace, which is no planned memory: deterministic gradients want many times the
  // queries'.
  static constexpr int64_t kMostWorkspaceBytes = int64_t{4} << 30;

  // The maker outlives the runner.
  explicit CudnnAttentionRunner(CudnnPlanMaker* maker) : maker_(maker) {}

  // False: cuDNN does not take the call, and nothing was enqueued. The first time that this happens
  // for a reason, the log says so.
  bool Run(const Stream& stream, const AttentionCall& call);

 private:
  using Key = std::pair<int, CudnnAttention>;  // with the device

  // Null: there is none.
  const CudnnPlan* PlanFor(const CudaStream& stream, const CudnnAttention& description);

  CudnnPlanMaker* const maker_;
  std::mutex mutex_;
  std::map<Key, std::unique_ptr<CudnnPlan>> plans_;
};

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_CUDNN_ATTENTION_RUNNER_H_
