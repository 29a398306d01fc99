#include "megatron/data/split.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "glog/logging.h"

namespace megatron {

absl::string_view SplitName(Split split) {
  switch (split) {
    case Split::kTrain:
      return "train";
    case Split::kValid:
      return "valid";
    case Split::kTest:
      return "test";
  }
  LOG(FATAL) << static_cast<int>(split);
}

absl::StatusOr<SplitShares> ParseSplit(absl::string_view text) {
  const auto error = [text](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(
        "split '", text, "': ", what, "; expected up to three numbers, as in 969,30,1"));
  };
  SplitShares shares = {};
  size_t count = 0;
  for (absl::string_view part : absl::StrSplit(text, absl::ByAnyChar(",/ "), absl::SkipEmpty())) {
    double share;
    if (!absl::SimpleAtod(part, &share)) return error(absl::StrCat("'", part, "' is not a number"));
    if (!std::isfinite(share) || share < 0) return error(absl::StrCat(part, " is not a share"));
    if (count == shares.size()) return error("more than three");
    shares[count++] = share;
  }
  const double sum = shares[0] + shares[1] + shares[2];
  if (!(sum > 0) || !std::isfinite(sum)) return error("nothing is left to divide");
  for (double& share : shares) share /= sum;
  return shares;
}

SequenceRange SplitRange(Split split, const SplitShares& shares, int64_t num_sequences) {
  const int index = static_cast<int>(split);
  double begin = 0;
  for (int i = 0; i < index; ++i) begin += shares[i];
  const double end = begin + shares[index];
  const double count = static_cast<double>(num_sequences);
  const auto round = [](double x) { return static_cast<int64_t>(std::nearbyint(x)); };
  // Rounding may make shares sum to a little more than 1; the bounds stay inside the corpus.
  const SequenceRange range = {std::min(round(begin * count), num_sequences),
                               std::min(round(end * count), num_sequences)};
  CHECK_LE(range.begin, range.end);
  return range;
}

int64_t SamplesNeeded(Split split, const RunLength& run) {
  if (split == Split::kTrain) {
    const int64_t samples =
        run.train_samples > 0 ? run.train_samples : run.train_iters * run.global_batch_size;
    return samples * run.training_runs;
  }
  if (run.eval_interval == 0) return 0;
  const int64_t evaluations = split == Split::kValid ? run.train_iters / run.eval_interval + 1 : 1;
  return evaluations * run.eval_iters * run.global_batch_size;
}

}  // namespace megatron
