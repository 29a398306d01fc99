// Loops over rows of activations, and sums over them in an order that no number of threads changes.
#ifndef MEGATRON_OPS_CPU_ROWS_H_
#define MEGATRON_OPS_CPU_ROWS_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/cpu/row_kernels.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

const RowKernels& ActiveRowKernels();

// The start of row `row`, an index over all dims but the last; null for an empty tensor.
void* RowOf(const Tensor& tensor, int64_t row);

// Shares out rows of `columns` columns.
void ParallelRows(ThreadPool* pool, int64_t rows, int64_t columns,
                  absl::FunctionRef<void(int64_t row)> body);

// Calls body(row, sums) for every row, where `sums` are `count` floats to add that row's terms to;
// then adds all of them to each of `outs` (one for every `columns` of the sums; null: dropped).
// Rows are added in order within fixed tiles, and tiles in order.
struct ColumnSums {
  int64_t columns = 0;
  float* outs[2] = {nullptr, nullptr};
};
void ParallelRowsWithSums(ThreadPool* pool, int64_t rows, const ColumnSums& sums,
                          absl::FunctionRef<void(int64_t row, float* sums)> body);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CPU_ROWS_H_
