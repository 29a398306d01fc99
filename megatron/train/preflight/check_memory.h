#ifndef MEGATRON_TRAIN_PREFLIGHT_CHECK_MEMORY_H_
#define MEGATRON_TRAIN_PREFLIGHT_CHECK_MEMORY_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "megatron/train/trainer/run_options.h"
#include "megatron/train/trainer/run_plan.h"

namespace megatron {

// Returns the bytes that the system could give this process without swapping; nothing where it does
// not say.
std::optional<int64_t> AvailableHostBytes();

// The host memory that the run takes of this machine, of which it runs `ranks` ranks.
int64_t HostBytes(const RunOptions& options, const RunPlan& plan, int ranks);

// Checks that this machine's memory, or that of its GPUs, is enough for `ranks` ranks of the run.
absl::Status CheckMemory(const RunOptions& options, const RunPlan& plan, int ranks);

// The comparison alone: fails where more is planned than available, unless nobody knows how much
// is.
absl::Status CheckFits(int64_t planned, std::optional<int64_t> available, bool on_gpus);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PREFLIGHT_CHECK_MEMORY_H_
