// Sums of the columns of a matrix: the gradients of biases.
#ifndef MEGATRON_OPS_CUDA_COLUMN_SUMS_H_
#define MEGATRON_OPS_CUDA_COLUMN_SUMS_H_

#include <cstdint>

#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops::cuda {

// sums (fp32) += column sums of x, whose rows may have a stride: rows of a slice in ascending
// order, then slices in order. Uses the stream's workspace.
void AddColumnSums(const Stream& stream, const Tensor& x_TH, const Tensor& sums_H);

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_COLUMN_SUMS_H_
