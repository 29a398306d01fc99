// Attention by cuDNN: finds or makes the plan of a call, and provides the further memory that it
// needs in the stream's workspace. Plans are kept for the life of the runner, so a shape that came
// before costs only its launch.
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
  // The largest workspace of cuDNN, which is not planned memory: deterministic gradients want many
  // times the memory of the queries.
  static constexpr int64_t kMostWorkspaceBytes = int64_t{4} << 30;

  // The maker outlives the runner.
  explicit CudnnAttentionRunner(CudnnPlanMaker* maker) : maker_(maker) {}

  // Returns false, having enqueued nothing, if cuDNN does not support the call. The first time for
  // each reason, it logs the reason.
  bool Run(const Stream& stream, const AttentionCall& call);

 private:
  using Key = std::pair<int, CudnnAttention>;  // device and description

  // A null plan means that cuDNN has none.
  const CudnnPlan* PlanFor(const CudaStream& stream, const CudnnAttention& description);

  CudnnPlanMaker* const maker_;
  std::mutex mutex_;
  std::map<Key, std::unique_ptr<CudnnPlan>> plans_;
};

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_CUDNN_ATTENTION_RUNNER_H_
