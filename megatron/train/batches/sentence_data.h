// Samples made of sentences, for the models that restore what is missing of a text: BERT and T5.
#ifndef MEGATRON_TRAIN_BATCHES_SENTENCE_DATA_H_
#define MEGATRON_TRAIN_BATCHES_SENTENCE_DATA_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "megatron/data/masked/sentence_sample_cache.h"
#include "megatron/data/masked/sentence_samples.h"
#include "megatron/data/sample.h"
#include "megatron/data/split.h"
#include "megatron/data/token_sequences.h"
#include "megatron/data/tokenizer/tokenizer.h"
#include "megatron/models/model_kind.h"

namespace megatron {

struct SentenceDataOptions {
  ModelKind model = ModelKind::kBert;  // kBert or kT5: whose samples are made
  double mask_prob = 0.15;
  double short_seq_prob = 0.1;
  bool binary_head = true;         // BERT: samples have two pieces, in order or not
  int64_t decoder_seq_length = 0;  // T5: the most tokens of a sample's decoder
};

// The part of a corpus that is drawn from, and how much is drawn.
struct SentencePart {
  int64_t seq_length = 0;  // the most tokens of a sample; for T5 of its encoder
  uint32_t seed = 1234;
  Split split = Split::kTrain;
  SequenceRange documents;
  absl::optional<int64_t> num_samples;  // unset: one epoch
  SentenceSampleCache cache;
};

// Opens a corpus: sentences `document(i)` of `sentences` are document i. Fails as
// BertDataset::Create and T5Dataset::Create do.
absl::StatusOr<std::unique_ptr<SampleSource>> OpenSentences(
    const SentenceDataOptions& options, const SentencePart& part,
    std::shared_ptr<const TokenSequences> sentences, DocumentSentences document,
    const Tokenizer& tokenizer);

// Opens made-up documents (mock_sentences.h); a vocabulary without the special tokens that they
// need gets some. `part.documents` and `part.cache` are ignored.
absl::StatusOr<std::unique_ptr<SampleSource>> OpenMockSentences(const SentenceDataOptions& options,
                                                                const SentencePart& part,
                                                                const Tokenizer& tokenizer);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_BATCHES_SENTENCE_DATA_H_
