#ifndef MEGATRON_TRAIN_TRAINER_PARALLEL_SECTION_H_
#define MEGATRON_TRAIN_TRAINER_PARALLEL_SECTION_H_

#include "absl/status/statusor.h"
#include "megatron/comm/rank_grid.h"
#include "megatron/train/config/config.pb.h"

namespace megatron {

// Reads the sizes of the axes, which are in their ranges, and the order of ranks. It fails if that
// is no order.
absl::StatusOr<ParallelSizes> ToParallelSizes(const config::ParallelConfig& config);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_PARALLEL_SECTION_H_
