// cuDNN's attention behind the op. The library is loaded when it is first asked for: a program does
// not need it to start, and none is linked.
#ifndef MEGATRON_OPS_CUDA_CUDNN_CUDNN_KERNELS_H_
#define MEGATRON_OPS_CUDA_CUDNN_CUDNN_KERNELS_H_

#include <string>

#include "absl/status/statusor.h"
#include "megatron/ops/cuda/cudnn/attention_call.h"
#include "megatron/tensor/stream.h"

namespace megatron::ops::cuda {

// The library's version ("9.19.0"), or why there is none and what would help.
absl::StatusOr<std::string> CudnnVersion();

// False: cuDNN does not take the call, and nothing was enqueued (attention_runner.h). Without the
// library the program ends: whoever chooses kernels asks for its version first.
bool RunCudnnAttention(const Stream& stream, const AttentionCall& call);

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_CUDNN_CUDNN_KERNELS_H_
