#include "megatron/train/config/batch_sizes.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace megatron {
namespace {

// A ramp of more steps than this is a slip of the pen, and would take memory for each.
constexpr int64_t kMostSteps = 1000000;

}  // namespace

absl::StatusOr<std::vector<BatchSizeStep>> BatchSizeSteps(const config::TrainConfig& training,
                                                          int64_t seq_length) {
  if (training.has_step_batch_size_schedule()) {
    if (seq_length < 1) return absl::InvalidArgumentError("model.seq_length is not positive");
    return ParseBatchSizeSteps(training.step_batch_size_schedule(), seq_length);
  }
  if (!training.has_rampup_batch_size()) return std::vector<BatchSizeStep>();
  const config::RampupBatchSize& ramp = training.rampup_batch_size();
  const int64_t rise = training.global_batch_size() - ramp.start();
  if (ramp.start() < 1 || ramp.increment() < 1 || ramp.samples() < 1 || rise <= 0 ||
      rise % ramp.increment() != 0 || rise / ramp.increment() > kMostSteps) {
    return absl::InvalidArgumentError(
        absl::StrCat("at most ", kMostSteps, " increments of ", ramp.increment(),
                     " do not lead from ", ramp.start(), " to ", training.global_batch_size()));
  }
  return RampUp(ramp.start(), ramp.increment(), ramp.samples(), training.global_batch_size());
}

}  // namespace megatron
