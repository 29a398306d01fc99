#include "megatron/optim/compression/sparse_row_sum.h"

#include <algorithm>

#include "glog/logging.h"
#include "megatron/ops/compression/sparse_rows.h"
#include "megatron/optim/compression/gathered_counts.h"

namespace megatron {
namespace {

constexpr int64_t kInt = sizeof(int32_t), kFloat = sizeof(float);

// The bytes of a row with its number.
int64_t RowBytes(int64_t columns) { return kInt + kFloat * columns; }

}  // namespace

SparseRowSum::SparseRowSum(int64_t rows, int64_t columns, int64_t most_rows, int ranks,
                           bool everywhere)
    : rows_(rows), columns_(columns), ranks_(ranks) {
  // A rank sends its rows to each other one, (ranks - 1) times in all; and of whole tables, as it
  // sums them, (ranks - 1) / ranks, twice where all ranks need the sum.
  const int64_t table = kFloat * rows * columns;
  const int64_t paying = ((everywhere ? 2 : 1) * table - 1) / (RowBytes(columns) * ranks);
  limit_ = std::min({rows, most_rows, paying});
}

int64_t SparseRowSum::scratch_bytes() const {
  return ranks_ * (kInt + limit_ * RowBytes(columns_));
}

std::optional<int64_t> SparseRowSum::Sum(const Tensor& table_VH, const Buffer& scratch,
                                         const ProcessGroup& group, const Stream& stream) const {
  CHECK_EQ(table_VH.dim(0), rows_);
  CHECK_EQ(table_VH.dim(1), columns_);
  CHECK_EQ(group.size(), ranks_);
  CHECK_GE(scratch.bytes(), scratch_bytes());
  const int64_t own = ops::CountRows(stream, table_VH);
  const GatheredCounts counts =
      GatherCounts(own, scratch.At(0, DType::kInt32, {ranks_}), group, stream);
  if (counts.most > limit_) return std::nullopt;
  if (counts.most == 0) return 0;
  const int64_t message = counts.most * RowBytes(columns_), first = ranks_ * kInt;
  const auto indices = [&](int rank) {
    return scratch.At(first + rank * message, DType::kInt32, {counts.of_rank[rank]});
  };
  const auto rows = [&](int rank) {
    return scratch.At(first + rank * message + counts.most * kInt, DType::kFloat32,
                      {counts.of_rank[rank], columns_});
  };
  const int mine = group.rank();
  ops::TakeRows(stream, table_VH, indices(mine), rows(mine));
  const Tensor all = scratch.At(first, DType::kUInt8, {ranks_ * message});
  group.AllGather(all.Slice(0, mine * message, (mine + 1) * message), all, stream);
  if (!group.status().ok()) return 0;
  for (int rank = 0; rank < ranks_; ++rank)
    ops::AddRows(stream, indices(rank), rows(rank), table_VH);
  return own;
}

}  // namespace megatron
