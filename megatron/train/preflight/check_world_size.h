#ifndef MEGATRON_TRAIN_PREFLIGHT_CHECK_WORLD_SIZE_H_
#define MEGATRON_TRAIN_PREFLIGHT_CHECK_WORLD_SIZE_H_

#include "absl/status/status.h"
#include "megatron/comm/launch/launch_env.h"
#include "megatron/train/config/config.pb.h"

namespace megatron {

// Checks that a launcher has started as many processes as the configuration has ranks. A process
// that runs alone starts as many as there are to be, and passes.
absl::Status CheckWorldSize(const LaunchEnvironment& launch,
                            const config::ParallelConfig& parallel);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PREFLIGHT_CHECK_WORLD_SIZE_H_
