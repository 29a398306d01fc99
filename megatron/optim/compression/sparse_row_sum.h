// Exact sums over ranks of tables in which few rows are not zero, such as gradients of embeddings:
// ranks gather these rows in place of a sum of the whole tables. The bits are those of a sum of the
// whole tables in the order of ranks, but for the sign of zeros.
//
// The rows of a rank are a message of as many places as the rank with most of them has. Where that
// is more bytes than a sum of whole tables, or more rows than there is memory for, nothing is done.
#ifndef MEGATRON_OPTIM_COMPRESSION_SPARSE_ROW_SUM_H_
#define MEGATRON_OPTIM_COMPRESSION_SPARSE_ROW_SUM_H_

#include <cstdint>
#include <optional>

#include "megatron/comm/process_group.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

class SparseRowSum {
 public:
  // Tables of so many rows, of which a rank has at most `most_rows` that are not zero.
  // `everywhere`: all ranks need the whole sum, or else each a shard of it, for which half as many
  // bytes are sent.
  SparseRowSum(int64_t rows, int64_t columns, int64_t most_rows, int ranks, bool everywhere);

  // The most rows of a rank that are gathered.
  int64_t limit() const { return limit_; }
  int64_t scratch_bytes() const;

  // table_VH = its sum over the group, on all ranks. Returns the number of rows that this rank has
  // sent; none: a rank has more than limit() rows, and nothing was done. All memory is on the CPU;
  // `scratch` has scratch_bytes() or more.
  std::optional<int64_t> Sum(const Tensor& table_VH, const Buffer& scratch,
                             const ProcessGroup& group, const Stream& stream) const;

 private:
  int64_t rows_, columns_;
  int ranks_;
  int64_t limit_ = 0;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_COMPRESSION_SPARSE_ROW_SUM_H_
