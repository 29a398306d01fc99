// The global batch size as a function of the samples consumed: constant, growing in equal steps at
// the start of a run (Megatron's --rampup-batch-size START INCREMENT SAMPLES), or any list of sizes
// (--step-batch-size-schedule).
//
//   BatchSizeOptions options;
//   options.global_batch_size = 1536;
//   options.steps = RampUp(16, 16, 5859375, options.global_batch_size);
//   MEGATRON_ASSIGN_OR_RETURN(auto sizes, BatchSizeSchedule::Create(options));
#ifndef MEGATRON_OPTIM_BATCH_SIZE_SCHEDULE_H_
#define MEGATRON_OPTIM_BATCH_SIZE_SCHEDULE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megatron {

// Iterations that begin after `samples` consumed samples or more are of this size, up to the next
// step.
struct BatchSizeStep {
  int64_t samples = 0;
  int64_t size = 0;
};

// Returns the steps of a ramp whose size grows from `start` by `increment` at a time, and is
// `global_batch_size` after `samples` samples. The arguments are positive, and whole increments
// lead from the one size to the other.
std::vector<BatchSizeStep> RampUp(int64_t start, int64_t increment, int64_t samples,
                                  int64_t global_batch_size);

// Reads "0:16 2.4B:320 12B:1536": numbers of tokens, which are turned into whole samples of
// `seq_length` tokens, and the sizes from there on. K, M, B and T are powers of a thousand, and
// commas are taken for spaces. Returns InvalidArgument for other texts, for samples that do not
// ascend from 0, and for sizes that do not grow.
absl::StatusOr<std::vector<BatchSizeStep>> ParseBatchSizeSteps(absl::string_view text,
                                                               int64_t seq_length);

// Returns the number of iterations that find all of their samples among the first `samples`, at
// least 0 of them.
int64_t CountIterations(const std::vector<BatchSizeStep>& steps, int64_t samples);

struct BatchSizeOptions {
  int64_t global_batch_size = 0;  // the last size
  // The samples of one micro-batch on all data-parallel ranks: micro_batch_size *
  // data_parallel_size. Every size is a multiple of it, unless `uneven`.
  int64_t granularity = 1;
  std::vector<BatchSizeStep> steps;  // ascending from 0 samples; empty: the size is constant
  bool uneven = false;               // some ranks may have fewer samples than others

  // Returns the number of micro-batches on each data-parallel rank; some ranks do not fill theirs
  // where the size is no multiple.
  int64_t MicroBatchesOf(int64_t size) const { return (size + granularity - 1) / granularity; }
};

class BatchSizeSchedule {
 public:
  // Returns InvalidArgument that names every rule the options break.
  static absl::StatusOr<BatchSizeSchedule> Create(const BatchSizeOptions& options);

  // The size of the iteration that starts after `consumed_samples`.
  int64_t GlobalBatchSize(int64_t consumed_samples) const;
  // The number of micro-batches of that iteration on each data-parallel rank.
  int64_t NumMicrobatches(int64_t consumed_samples) const {
    return options_.MicroBatchesOf(GlobalBatchSize(consumed_samples));
  }
  // Returns whether all ranks fill all of these micro-batches.
  bool IsEven(int64_t consumed_samples) const {
    return GlobalBatchSize(consumed_samples) % options_.granularity == 0;
  }

 private:
  explicit BatchSizeSchedule(const BatchSizeOptions& options) : options_(options) {}

  BatchSizeOptions options_;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_BATCH_SIZE_SCHEDULE_H_
