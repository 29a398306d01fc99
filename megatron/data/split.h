// Divides a corpus into training, validation and test, and computes how many samples a run draws
// from each.
#ifndef MEGATRON_DATA_SPLIT_H_
#define MEGATRON_DATA_SPLIT_H_

#include <array>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megatron {

enum class Split { kTrain = 0, kValid = 1, kTest = 2 };

// Returns "train", "valid" or "test".
absl::string_view SplitName(Split split);

// The share of the corpus for each Split; the shares sum to 1.
using SplitShares = std::array<double, 3>;

// Parses up to three numbers of any scale, such as "969,30,1" or "0.9/0.1". Missing numbers are 0.
absl::StatusOr<SplitShares> ParseSplit(absl::string_view text);

// Sequences [begin, end).
struct SequenceRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
};

// Returns a split's sequences. The splits follow each other; their bounds are rounded as in
// Megatron (halves to even).
SequenceRange SplitRange(Split split, const SplitShares& shares, int64_t num_sequences);

struct RunLength {
  int64_t train_iters = 0;
  int64_t global_batch_size = 0;
  int64_t eval_interval = 0;  // 0: no evaluation
  int64_t eval_iters = 0;
  // Runs that share the training samples, each of which takes its part of them
  // (data/dealt_samples.h).
  int64_t training_runs = 1;
  int64_t train_samples = 0;  // 0: those of train_iters iterations
};

// Returns the number of samples that a run needs of a split. There are so many validation samples
// that no two evaluations of the run use the same one.
int64_t SamplesNeeded(Split split, const RunLength& run);

}  // namespace megatron

#endif  // MEGATRON_DATA_SPLIT_H_
