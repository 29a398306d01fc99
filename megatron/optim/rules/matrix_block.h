// The matrices that a parameter consists of, and the part of each that this rank holds.
#ifndef MEGATRON_OPTIM_RULES_MATRIX_BLOCK_H_
#define MEGATRON_OPTIM_RULES_MATRIX_BLOCK_H_

#include <cstdint>
#include <vector>

#include "megatron/tensor/parameter.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// This rank's rows and columns of one matrix.
class MatrixBlock {
 public:
  // What tensor-parallel ranks hold of the matrix: each all of it, or different rows or columns.
  enum class Cut { kNone, kRows, kColumns };

  Cut cut = Cut::kNone;
  int64_t rows = 0, columns = 0;              // those of the block
  int64_t whole_rows = 0, whole_columns = 0;  // those of the matrix
  // The number of consecutive tensor-parallel ranks that hold each block, where the matrix is cut.
  int replicas = 1;

  int64_t numel() const { return rows * columns; }
  // Returns the block's elements of a tensor that has the shape of the parameter's block. Its last
  // dim has the columns, the others the rows.
  Tensor Of(const Tensor& parameter) const;
  // Returns the number of different blocks of the matrix.
  int64_t count() const { return whole_rows * whole_columns / numel(); }

 private:
  friend std::vector<MatrixBlock> MatrixBlocksOf(const Parameter& parameter, bool splits_parts);

  std::vector<int64_t> stacked_;  // indices of the first dims
  int64_t begin_ = 0, end_ = 0;   // range of dim 1, where parts are matrices
  bool is_part_ = false;
};

// Returns the blocks of all matrices that this rank has of the parameter, which has some. Without
// `splits_parts`, MatrixDims::parts are one matrix together.
std::vector<MatrixBlock> MatrixBlocksOf(const Parameter& parameter, bool splits_parts);

}  // namespace megatron

#endif  // MEGATRON_OPTIM_RULES_MATRIX_BLOCK_H_
