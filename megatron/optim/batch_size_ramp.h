// The global batch size as a function of the samples consumed: constant, or growing in equal steps
// at the start of a run (Megatron's --rampup-batch-size START INCREMENT SAMPLES).
#ifndef MEGATRON_OPTIM_BATCH_SIZE_RAMP_H_
#define MEGATRON_OPTIM_BATCH_SIZE_RAMP_H_

#include <cstdint>

#include "absl/status/statusor.h"

namespace megatron {

struct BatchSizeRampOptions {
  int64_t global_batch_size = 0;
  // The samples of one micro-batch on all data-parallel ranks: micro_batch_size *
  // data_parallel_size. Every size on the ramp is a multiple of it.
  int64_t granularity = 1;
  // The first size, the increment and the number of samples over which the size grows. With 0
  // samples there is no ramp.
  int64_t start = 0, increment = 0, samples = 0;
};

class BatchSizeRamp {
 public:
  // Returns InvalidArgument that names every rule the options break.
  static absl::StatusOr<BatchSizeRamp> Create(const BatchSizeRampOptions& options);

  // The size of the iteration that starts after `consumed_samples`.
  int64_t GlobalBatchSize(int64_t consumed_samples) const;
  // The number of micro-batches of that iteration on each data-parallel rank.
  int64_t NumMicrobatches(int64_t consumed_samples) const {
    return GlobalBatchSize(consumed_samples) / options_.granularity;
  }

 private:
  explicit BatchSizeRamp(const BatchSizeRampOptions& options) : options_(options) {}

  BatchSizeRampOptions options_;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_BATCH_SIZE_RAMP_H_
