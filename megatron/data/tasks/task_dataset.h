// Samples of a labelled task, each epoch in another order, which depends on the seed alone.
//
// BERT's are [CLS] first text [SEP] second text [SEP], with token types 0 and 1, cut at the end to
// seq_length tokens, of which the last is [SEP] always. Of a task with choices they stand one
// behind the other, each a document of its own.
//
// T5's are the first text and end of text for the encoder; the decoder begins with BOS, or padding
// where the vocabulary has no BOS, and writes the second text and end of text. All that it writes
// is one span, so that the model's exact spans are its exact answers.
#ifndef MEGATRON_DATA_TASKS_TASK_DATASET_H_
#define MEGATRON_DATA_TASKS_TASK_DATASET_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "megatron/data/sample.h"
#include "megatron/data/sample_order.h"
#include "megatron/data/split.h"
#include "megatron/data/tasks/labelled_examples.h"
#include "megatron/data/tokenizer/tokenizer.h"

namespace megatron {

struct TaskDatasetOptions {
  SequenceRange range;  // the examples that are read
  // The most tokens of a sequence; for T5 of the encoder, and those of the decoder.
  int64_t seq_length = 0, decoder_seq_length = 0;
  uint32_t seed = 1234;
  std::optional<int64_t> num_samples;  // the least number of samples; unset: one epoch
};

class TaskDataset : public SampleSource {
 public:
  // kInvalidArgument if the range is empty, or if the vocabulary lacks a token that samples need.
  static absl::StatusOr<std::unique_ptr<TaskDataset>> Create(
      std::shared_ptr<const LabelledExamples> examples, const SpecialTokens& special,
      const TaskDatasetOptions& options);

  int64_t size() const override { return size_; }
  absl::Status Get(int64_t index, Sample* sample) const override;

 private:
  TaskDataset(std::shared_ptr<const LabelledExamples> examples, const SpecialTokens& special,
              const TaskDatasetOptions& options);

  void AppendSequence(LabelledExamples::Tokens first, LabelledExamples::Tokens second,
                      Sample* sample) const;
  void SetPair(LabelledExamples::Tokens first, LabelledExamples::Tokens second,
               Sample* sample) const;

  const std::shared_ptr<const LabelledExamples> examples_;
  const SpecialTokens special_;
  const TaskDatasetOptions options_;
  const GlobalOrder order_;
  const int64_t size_;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_TASKS_TASK_DATASET_H_
