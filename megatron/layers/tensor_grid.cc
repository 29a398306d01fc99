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

}  // namespace

// The ranks of a column are neighbours (comm/rank_grid.h), as replicas must be.
Sharding SplitOverColumns(const Shape& shape, int by_column, const TensorGrid& grid) {
  Sharding sharding = Replicated(shape, {Axis::kTensor});
  Cut(by_column, grid.side, grid.column, &sharding);
  sharding.sharded = {Axis::kTensor};
  sharding.tensor_replicas = grid.side;
  return sharding;
}

Sharding SplitOverGrid(const Shape& shape, int by_column, int by_row, const TensorGrid& grid) {
  Sharding sharding = Replicated(shape);
  Cut(by_column, grid.side, grid.column, &sharding);
  Cut(by_row, grid.side, grid.row, &sharding);
  sharding.sharded = {Axis::kTensor};
  return sharding;
}

}  // namespace megatron
