#ifndef MEGATRON_TRAIN_TRAINER_PARALLEL_SECTION_H_
#define MEGATRON_TRAIN_TRAINER_PARALLEL_SECTION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/comm/rank_grid.h"
#include "megatron/train/config/config.pb.h"

namespace megatron {

// The values of parallel.tensor_parallel_mode.
const std::vector<std::string>& TensorParallelModes();

// The grid that the tensor-parallel ranks form (comm/rank_grid.h).
struct TensorGridShape {
  int side = 1;  // 1: they form none
  int depth = 1;
  bool is_cube = false;
};

// Returns the grid of parallel.tensor_parallel_mode. It fails if that is no mode, or the ranks do
// not form the grid; the message says how many ranks it needs.
absl::StatusOr<TensorGridShape> TensorGridShapeOf(const config::ParallelConfig& config);

// Reads the sizes of the axes, which are in their ranges, and the order of ranks. It fails if that
// is no order. Where TensorGridShapeOf fails, which validation tells, there is no grid.
absl::StatusOr<ParallelSizes> ToParallelSizes(const config::ParallelConfig& config);

// Returns the ranks with the same weights on each host of hierarchical collectives; 1 where there
// are no such hosts, or other fields have errors.
int64_t CopiesOnAHost(const config::ParallelConfig& config);

// Returns the ranks that have secondary shards among them, of zero_hpz_partition_size; 1: none
// have.
int64_t SecondaryShardRanks(const config::ParallelConfig& config);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_PARALLEL_SECTION_H_
