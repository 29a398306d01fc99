// The functions of cuDNN that its front end calls, which cudnn_library.cc defines: each calls the
// one of the same name in the library that was loaded.
#ifndef MEGATRON_OPS_CUDA_CUDNN_CUDNN_LIBRARY_H_
#define MEGATRON_OPS_CUDA_CUDNN_CUDNN_LIBRARY_H_

#include <cstdint>

#include "absl/status/statusor.h"

namespace megatron::ops::cuda {

// Loads it, once; its version as cudnnGetVersion gives it.
absl::StatusOr<int64_t> LoadCudnn();

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_CUDNN_CUDNN_LIBRARY_H_
