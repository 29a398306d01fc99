// The grid of *2D, 2.5D and 3D tensor parallelism*: d * q * q tensor-parallel ranks, among which
// each matrix is cut along both dims. They form d squares, the levels, of q rows and q columns; the
// *depth* d is 1 in 2D.
//
// The *residual layout*, that of what lies between layers: the rank on level k, in row i and column
// j has the samples of part i * d + k of each micro-batch, and the columns of block j. Of what goes
// with columns alone (biases, norms, tables of positions) it has block j, as all ranks of column j
// on all levels do, each of which has the gradient's summand of its own samples.
//
// *Squares* (2D: Q. Xu et al., arXiv 2104.05343; 2.5D: B. Wang et al., arXiv 2105.14500). All that
// is between a layer's products has the residual layout, too. Of a weight [output, input] a rank
// has the outputs of block j and the inputs of block i; of the word table the words of block i and
// the columns of block j. All levels have the same weights, and each has the gradients' summand of
// its own samples.
//
// *A cube* (3D: Z. Bian et al., arXiv 2105.14450), where d = q. Between a layer's products is the
// *inner layout*: the samples of part j * q + k and the columns, heads or words of block i. Nothing
// is replicated but vectors: of a weight whose inputs have the residual layout a rank has the
// outputs of block i and part j * q + k of the inputs, of one whose inputs have the inner layout
// the outputs of block j and part i * q + k of the inputs. Of the word table, which is also cut as
// an output matrix, it has part i * q + k of the words and the columns of block j.
//
// Heads, and the vocabulary behind the output layer, are cut over q ranks as they are cut over all
// tensor-parallel ranks without a grid: those of a row of a square, those of a column of a cube. So
// layers are given these as their tensor-parallel group.
#ifndef MEGATRON_LAYERS_TENSOR_GRID_H_
#define MEGATRON_LAYERS_TENSOR_GRID_H_

#include <cstdint>

#include "megatron/comm/process_group.h"
#include "megatron/tensor/parameter.h"

namespace megatron {

// The direction of a matrix product, between the residual layout and the inner one.
enum class GridTurn { kInward, kOutward };

// A rank's place in the grid.
struct TensorGrid {
  int side = 1;  // q; 1: the ranks form no grid
  int row = 0, column = 0;
  int depth = 1;  // d
  int level = 0;
  bool is_cube = false;

  bool is_grid() const { return side > 1; }
  // Returns this rank's part of so many columns.
  int64_t PartOf(int64_t columns) const { return columns / side; }
  // The part of a micro-batch's samples that this rank has in the residual layout, and their
  // number.
  int sample_part() const { return row * depth + level; }
  int sample_parts() const { return side * depth; }
  // The same in a cube's inner layout.
  int inner_sample_part() const { return column * depth + level; }
};

// A rank's groups in the grid; default groups where there is none.
struct TensorGridGroups {
  ProcessGroup row, column;  // those of this rank's level
  ProcessGroup square;       // this rank's level, column by column
  ProcessGroup depth;        // the ranks in the same place of all levels
  // The columns in the same place of all levels, level by level in each row.
  ProcessGroup columns;
  bool is_cube = false;

  bool is_grid() const { return row.size() > 1; }
  // Returns the ranks over which heads and the vocabulary are cut.
  const ProcessGroup& heads() const { return is_cube ? column : row; }
  // Returns the ranks over which the words of the table are cut.
  const ProcessGroup& words() const { return is_cube ? columns : column; }
  TensorGrid Place() const {
    return {row.size(), column.rank(), row.rank(), depth.size(), depth.rank(), is_cube};
  }
};

// Returns the sharding of a tensor that goes with columns of the residual layout, which are its dim
// `by_column`.
Sharding SplitOverColumns(const Shape& shape, int by_column, const TensorGrid& grid);
// Returns the sharding of a weight [..., inputs], whose dim `by_output` is cut.
Sharding SplitWeight(const Shape& shape, int by_output, GridTurn turn, const TensorGrid& grid);
// Returns those of the word table [words, columns], and of an output matrix of its own.
Sharding SplitWordTable(const Shape& shape, const TensorGrid& grid);
Sharding SplitOutputMatrix(const Shape& shape, const TensorGrid& grid);

}  // namespace megatron

#endif  // MEGATRON_LAYERS_TENSOR_GRID_H_
