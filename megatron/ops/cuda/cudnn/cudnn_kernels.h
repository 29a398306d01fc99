// Attention by cuDNN. The library is loaded at its first use: no program links it or needs it to
// start.
#ifndef MEGATRON_OPS_CUDA_CUDNN_CUDNN_KERNELS_H_
#define MEGATRON_OPS_CUDA_CUDNN_CUDNN_KERNELS_H_

#include <string>

#include "absl/status/statusor.h"
#include "megatron/ops/cuda/cudnn/attention_call.h"
#include "megatron/tensor/stream.h"

namespace megatron::ops::cuda {

// Returns the library's version ("9.19.0"), or why there is none and what would help.
absl::StatusOr<std::string> CudnnVersion();

// Returns false, having enqueued nothing, if cuDNN does not support the call (attention_runner.h).
// Without the library it ends the program: callers that choose a kernel check CudnnVersion first.
bool RunCudnnAttention(const Stream& stream, const AttentionCall& call);

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_CUDNN_CUDNN_KERNELS_H_
