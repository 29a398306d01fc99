// BERT's samples: two pieces of a document, some words of them masked, exactly as Megatron draws
// them (see sentence_samples.h and word_masking.h).
//
//   MEGATRON_ASSIGN_OR_RETURN(IndexedDataset corpus, IndexedDataset::Open("books_text_sentence"));
//   BertDatasetOptions options;
//   options.documents = RangeOf(Split::kTrain, shares, corpus.num_documents());
//   options.seq_length = 512;
//   options.num_samples = train_iters * global_batch_size;
//   const auto documents = [&](int64_t i) { return corpus.DocumentSequences(i); };
//   MEGATRON_ASSIGN_OR_RETURN(auto train, BertDataset::Create(sentences, documents,
//   WordPiecesOf(*tokenizer), options));
#ifndef MEGATRON_DATA_MASKED_BERT_DATASET_H_
#define MEGATRON_DATA_MASKED_BERT_DATASET_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "megatron/data/masked/sentence_sample_cache.h"
#include "megatron/data/masked/sentence_samples.h"
#include "megatron/data/masked/word_masking.h"
#include "megatron/data/split.h"
#include "megatron/data/token_sequences.h"

namespace megatron {

// [CLS] A [SEP] B [SEP], or [CLS] A [SEP] where there is no B, and padding up to seq_length. All
// vectors hold one element for each position.
struct BertSample {
  std::vector<int32_t> tokens;   // of the masked ones, most are [MASK] and some random tokens
  std::vector<int32_t> types;    // 1 for B and its [SEP], else 0
  std::vector<int32_t> labels;   // the token that was masked, or -1
  std::vector<float> loss_mask;  // 1 where there is a label, else 0
  int32_t num_tokens = 0;        // before the padding: Megatron's padding_mask is 1 on so many
  bool is_random = false;        // the pieces changed places: the label of the binary head
  bool truncated = false;        // tokens were dropped to reach the target length
};

struct BertDatasetOptions {
  // The documents that this dataset may read.
  SequenceRange documents;
  int32_t seq_length = 0;
  uint32_t seed = 1234;
  // At least so many samples, from as many epochs as it takes; one epoch where it is not set.
  absl::optional<int64_t> num_samples;
  double short_sequence_probability = 0.1;
  WordMaskingOptions masking;
  // Where the list of samples is kept.
  SentenceSampleCache cache;
  // Samples have two pieces, in order or not, for the model to tell. Otherwise they have one.
  bool classification_head = true;
};

// Any number of threads may call the const methods.
class BertDataset {
 public:
  // kInvalidArgument where the documents give no sample, an option is out of its range, or the
  // vocabulary lacks [CLS], [SEP], [MASK] or a padding token.
  static absl::StatusOr<std::unique_ptr<BertDataset>> Create(
      std::shared_ptr<const TokenSequences> sentences, DocumentSentences document,
      WordPieces pieces, const BertDatasetOptions& options);

  int64_t size() const { return static_cast<int64_t>(samples_.size()); }

  // Replaces what is in `sample`. Fails with kOutOfRange where `index` is not in [0, size()), and
  // with kDataLoss where the data holds a token outside the vocabulary.
  absl::Status Get(int64_t index, BertSample* sample) const;

  const std::vector<SentenceSample>& samples() const { return samples_; }

 private:
  BertDataset(std::shared_ptr<const TokenSequences> sentences, WordPieces pieces,
              const BertDatasetOptions& options, WordMasker masker,
              std::vector<SentenceSample> samples);

  absl::Status AppendText(int64_t first_sentence, int64_t begin, int64_t end, int32_t type,
                          int64_t index, BertSample* sample) const;
  void Mask(int32_t target_length, NumpyRandomState* random, BertSample* sample) const;
  int32_t Replacement(int32_t token, NumpyRandomState* random) const;

  const std::shared_ptr<const TokenSequences> sentences_;
  const WordPieces pieces_;
  const BertDatasetOptions options_;
  const WordMasker masker_;
  const std::vector<SentenceSample> samples_;
};

// Samples of mock_sentences.h; the three splits are equal thirds. `options.documents` and
// `options.cache` are ignored.
absl::StatusOr<std::unique_ptr<BertDataset>> CreateMockBertDataset(Split split, WordPieces pieces,
                                                                   BertDatasetOptions options);

}  // namespace megatron

#endif  // MEGATRON_DATA_MASKED_BERT_DATASET_H_
