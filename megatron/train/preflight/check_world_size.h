#ifndef MEGATRON_TRAIN_PREFLIGHT_CHECK_WORLD_SIZE_H_
#define MEGATRON_TRAIN_PREFLIGHT_CHECK_WORLD_SIZE_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "megatron/comm/launch/launch_env.h"
#include "megatron/train/config/config.pb.h"

namespace megatron {

// Returns the data_parallel_size that the other axes leave of a launcher's world, where the
// configuration writes none. Nothing for a process that runs alone, or if they don't divide it.
std::optional<int64_t> DataParallelSizeOfWorld(const LaunchEnvironment& launch,
                                               const config::ParallelConfig& parallel);

// Checks that a launcher has started as many processes as the configuration has ranks. A process
// that runs alone starts as many as there are to be, and passes.
absl::Status CheckWorldSize(const LaunchEnvironment& launch,
                            const config::ParallelConfig& parallel);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PREFLIGHT_CHECK_WORLD_SIZE_H_
