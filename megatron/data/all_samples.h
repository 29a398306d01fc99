// All samples of one or several sources, each of them once.
#ifndef MEGATRON_DATA_ALL_SAMPLES_H_
#define MEGATRON_DATA_ALL_SAMPLES_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/round_up.h"
#include "megatron/data/sample.h"

namespace megatron {

// The samples of the sources, one source behind the other. What the last batch lacks is filled up
// with the last sample, whose predictions do not count there, so that the mean loss over all
// batches is the mean over all samples.
class AllSamples : public SampleSource {
 public:
  // There is at least one source; none of them is empty.
  AllSamples(std::vector<std::unique_ptr<SampleSource>> sources, int64_t batch)
      : sources_(std::move(sources)) {
    for (const auto& source : sources_) ends_.push_back(num_samples() + source->size());
    size_ = RoundUp(num_samples(), batch);
  }

  int64_t size() const override { return size_; }
  // The number of samples that count.
  int64_t num_samples() const { return ends_.empty() ? 0 : ends_.back(); }

  absl::Status Get(int64_t index, Sample* sample) const override {
    if (index < 0 || index >= size_) {
      return absl::OutOfRangeError(
          absl::StrCat("sample ", index, " is not one of the ", size_, " of an evaluation"));
    }
    const int64_t place = std::min(index, num_samples() - 1);
    const auto source = std::upper_bound(ends_.begin(), ends_.end(), place) - ends_.begin();
    const int64_t begin = source == 0 ? 0 : ends_[source - 1];
    const absl::Status status = sources_[source]->Get(place - begin, sample);
    sample->sequence_weight = place == index ? 1.0f : 0.0f;
    if (place != index) std::fill(sample->loss_mask.begin(), sample->loss_mask.end(), 0.0f);
    return status;
  }

 private:
  const std::vector<std::unique_ptr<SampleSource>> sources_;
  std::vector<int64_t> ends_;  // the number of samples up to the end of each source
  int64_t size_ = 0;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_ALL_SAMPLES_H_
