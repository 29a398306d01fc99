// How a corpus is divided between training, validation and test, and how much of each a run draws.
#ifndef MEGATRON_DATA_SPLIT_H_
#define MEGATRON_DATA_SPLIT_H_

#include <array>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megatron {

enum class Split { kTrain = 0, kValid = 1, kTest = 2 };

// "train", "valid" or "test".
absl::string_view SplitName(Split split);

// For each Split its share of the corpus; together 1.
using SplitShares = std::array<double, 3>;

// Up to three numbers, of any scale: "969,30,1", "0.9/0.1". Those left out are 0.
absl::StatusOr<SplitShares> ParseSplit(absl::string_view text);

// Sequences [begin, end).
struct SequenceRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
};

// A split's sequences: the splits follow each other, their bounds rounded as in Megatron (to even
// where halfway).
SequenceRange RangeOf(Split split, const SplitShares& shares, int64_t num_sequences);

struct RunLength {
  int64_t train_iters = 0;
  int64_t global_batch_size = 0;
  int64_t eval_interval = 0;  // 0: no evaluation
  int64_t eval_iters = 0;
};

// The samples that a run asks of each split: enough validation samples that none comes twice in all
// its evaluations.
int64_t SamplesNeeded(Split split, const RunLength& run);

}  // namespace megatron

#endif  // MEGATRON_DATA_SPLIT_H_
