// The part of a set of samples that one of several runs reads, which share the set.
#ifndef MEGATRON_DATA_DEALT_SAMPLES_H_
#define MEGATRON_DATA_DEALT_SAMPLES_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "megatron/data/sample.h"

namespace megatron {

// Runs take turns: of each `runs` times `batch` consecutive samples, run `r` reads those from
// r * batch on, `batch` of them.
class DealtSamples : public SampleSource {
 public:
  DealtSamples(std::unique_ptr<SampleSource> all, int64_t batch, int64_t run, int64_t runs)
      : all_(std::move(all)), batch_(batch), run_(run), runs_(runs) {}

  int64_t size() const override {
    const int64_t turn = batch_ * runs_, rest = all_->size() % turn;
    return all_->size() / turn * batch_ + std::clamp<int64_t>(rest - run_ * batch_, 0, batch_);
  }
  absl::Status Get(int64_t index, Sample* sample) const override {
    if (index < 0 || index >= size()) {
      return absl::OutOfRangeError(
          absl::StrCat("sample ", index, " is not one of the ", size(), " of this run"));
    }
    return all_->Get(PlaceOf(index), sample);
  }
  int SourceOf(int64_t index) const override { return all_->SourceOf(PlaceOf(index)); }

 private:
  int64_t PlaceOf(int64_t index) const {
    return (index / batch_ * runs_ + run_) * batch_ + index % batch_;
  }

  const std::unique_ptr<SampleSource> all_;
  const int64_t batch_, run_, runs_;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_DEALT_SAMPLES_H_
