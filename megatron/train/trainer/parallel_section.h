#ifndef MEGATRON_TRAIN_TRAINER_PARALLEL_SECTION_H_
#define MEGATRON_TRAIN_TRAINER_PARALLEL_SECTION_H_

#include "absl/status/statusor.h"
#include "megatron/comm/rank_grid.h"
#include "megatron/train/config/config.pb.h"

namespace megatron {

// Returns the side of the square that the tensor-parallel ranks form, 1 where they form none. It
// fails if parallel.tensor_parallel_mode is no mode, or the ranks form no square; the message says
// what was expected.
absl::StatusOr<int> TensorSideOf(const config::ParallelConfig& config);

// Reads the sizes of the axes, which are in their ranges, and the order of ranks. It fails if that
// is no order. Where TensorSideOf fails, which validation tells, there is no square.
absl::StatusOr<ParallelSizes> ToParallelSizes(const config::ParallelConfig& config);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_PARALLEL_SECTION_H_
