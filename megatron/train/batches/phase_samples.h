// The samples of a run whose data change on the way: those of the present data follow, from their
// first on, on as many as the run took before the change.
#ifndef MEGATRON_TRAIN_BATCHES_PHASE_SAMPLES_H_
#define MEGATRON_TRAIN_BATCHES_PHASE_SAMPLES_H_

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "megatron/data/sample.h"

namespace megatron {

class PhaseSamples : public SampleSource {
 public:
  // `samples` outlives this; its sample 0 is sample `taken_before` here.
  PhaseSamples(const SampleSource* samples, int64_t taken_before)
      : samples_(samples), taken_before_(taken_before) {}

  // Samples may have no end (data/sample_order.h).
  int64_t size() const override {
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
    return taken_before_ + std::min(samples_->size(), kMost - taken_before_);
  }

  absl::Status Get(int64_t index, Sample* sample) const override {
    if (index < taken_before_) {
      return absl::OutOfRangeError(
          absl::StrCat("sample ", index,
                       " is of the data before the last of train.phase_transition_iterations, "
                       "which took ",
                       taken_before_));
    }
    return samples_->Get(index - taken_before_, sample);
  }
  // The data before have no sources here: their samples are of source 0.
  int SourceOf(int64_t index) const override {
    return index < taken_before_ ? 0 : samples_->SourceOf(index - taken_before_);
  }

 private:
  const SampleSource* samples_;
  const int64_t taken_before_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_BATCHES_PHASE_SAMPLES_H_
