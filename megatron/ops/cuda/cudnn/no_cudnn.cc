#ifndef MEGATRON_CUDNN
#include "absl/status/status.h"
#include "glog/logging.h"
#include "megatron/ops/cuda/cudnn/cudnn_kernels.h"

namespace megatron::ops::cuda {

absl::StatusOr<std::string> CudnnVersion() {
  return absl::FailedPreconditionError(
      "this program was built without cuDNN: build it with --config=cuda where the CUDA toolkit "
      "has "
      "cuDNN's headers (cudnn.h)");
}

bool RunCudnnAttention(const Stream&, const AttentionCall&) {
  LOG(FATAL) << CudnnVersion().status();
  return false;
}

}  // namespace megatron::ops::cuda
#endif  // MEGATRON_CUDNN
