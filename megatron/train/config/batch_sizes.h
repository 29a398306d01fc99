// The batch sizes of a run, as its configuration has them.
#ifndef MEGATRON_TRAIN_CONFIG_BATCH_SIZES_H_
#define MEGATRON_TRAIN_CONFIG_BATCH_SIZES_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/optim/batch_size_schedule.h"
#include "megatron/train/config/config.pb.h"

namespace megatron {

// Returns the steps of rampup_batch_size or of step_batch_size_schedule; none if the size is
// constant. Returns InvalidArgument if one of them is not valid. Samples have `seq_length` tokens.
absl::StatusOr<std::vector<BatchSizeStep>> BatchSizeSteps(const config::TrainConfig& training,
                                                          int64_t seq_length);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_CONFIG_BATCH_SIZES_H_
