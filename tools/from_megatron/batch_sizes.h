// Batch sizes that grow during a run.
#ifndef MEGATRON_TOOLS_FROM_MEGATRON_BATCH_SIZES_H_
#define MEGATRON_TOOLS_FROM_MEGATRON_BATCH_SIZES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "megatron/train/config/config.pb.h"

namespace megatron {

// The largest number of samples that is read: samples are computed with as doubles, too.
inline constexpr int64_t kMostSamples = int64_t{1} << 53;

// A batch has sizes[i] samples from tokens[i] on.
struct BatchSchedule {
  std::vector<double> tokens;
  std::vector<int64_t> sizes;
};

// Reads "0:16 2.4B:320 4.8B:624"; nothing if it is not of that form.
std::optional<BatchSchedule> ParseBatchSchedule(absl::string_view text);

// Returns whether the sizes grow from the start on, by equal steps after equally many tokens.
bool IsRampup(const BatchSchedule& schedule);

// Counts the iterations of a run of so many samples, as Megatron does. `batch` is the last size.
int64_t IterationsWithRampup(const config::RampupBatchSize& rampup, int64_t samples, int64_t batch);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_FROM_MEGATRON_BATCH_SIZES_H_
