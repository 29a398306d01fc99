// GPT samples drawn from token sequences exactly as Megatron draws them (gpt_index.h describes the
// order).
//
//   MEGATRON_ASSIGN_OR_RETURN(IndexedDataset corpus, IndexedDataset::Open("books_text_document"));
//   MEGATRON_ASSIGN_OR_RETURN(SplitShares shares, ParseSplit("969,30,1"));
//   GptDatasetOptions options;
//   options.range = SplitRange(Split::kTrain, shares, corpus.num_sequences());
//   options.seq_length = 1024;
//   options.num_samples = train_iters * global_batch_size;
//   options.vocab_size = tokenizer.vocab_size();
//   auto sequences = std::make_shared<IndexedDataset>(std::move(corpus));
//   MEGATRON_ASSIGN_OR_RETURN(auto train, GptDataset::Create(std::move(sequences), options));
//   Sample sample;
//   MEGATRON_RETURN_IF_ERROR(train->Get(0, &sample));
#ifndef MEGATRON_DATA_GPT_GPT_DATASET_H_
#define MEGATRON_DATA_GPT_GPT_DATASET_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "megatron/data/gpt/fill_in_the_middle.h"
#include "megatron/data/gpt/gpt_index.h"
#include "megatron/data/gpt/gpt_index_cache.h"
#include "megatron/data/sample.h"
#include "megatron/data/split.h"
#include "megatron/data/token_sequences.h"

namespace megatron {

struct GptDatasetOptions {
  // The sequences that this dataset may read.
  SequenceRange range;
  int64_t seq_length = 0;
  uint32_t seed = 1234;
  // The cache of the order of samples (megatron/data/gpt/gpt_index_cache.h); null: memory only.
  const IndexCache* cache = nullptr;
  GptIndexIdentity identity;
  // The dataset has at least this many samples, from as many epochs as that takes. If it is not
  // set, the dataset is one epoch.
  std::optional<int64_t> num_samples;

  // Tokens must lie in [0, vocab_size).
  int32_t vocab_size = 0;
  // The token that ends documents; only the three options below use it.
  int32_t eod = -1;
  // Positions restart from 0 after an EOD.
  bool reset_position_ids = false;
  // Attention does not reach back across an EOD: a document starts after it.
  bool reset_attention_mask = false;
  // The prediction of the token after an EOD does not count in the loss.
  bool eod_mask_loss = false;
  // Rewrites every sample, seeded by its number; null: none. The prediction of padding does not
  // count in the loss.
  std::shared_ptr<const FillInTheMiddle> fill_in_the_middle;
};

class GptDataset : public SampleSource {
 public:
  // Returns kInvalidArgument if the range has too few tokens for a sample, or an option is out of
  // range.
  static absl::StatusOr<std::unique_ptr<GptDataset>> Create(
      std::shared_ptr<const TokenSequences> sequences, const GptDatasetOptions& options);

  int64_t size() const override { return index_.num_samples; }
  absl::Status Get(int64_t index, Sample* sample) const override;

  const GptIndex& index() const { return index_; }

 private:
  GptDataset(std::shared_ptr<const TokenSequences> sequences, const GptDatasetOptions& options,
             GptIndex index);

  absl::Status ReadStream(int64_t index, StreamPosition from, absl::Span<int32_t> out) const;
  absl::Status CheckTokens(int64_t index, const Sample& sample) const;
  void FillMasks(Sample* sample) const;

  const std::shared_ptr<const TokenSequences> sequences_;
  const GptDatasetOptions options_;
  const GptIndex index_;
};

// Returns the dataset of Megatron's --mock-data, whose three splits are equal thirds.
// `options.range` is ignored.
absl::StatusOr<std::unique_ptr<GptDataset>> CreateMockGptDataset(Split split,
                                                                 GptDatasetOptions options);

}  // namespace megatron

#endif  // MEGATRON_DATA_GPT_GPT_DATASET_H_
