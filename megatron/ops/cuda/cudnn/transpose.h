// The transposes of fp32 matrices.
#ifndef MEGATRON_OPS_CUDA_CUDNN_TRANSPOSE_H_
#define MEGATRON_OPS_CUDA_CUDNN_TRANSPOSE_H_

#include <cstdint>

#include "megatron/tensor/stream.h"

namespace megatron::ops::cuda {

// Writes to out [matrices, columns, rows] (=) the transposes of in [matrices, rows, columns]. Both
// are contiguous and have elements.
void Transpose(const Stream& stream, const float* in, int64_t matrices, int64_t rows,
               int64_t columns, float* out);

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_CUDNN_TRANSPOSE_H_
