// The files of a run's data: token sequences, or conversations.
#ifndef MEGATRON_TRAIN_BATCHES_DATA_FILES_H_
#define MEGATRON_TRAIN_BATCHES_DATA_FILES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/data/blend.h"
#include "megatron/data/chat/chat_template.h"
#include "megatron/data/chat/conversations.h"
#include "megatron/data/gpt/fill_in_the_middle.h"
#include "megatron/data/gpt/gpt_dataset.h"
#include "megatron/data/indexed/indexed_dataset.h"
#include "megatron/data/sample.h"
#include "megatron/data/split.h"
#include "megatron/data/tasks/labelled_examples.h"
#include "megatron/data/tokenizer/tokenizer.h"
#include "megatron/train/batches/sentence_data.h"
#include "megatron/train/batches/training_data.h"

namespace megatron {

// The tokenizer, and what else is needed to make samples from tokens.
struct DataText {
  const Tokenizer& tokenizer;
  std::shared_ptr<const FillInTheMiddle> fill_in_the_middle;
  std::optional<ChatTemplate> chat;  // set if samples are conversations
};

// Whether an evaluation reads all of the part, and not as many samples as the run needs.
bool ReadsAll(const DataOptions& options, Split split);
// The options of a dataset of GPT or of sentences, without its range.
GptDatasetOptions DatasetOptions(const DataOptions& options, const DataText& text, Split split);
SentenceDatasetOptions SentenceOptions(const DataOptions& options, Split split);

// A file of token sequences, one of conversations, or one of a task.
struct DataFile {
  std::string path, fingerprint;
  std::shared_ptr<const IndexedDataset> sequences;
  std::shared_ptr<const Conversations> conversations;
  std::shared_ptr<const LabelledExamples> examples;

  int64_t num_tokens() const {
    if (conversations != nullptr) return conversations->num_tokens();
    return examples != nullptr ? examples->num_tokens() : sequences->num_tokens();
  }
  // Returns the number of pieces that data.split shares out.
  int64_t NumPieces(const DataOptions& options) const {
    if (conversations != nullptr) return conversations->size();
    if (examples != nullptr) return examples->size();
    return options.sentences.has_value() ? sequences->num_documents() : sequences->num_sequences();
  }
};

// Datasets in files, one or several with or without weights.
class DataFiles {
 public:
  static absl::StatusOr<DataFiles> Open(const DataOptions& options, const DataText& text,
                                        const std::vector<std::string>& path);

  // Returns "2 files, 1,234,567 documents".
  std::string Description(const DataOptions& options) const;

  // Returns a text that changes when the data or their weights do.
  std::string Fingerprint() const;

  // Returns the files without weights, one by one.
  absl::StatusOr<std::vector<DataFiles>> Apart() const;
  std::vector<std::string> Prefixes() const;

  // Returns whether every file has documents in the split.
  bool AllHave(const DataOptions& options, Split split, const SplitShares& shares) const;

  // Gives the files factors of their losses in training. kInvalidArgument if there are not as many.
  absl::Status SetLossWeights(const std::vector<double>& weights);

  // Returns one dataset as it is, several as a blend.
  absl::StatusOr<std::unique_ptr<SampleSource>> PartOf(const DataOptions& options,
                                                       const DataText& text, Split split,
                                                       const SplitShares& shares) const;

 private:
  // Returns what each file of conversations or examples holds.
  std::string Contents(const DataOptions& options) const;
  // Returns the weights of the files; without any, a blend has all of the data.
  std::vector<double> Weights() const;
  absl::StatusOr<std::vector<std::unique_ptr<SampleSource>>> ConversationDatasets(
      const DataOptions& options, const DataText& text, Split split, const SplitShares& shares,
      const std::vector<std::optional<int64_t>>& num_samples) const;
  absl::StatusOr<std::vector<std::unique_ptr<SampleSource>>> TaskDatasets(
      const DataOptions& options, const DataText& text, Split split, const SplitShares& shares,
      const std::vector<std::optional<int64_t>>& num_samples) const;
  absl::StatusOr<std::vector<std::unique_ptr<SampleSource>>> Datasets(
      const GptDatasetOptions& options, const SplitShares& shares,
      const std::vector<std::optional<int64_t>>& num_samples) const;
  absl::StatusOr<std::vector<std::unique_ptr<SampleSource>>> SentenceDatasets(
      const SentenceDataOptions& options, const SentenceDatasetOptions& dataset,
      const Tokenizer& tokenizer, const SplitShares& shares,
      const std::vector<std::optional<int64_t>>& num_samples) const;

  BlendSpec spec_;
  std::optional<double> alpha_;
  std::vector<double> loss_weights_;
  std::vector<DataFile> files_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_BATCHES_DATA_FILES_H_
