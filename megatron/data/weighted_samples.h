// Samples whose losses are multiplied by a number: one of several sources that count differently.
#ifndef MEGATRON_DATA_WEIGHTED_SAMPLES_H_
#define MEGATRON_DATA_WEIGHTED_SAMPLES_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "megatron/data/sample.h"

namespace megatron {

class WeightedSamples : public SampleSource {
 public:
  WeightedSamples(std::unique_ptr<SampleSource> source, float weight)
      : source_(std::move(source)), weight_(weight) {}

  int64_t size() const override { return source_->size(); }
  absl::Status Get(int64_t index, Sample* sample) const override {
    const absl::Status status = source_->Get(index, sample);
    for (float& weight : sample->loss_mask) weight *= weight_;
    return status;
  }
  int SourceOf(int64_t index) const override { return source_->SourceOf(index); }

 private:
  const std::unique_ptr<SampleSource> source_;
  const float weight_;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_WEIGHTED_SAMPLES_H_
