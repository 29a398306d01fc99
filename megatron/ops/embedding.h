// Lookups in an embedding table. Legend: T tokens, V rows of this rank's part of the table, H
// columns. ids are int32; y has the table's dtype; all tensors are contiguous.
#ifndef MEGATRON_OPS_EMBEDDING_H_
#define MEGATRON_OPS_EMBEDDING_H_

#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

// y[t] = table[ids[t] - first_row], or zero if this rank does not hold the row. With `accumulate`,
// y += instead.
void EmbeddingForward(const Stream& stream, const Tensor& ids_T, const Tensor& table_VH,
                      int64_t first_row, bool accumulate, const Tensor& y_TH);

// dtable[ids[t] - first_row] += dy[t] (fp32), in the order of t. There are no atomics, and the bits
// are the same for any number of threads.
void EmbeddingBackward(const Stream& stream, const Tensor& ids_T, const Tensor& dy_TH,
                       int64_t first_row, const Tensor& dtable_VH);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_EMBEDDING_H_
