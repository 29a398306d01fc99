#include "tools/from_megatron/batch_sizes.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace megatron {

std::optional<BatchSchedule> ParseBatchSchedule(absl::string_view text) {
  BatchSchedule schedule;
  for (const absl::string_view entry : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(entry, absl::MaxSplits(':', 1));
    double from;
    int64_t size;
    std::string number = parts.first;
    double unit = 1;
    for (const auto& [suffix, value] :
         {std::pair<const char*, double>{"K", 1e3}, {"M", 1e6}, {"B", 1e9}, {"T", 1e12}}) {
      if (!absl::EndsWith(number, suffix)) continue;
      number.pop_back();
      unit = value;
      break;
    }
    if (!absl::SimpleAtod(number, &from) || !absl::SimpleAtoi(parts.second, &size) ||
        !(from >= 0 && from * unit < 1e18) || size < 1 || size > (1 << 30)) {
      return std::nullopt;
    }
    schedule.tokens.push_back(from * unit);
    schedule.sizes.push_back(size);
  }
  return schedule;
}

bool IsRampup(const BatchSchedule& schedule) {
  const std::vector<double>& tokens = schedule.tokens;
  const std::vector<int64_t>& sizes = schedule.sizes;
  if (sizes.size() < 2 || tokens[0] != 0 || sizes[1] <= sizes[0]) return false;
  for (size_t i = 1; i < sizes.size(); ++i) {
    if (sizes[i] - sizes[i - 1] != sizes[1] - sizes[0]) return false;
    if (std::fabs(tokens[i] - tokens[1] * static_cast<double>(i)) > 1e-9 * tokens[i]) return false;
  }
  return true;
}

int64_t IterationsWithRampup(const config::RampupBatchSize& rampup, int64_t samples,
                             int64_t batch) {
  const int64_t start = rampup.start(), increment = rampup.increment();
  const bool valid = start >= 1 && increment >= 1 && start < batch && rampup.samples() >= 1 &&
                     rampup.samples() <= kMostSamples;
  if (!valid) return samples / batch;  // the validation refuses the ramp-up
  const int64_t steps = (batch - start) / increment;
  if (steps < 1 || steps > 1000000) return samples / batch;
  const double length = static_cast<double>(rampup.samples()) / static_cast<double>(steps);
  int64_t consumed = 0, iterations = 0;
  for (int64_t step = 0; step <= steps; ++step) {
    // This size holds up to `end` samples; the last one begins behind rampup.samples().
    const int64_t size = start + step * increment;
    const int64_t end = std::min(
        samples, step == steps
                     ? rampup.samples() + 1
                     : static_cast<int64_t>(std::ceil(length * static_cast<double>(step + 1))));
    if (consumed >= end) continue;
    const int64_t count = (end - consumed + size - 1) / size;
    iterations += count;
    consumed += count * size;
  }
  return iterations + std::max<int64_t>(samples - consumed, 0) / batch;
}

}  // namespace megatron
