// BERT's samples in the form in which models train on them: without padding.
#ifndef MEGATRON_DATA_MASKED_BERT_SOURCE_H_
#define MEGATRON_DATA_MASKED_BERT_SOURCE_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "megatron/data/masked/bert_dataset.h"
#include "megatron/data/sample.h"

namespace megatron {

class BertSource : public SampleSource {
 public:
  explicit BertSource(std::unique_ptr<BertDataset> dataset) : dataset_(std::move(dataset)) {}

  int64_t size() const override { return dataset_->size(); }
  // The class is 1 if the pieces were swapped.
  absl::Status Get(int64_t index, Sample* sample) const override;

 private:
  std::unique_ptr<BertDataset> dataset_;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_MASKED_BERT_SOURCE_H_
