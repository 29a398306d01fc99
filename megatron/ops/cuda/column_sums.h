// Sums of the columns of a matrix: the gradients of biases.
#ifndef MEGATRON_OPS_CUDA_COLUMN_SUMS_H_
#define MEGATRON_OPS_CUDA_COLUMN_SUMS_H_

#include <cstdint>
#include <initializer_list>

#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

struct CUstream_st;

namespace megatron::ops::cuda {

// sums (fp32) += column sums of x, whose rows may have a stride. It uses the stream's workspace.
// The order of the sum depends only on the sizes.
void AddColumnSums(const Stream& stream, const Tensor& x_TH, const Tensor& sums_H);

// sums (fp32) += x, of any floating dtype: the same for one row, without the workspace.
void AddRow(const Stream& stream, const Tensor& x_H, const Tensor& sums_H);

// The last step of such sums: each of `sums` += the rows of its matrix in partial [sums, slices,
// columns]; null: dropped. There are at most three.
void AddSlices(const float* partial, int64_t slices, int64_t columns,
               std::initializer_list<float*> sums, CUstream_st* stream);

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_COLUMN_SUMS_H_
