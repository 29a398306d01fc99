#include "megatron/optim/batch_size_ramp.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace megatron {
namespace {

void CheckMultiple(const char* what, int64_t value, int64_t granularity,
                   std::vector<std::string>* problems) {
  if (value > 0 && value % granularity == 0) return;
  problems->push_back(absl::StrCat(what, " ", value, " is not a positive multiple of ", granularity,
                                   " = micro_batch_size * data_parallel_size"));
}

}  // namespace

absl::StatusOr<BatchSizeRamp> BatchSizeRamp::Create(const BatchSizeRampOptions& options) {
  if (options.granularity <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("micro_batch_size * data_parallel_size is ", options.granularity));
  }
  std::vector<std::string> problems;
  CheckMultiple("global_batch_size", options.global_batch_size, options.granularity, &problems);
  if (options.samples < 0) {
    problems.push_back(absl::StrCat("a batch size ramp over ", options.samples, " samples"));
  }
  if (options.samples > 0) {
    CheckMultiple("the ramp's start", options.start, options.granularity, &problems);
    CheckMultiple("the ramp's increment", options.increment, options.granularity, &problems);
    const int64_t rise = options.global_batch_size - options.start;
    if (rise < 0 || (options.increment > 0 && rise % options.increment != 0)) {
      problems.push_back(absl::StrCat("steps of ", options.increment, " do not lead from ",
                                      options.start, " to global_batch_size ",
                                      options.global_batch_size));
    }
  }
  if (!problems.empty()) return absl::InvalidArgumentError(absl::StrJoin(problems, "; "));
  return BatchSizeRamp(options);
}

int64_t BatchSizeRamp::GlobalBatchSize(int64_t consumed_samples) const {
  const int64_t rise = options_.global_batch_size - options_.start;
  if (options_.samples == 0 || rise == 0 || consumed_samples > options_.samples) {
    return options_.global_batch_size;
  }
  // Megatron divides in floating point. Where SAMPLES is not a multiple of the number of steps, an
  // integer division would start some of them an iteration earlier or later.
  const double samples_per_step =
      static_cast<double>(options_.samples) / static_cast<double>(rise / options_.increment);
  const auto steps = static_cast<int64_t>(static_cast<double>(consumed_samples) / samples_per_step);
  return options_.start + steps * options_.increment;
}

}  // namespace megatron
