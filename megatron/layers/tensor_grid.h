// The square of *2D tensor parallelism*: q * q tensor-parallel ranks, among which each matrix is
// cut along both dims (Q. Xu et al., "An Efficient 2D Method for Training Super-Large Deep Learning
// Models", arXiv 2104.05343).
//
// The rank in row i and column j has the samples of row i of each micro-batch, and of what lies
// between layers the columns of block j. Of a weight [output, input] it has the outputs of block j
// and the inputs of block i; of the word table the words of block i and the columns of block j. Of
// what goes with columns alone (biases, norms, tables of positions) it has block j, as all ranks of
// its column do, each of which has the gradient's summand of its own samples.
//
// Heads, and the vocabulary behind the output layer, are cut over the ranks of a row as they are
// cut over all tensor-parallel ranks without a square. So layers are given the row as their tensor-
// parallel group.
#ifndef MEGATRON_LAYERS_TENSOR_GRID_H_
#define MEGATRON_LAYERS_TENSOR_GRID_H_

#include <cstdint>

#include "megatron/tensor/parameter.h"

namespace megatron {

// A rank's place in the square.
struct TensorGrid {
  int side = 1;  // q; 1: the ranks form no square
  int row = 0, column = 0;

  bool is_square() const { return side > 1; }
  // Returns this rank's part of so many columns.
  int64_t PartOf(int64_t columns) const { return columns / side; }
};

// Returns the sharding of a tensor whose dim `by_column` is cut into `side` equal parts, of which a
// rank has that of its column.
Sharding SplitOverColumns(const Shape& shape, int by_column, const TensorGrid& grid);
// Returns the sharding of a tensor whose dim `by_row` is cut besides, a rank's part being that of
// its row.
Sharding SplitOverGrid(const Shape& shape, int by_column, int by_row, const TensorGrid& grid);

}  // namespace megatron

#endif  // MEGATRON_LAYERS_TENSOR_GRID_H_
