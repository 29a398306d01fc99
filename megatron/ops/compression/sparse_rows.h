// The rows of a table that are not zero, apart from the others. Legend: V rows of H columns, K of
// them taken. All tensors are contiguous; values are fp32, indices int32. A row is zero if all bits
// of it are. These ops run on the CPU.
#ifndef MEGATRON_OPS_COMPRESSION_SPARSE_ROWS_H_
#define MEGATRON_OPS_COMPRESSION_SPARSE_ROWS_H_

#include <cstdint>

#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

// Returns how many rows are not zero; 0 on a meta stream.
int64_t CountRows(const Stream& stream, const Tensor& table_VH);

// Moves the rows that are not zero, of which there are K, out of the table, where zeros stay, to
// `rows`, and their numbers to `indices`, which ascend. V < 2^31.
void TakeRows(const Stream& stream, const Tensor& table_VH, const Tensor& indices_K,
              const Tensor& rows_KH);

// table[indices[i]] += rows[i]. Indices ascend; one outside the table ends the program.
void AddRows(const Stream& stream, const Tensor& indices_K, const Tensor& rows_KH,
             const Tensor& table_VH);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_COMPRESSION_SPARSE_ROWS_H_
