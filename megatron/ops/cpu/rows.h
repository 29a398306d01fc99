// Parallel loops over rows of activations, and sums over rows whose order does not depend on the
// number of threads.
#ifndef MEGATRON_OPS_CPU_ROWS_H_
#define MEGATRON_OPS_CPU_ROWS_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/cpu/row_kernels.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

const RowKernels& ActiveRowKernels();

// Returns the start of row `row`, an index over all dims but the last; null for an empty tensor.
void* RowOf(const Tensor& tensor, int64_t row);

// Calls body(row) for every row, in parallel; rows have `columns` columns.
void ParallelRows(ThreadPool* pool, int64_t rows, int64_t columns,
                  absl::FunctionRef<void(int64_t row)> body);

// Calls body(row, sums) for every row, in parallel; the body adds the row's terms to `sums`, which
// has `columns` floats for each of `outs`. Then adds the sums to the `outs` (null: dropped). Rows
// are added in order within fixed tiles, and tiles in order.
struct ColumnSums {
  int64_t columns = 0;
  float* outs[2] = {nullptr, nullptr};
};
void ParallelRowsWithSums(ThreadPool* pool, int64_t rows, const ColumnSums& sums,
                          absl::FunctionRef<void(int64_t row, float* sums)> body);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CPU_ROWS_H_
