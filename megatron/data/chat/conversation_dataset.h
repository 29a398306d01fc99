// Samples of conversations for supervised fine-tuning: as many whole conversations as fit, one
// behind the other. Each is a document of its own, which attends to itself alone and whose
// positions count from 0. The predictions of answers count in the loss, and no others. A last
// document without loss fills the sample up.
//
// Conversations are shuffled and put into samples once, each into the first of the last samples
// that has room for it. Each epoch takes these samples in another order. Both depend on the seed
// alone.
#ifndef MEGATRON_DATA_CHAT_CONVERSATION_DATASET_H_
#define MEGATRON_DATA_CHAT_CONVERSATION_DATASET_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "megatron/data/chat/conversations.h"
#include "megatron/data/sample.h"
#include "megatron/data/sample_order.h"
#include "megatron/data/split.h"

namespace megatron {

struct ConversationDatasetOptions {
  SequenceRange range;     // the conversations that are read
  int64_t seq_length = 0;  // at least that of ConversationOptions
  uint32_t seed = 1234;
  std::optional<int64_t> num_samples;  // the least number of samples; unset: one epoch
  int32_t fill_token = 0;              // the token behind the last conversation of a sample
};

class ConversationDataset : public SampleSource {
 public:
  // kInvalidArgument if the range is empty.
  static absl::StatusOr<std::unique_ptr<ConversationDataset>> Create(
      std::shared_ptr<const Conversations> conversations,
      const ConversationDatasetOptions& options);

  int64_t size() const override { return size_; }
  // The number of different samples.
  int64_t samples_of_epoch() const { return static_cast<int64_t>(members_.size()); }
  absl::Status Get(int64_t index, Sample* sample) const override;

 private:
  ConversationDataset(std::shared_ptr<const Conversations> conversations,
                      const ConversationDatasetOptions& options,
                      std::vector<std::vector<int64_t>> members);

  const std::shared_ptr<const Conversations> conversations_;
  const ConversationDatasetOptions options_;
  const std::vector<std::vector<int64_t>> members_;  // the conversations of each sample
  const GlobalOrder order_;
  const int64_t size_;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_CHAT_CONVERSATION_DATASET_H_
