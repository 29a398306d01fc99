#include "megatron/layers/tensor_grid.h"

#include "glog/logging.h"

namespace megatron {
namespace {

void Cut(int dim, int parts, int part, Sharding* sharding) {
  CHECK_EQ(sharding->global_shape[dim] % parts, 0)
      << "dim " << dim << " of " << sharding->global_shape << " over " << parts;
  sharding->local_shape[dim] = sharding->global_shape[dim] / parts;
  sharding->offset[dim] = part * sharding->local_shape[dim];
}

// One dim is cut by columns of the squares and another by rows; levels have the same.
Sharding CutOverSquares(const Shape& shape, int by_column, int by_row, const TensorGrid& grid) {
  Sharding sharding = Replicated(shape, grid.depth > 1 ? AxisSet{Axis::kTensor} : AxisSet{});
  Cut(by_column, grid.side, grid.column, &sharding);
  Cut(by_row, grid.side, grid.row, &sharding);
  sharding.sharded = {Axis::kTensor};
  sharding.tensor_replicas = grid.depth;
  return sharding;
}

// One dim is cut into blocks, and another into blocks of which each level has a part.
Sharding CutOverCube(const Shape& shape, int dim, int block, int by_level, int block_of_levels,
                     const TensorGrid& grid) {
  Sharding sharding = Replicated(shape);
  Cut(dim, grid.side, block, &sharding);
  Cut(by_level, grid.side * grid.depth, block_of_levels * grid.depth + grid.level, &sharding);
  sharding.sharded = {Axis::kTensor};
  return sharding;
}

}  // namespace

// The ranks of a column on all levels are neighbours, and so are those in the same place of all
// levels (comm/rank_grid.h), as replicas must be.
Sharding SplitOverColumns(const Shape& shape, int by_column, const TensorGrid& grid) {
  Sharding sharding = Replicated(shape, {Axis::kTensor});
  Cut(by_column, grid.side, grid.column, &sharding);
  sharding.sharded = {Axis::kTensor};
  sharding.tensor_replicas = grid.sample_parts();
  return sharding;
}

Sharding SplitWeight(const Shape& shape, int by_output, GridTurn turn, const TensorGrid& grid) {
  const int by_input = shape.rank() - 1;
  if (!grid.is_cube) return CutOverSquares(shape, by_output, by_input, grid);
  return turn == GridTurn::kInward
             ? CutOverCube(shape, by_output, grid.row, by_input, grid.column, grid)
             : CutOverCube(shape, by_output, grid.column, by_input, grid.row, grid);
}

Sharding SplitWordTable(const Shape& shape, const TensorGrid& grid) {
  if (!grid.is_cube) return CutOverSquares(shape, /*by_column=*/1, /*by_row=*/0, grid);
  return CutOverCube(shape, /*dim=*/1, grid.column, /*by_level=*/0, grid.row, grid);
}

// In a square it is cut like the weight of a linear layer.
Sharding SplitOutputMatrix(const Shape& shape, const TensorGrid& grid) {
  if (grid.is_cube) return SplitWordTable(shape, grid);
  return CutOverSquares(shape, /*by_column=*/0, /*by_row=*/1, grid);
}

}  // namespace megatron
