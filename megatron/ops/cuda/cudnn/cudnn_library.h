// The functions of cuDNN that its front end calls. cudnn_library.cc defines them: each calls the
// function of the same name in the loaded library.
#ifndef MEGATRON_OPS_CUDA_CUDNN_CUDNN_LIBRARY_H_
#define MEGATRON_OPS_CUDA_CUDNN_CUDNN_LIBRARY_H_

#include <cstdint>

#include "absl/status/statusor.h"

namespace megatron::ops::cuda {

// Loads the library once, and returns its version as cudnnGetVersion gives it.
absl::StatusOr<int64_t> LoadCudnn();

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_CUDNN_CUDNN_LIBRARY_H_
