// T5's samples in the form in which models train on them: without padding.
#ifndef MEGATRON_DATA_MASKED_T5_SOURCE_H_
#define MEGATRON_DATA_MASKED_T5_SOURCE_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "megatron/data/masked/t5_dataset.h"
#include "megatron/data/sample.h"

namespace megatron {

class T5Source : public SampleSource {
 public:
  explicit T5Source(std::unique_ptr<T5Dataset> dataset) : dataset_(std::move(dataset)) {}

  int64_t size() const override { return dataset_->size(); }
  // A span begins after its sentinel and ends with the next sentinel or EOS; this end is a label of
  // the span too.
  absl::Status Get(int64_t index, Sample* sample) const override;

 private:
  std::unique_ptr<T5Dataset> dataset_;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_MASKED_T5_SOURCE_H_
