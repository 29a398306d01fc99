#include "megatron/optim/rules/matrix_block.h"

#include <algorithm>

#include "glog/logging.h"

namespace megatron {

Tensor MatrixBlock::Of(const Tensor& parameter) const {
  Tensor block = parameter;
  for (const int64_t index : stacked_) block = block.Select(0, index);
  return is_part_ ? block.Slice(1, begin_, end_) : block;
}

std::vector<MatrixBlock> MatrixBlocksOf(const Parameter& parameter, bool splits_parts) {
  CHECK(parameter.matrix.has_value()) << parameter.name;
  const MatrixDims& dims = *parameter.matrix;
  const Sharding& sharding = parameter.sharding;
  const Shape &local = sharding.local_shape, &global = sharding.global_shape;
  const int rank = local.rank();
  CHECK_GE(rank, dims.stacked + 2) << parameter.name;
  CHECK(dims.stacked == 0 || dims.parts.empty()) << parameter.name;

  MatrixBlock whole;
  whole.replicas = sharding.tensor_replicas;
  std::vector<MatrixBlock> blocks;
  const auto append = [&](MatrixBlock block, const Shape& block_shape, const Shape& matrix_shape) {
    block.rows = block.whole_rows = 1;
    for (int d = dims.stacked; d < rank; ++d) {
      const bool is_column = d + 1 == rank;
      (is_column ? block.columns : block.rows) =
          is_column ? block_shape[d] : block.rows * block_shape[d];
      (is_column ? block.whole_columns : block.whole_rows) =
          is_column ? matrix_shape[d] : block.whole_rows * matrix_shape[d];
    }
    CHECK(block.rows == block.whole_rows || block.columns == block.whole_columns) << parameter.name;
    block.cut = block.rows < block.whole_rows         ? MatrixBlock::Cut::kRows
                : block.columns < block.whole_columns ? MatrixBlock::Cut::kColumns
                                                      : MatrixBlock::Cut::kNone;
    blocks.push_back(block);
  };
  if (splits_parts && !dims.parts.empty()) {
    int64_t part_begin = 0;
    const int64_t begin = sharding.offset[1], end = begin + local[1];
    for (const int64_t part : dims.parts) {
      const int64_t part_end = part_begin + part;
      Shape block_shape = local, matrix_shape = global;
      MatrixBlock block = whole;
      block.is_part_ = true;
      block.begin_ = std::max(part_begin, begin) - begin;
      block.end_ = std::min(part_end, end) - begin;
      block_shape[1] = block.end_ - block.begin_;
      matrix_shape[1] = part;
      if (block.begin_ < block.end_) append(block, block_shape, matrix_shape);
      part_begin = part_end;
    }
    CHECK_EQ(part_begin, global[1]) << parameter.name;
    return blocks;
  }
  int64_t stacked = 1;
  for (int d = 0; d < dims.stacked; ++d) stacked *= local[d];
  for (int64_t i = 0; i < stacked; ++i) {
    MatrixBlock block = whole;
    int64_t rest = i;
    for (int d = dims.stacked - 1; d >= 0; --d) {
      block.stacked_.insert(block.stacked_.begin(), rest % local[d]);
      rest /= local[d];
    }
    append(block, local, global);
  }
  return blocks;
}

}  // namespace megatron
