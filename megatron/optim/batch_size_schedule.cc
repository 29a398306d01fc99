#include "megatron/optim/batch_size_schedule.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

constexpr double kMostTokens = 1e18;
constexpr int64_t kLargestSize = int64_t{1} << 30;

// Reads "2.4B". Returns a negative number for what is none.
double ReadNumber(absl::string_view text) {
  double unit = 1;
  if (!text.empty()) {
    constexpr absl::string_view kSuffixes = "KMBT";
    const size_t suffix = kSuffixes.find(absl::ascii_toupper(text.back()));
    if (suffix != absl::string_view::npos) {
      unit = std::pow(1000.0, static_cast<double>(suffix + 1));
      text.remove_suffix(1);
    }
  }
  double number;
  if (!absl::SimpleAtod(text, &number) || !std::isfinite(number)) return -1;
  return number * unit;
}

absl::StatusOr<BatchSizeStep> ReadStep(absl::string_view entry, int64_t seq_length) {
  const std::vector<absl::string_view> parts = absl::StrSplit(entry, ':');
  const double tokens = ReadNumber(parts[0]);
  const double size = parts.size() == 2 ? ReadNumber(parts[1]) : -1;
  if (!(tokens >= 0 && tokens <= kMostTokens) || !(size >= 1 && size <= kLargestSize)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", entry, "' is not a number of tokens, a colon and a batch size from 1 to ",
                     kLargestSize, ", such as 2.4B:320"));
  }
  return BatchSizeStep{static_cast<int64_t>(tokens) / seq_length, static_cast<int64_t>(size)};
}

}  // namespace

std::vector<BatchSizeStep> RampUp(int64_t start, int64_t increment, int64_t samples,
                                  int64_t global_batch_size) {
  CHECK(start > 0 && increment > 0 && samples > 0);
  std::vector<BatchSizeStep> steps = {{0, start}};
  const int64_t count = (global_batch_size - start) / increment;
  // Megatron divides in floating point. Where SAMPLES is not a multiple of the number of steps, an
  // integer division would start some of them an iteration earlier or later.
  const double length = static_cast<double>(samples) / static_cast<double>(count);
  const auto steps_after = [length](int64_t consumed) {
    return static_cast<int64_t>(static_cast<double>(consumed) / length);
  };
  for (int64_t i = 1; i <= count; ++i) {
    auto first = static_cast<int64_t>(std::ceil(length * static_cast<double>(i)));
    while (first > 0 && steps_after(first - 1) >= i) --first;
    while (steps_after(first) < i) ++first;
    steps.push_back({std::min(first, samples + 1), start + i * increment});
  }
  return steps;
}

absl::StatusOr<std::vector<BatchSizeStep>> ParseBatchSizeSteps(absl::string_view text,
                                                               int64_t seq_length) {
  CHECK_GT(seq_length, 0);
  std::vector<BatchSizeStep> steps;
  for (const absl::string_view entry :
       absl::StrSplit(text, absl::ByAnyChar(" ,\t\n"), absl::SkipEmpty())) {
    MEGATRON_ASSIGN_OR_RETURN(const BatchSizeStep step, ReadStep(entry, seq_length));
    if (steps.empty() && !absl::StartsWith(entry, "0:")) {
      return absl::InvalidArgumentError(
          absl::StrCat("the first batch size must hold from 0 tokens on, not '", entry, "'"));
    }
    if (!steps.empty() && step.samples <= steps.back().samples) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", entry, "' begins after ", step.samples, " samples of ", seq_length,
                       " tokens, which is no later than what stands in front of it"));
    }
    if (!steps.empty() && step.size <= steps.back().size) {
      return absl::InvalidArgumentError(
          absl::StrCat("batch sizes must grow, and that of '", entry, "' does not"));
    }
    steps.push_back(step);
  }
  if (steps.empty()) return absl::InvalidArgumentError("there is no batch size");
  return steps;
}

int64_t CountIterations(const std::vector<BatchSizeStep>& steps, int64_t samples) {
  CHECK(!steps.empty());
  int64_t consumed = 0, iterations = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    const int64_t size = steps[i].size;
    const int64_t whole = (samples - consumed) / size;
    if (i + 1 == steps.size()) return iterations + whole;
    const int64_t left = std::max<int64_t>(steps[i + 1].samples - consumed, 0);
    const int64_t count = (left + size - 1) / size;
    if (count > whole) return iterations + whole;
    iterations += count;
    consumed += count * size;
  }
  return iterations;
}

absl::StatusOr<BatchSizeSchedule> BatchSizeSchedule::Create(const BatchSizeOptions& options) {
  if (options.granularity <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("micro_batch_size * data_parallel_size is ", options.granularity));
  }
  std::vector<std::string> problems;
  const auto check = [&](const char* what, int64_t size) {
    if (size > 0 && (options.uneven || size % options.granularity == 0)) return;
    problems.push_back(absl::StrCat(what, " ", size, " is not a positive multiple of ",
                                    options.granularity,
                                    " = micro_batch_size * data_parallel_size"));
  };
  check("global_batch_size", options.global_batch_size);
  const std::vector<BatchSizeStep>& steps = options.steps;
  for (size_t i = 0; i < steps.size(); ++i) {
    check("the batch size", steps[i].size);
    if (i == 0 ? steps[i].samples != 0 : steps[i].samples < steps[i - 1].samples) {
      problems.push_back(absl::StrCat("the batch size ", steps[i].size, " holds from sample ",
                                      steps[i].samples, " on, which is out of order"));
    }
  }
  if (!steps.empty() && steps.back().size != options.global_batch_size) {
    problems.push_back(absl::StrCat("the steps lead to ", steps.back().size,
                                    " and not to global_batch_size ", options.global_batch_size));
  }
  if (!problems.empty()) return absl::InvalidArgumentError(absl::StrJoin(problems, "; "));
  return BatchSizeSchedule(options);
}

int64_t BatchSizeSchedule::GlobalBatchSize(int64_t consumed_samples) const {
  const auto next = std::upper_bound(
      options_.steps.begin(), options_.steps.end(), consumed_samples,
      [](int64_t consumed, const BatchSizeStep& step) { return consumed < step.samples; });
  return next == options_.steps.begin() ? options_.global_batch_size : std::prev(next)->size;
}

}  // namespace megatron
