// BERT's samples: two pieces of a document with some words masked, drawn exactly as Megatron draws
// them (see sentence_samples.h and word_masking.h).
//
//   MEGATRON_ASSIGN_OR_RETURN(IndexedDataset corpus, IndexedDataset::Open("books_text_sentence"));
//   auto sentences = std::make_shared<IndexedDataset>(std::move(corpus));
//   BertDatasetOptions options;
//   options.documents = SplitRange(Split::kTrain, shares, sentences->num_documents());
//   options.seq_length = 512;
//   options.num_samples = train_iters * global_batch_size;
//   const auto documents = [&](int64_t i) { return sentences->DocumentSequences(i); };
//   MEGATRON_ASSIGN_OR_RETURN(
//       auto train, BertDataset::Create(sentences, documents, WordPiecesOf(*tokenizer), options));
#ifndef MEGATRON_DATA_MASKED_BERT_DATASET_H_
#define MEGATRON_DATA_MASKED_BERT_DATASET_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "megatron/data/masked/masked_corpus.h"

namespace megatron {

// [CLS] A [SEP] B [SEP], or [CLS] A [SEP] if there is no B, and padding up to seq_length. All
// vectors hold one element for each position.
struct BertSample {
  std::vector<int32_t> tokens;   // most masked tokens are [MASK], some are random tokens
  std::vector<int32_t> types;    // 1 for B and its [SEP], else 0
  std::vector<int32_t> labels;   // the token that was masked, or -1
  std::vector<float> loss_mask;  // 1 if there is a label, else 0
  int32_t num_tokens = 0;        // tokens before the padding; Megatron's padding_mask is 1 on these
  bool is_random = false;        // the pieces were swapped: the label of the binary head
  bool truncated = false;        // tokens were dropped to reach the target length
};

struct BertDatasetOptions : MaskedDatasetOptions {
  // If true, samples have two pieces, in order or swapped, and the model predicts which. Otherwise
  // they have one piece.
  bool classification_head = true;
};

// Any number of threads may call the const methods.
class BertDataset {
 public:
  // Returns kInvalidArgument if the documents give no sample, an option is out of range, or the
  // vocabulary lacks [CLS], [SEP], [MASK] or a padding token.
  static absl::StatusOr<std::unique_ptr<BertDataset>> Create(
      std::shared_ptr<const TokenSequences> sentences, DocumentSentences document,
      WordPieces pieces, const BertDatasetOptions& options);

  int64_t size() const { return static_cast<int64_t>(corpus_.samples.size()); }

  // Replaces the contents of `sample`. Fails with kOutOfRange if `index` is not in [0, size()), and
  // with kDataLoss if the data holds a token outside the vocabulary.
  absl::Status Get(int64_t index, BertSample* sample) const;

  const std::vector<SentenceSample>& samples() const { return corpus_.samples; }

 private:
  BertDataset(MaskedCorpus corpus, const BertDatasetOptions& options)
      : corpus_(std::move(corpus)), options_(options) {}

  absl::Status AppendText(int64_t first_sentence, int64_t begin, int64_t end, int32_t type,
                          int64_t index, BertSample* sample) const;
  void Mask(int32_t target_length, NumpyRandomState* random, BertSample* sample) const;
  int32_t Replacement(int32_t token, NumpyRandomState* random) const;

  const MaskedCorpus corpus_;
  const BertDatasetOptions options_;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_MASKED_BERT_DATASET_H_
