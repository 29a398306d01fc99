// Samples made of sentences, for the models that restore missing parts of a text: BERT and T5.
#ifndef MEGATRON_TRAIN_BATCHES_SENTENCE_DATA_H_
#define MEGATRON_TRAIN_BATCHES_SENTENCE_DATA_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "megatron/data/masked/sentence_sample_cache.h"
#include "megatron/data/masked/sentence_samples.h"
#include "megatron/data/sample.h"
#include "megatron/data/split.h"
#include "megatron/data/token_sequences.h"
#include "megatron/data/tokenizer/tokenizer.h"
#include "megatron/models/model_kind.h"

namespace megatron {

struct SentenceDataOptions {
  ModelKind model = ModelKind::kBert;  // kBert or kT5: the model that reads the samples
  double mask_prob = 0.15;
  double short_seq_prob = 0.1;
  bool binary_head = true;         // BERT: samples have two pieces, in order or swapped
  int64_t decoder_seq_length = 0;  // T5: the most tokens of a sample's decoder
};

// The part of a corpus from which samples are drawn, and their number.
struct SentenceDatasetOptions {
  int64_t seq_length = 0;  // the most tokens of a sample; for T5 of its encoder
  uint32_t seed = 1234;
  Split split = Split::kTrain;
  SequenceRange documents;
  std::optional<int64_t> num_samples;  // unset: one epoch
  SentenceSampleCache cache;
};

// Opens a dataset in which sentences `document(i)` of `sentences` are document i. Fails as
// BertDataset::Create and T5Dataset::Create do.
absl::StatusOr<std::unique_ptr<SampleSource>> OpenSentences(
    const SentenceDataOptions& options, const SentenceDatasetOptions& dataset,
    std::shared_ptr<const TokenSequences> sentences, DocumentSentences document,
    const Tokenizer& tokenizer);

// Makes samples of synthetic documents (mock_sentences.h); a vocabulary without the required
// special tokens gets some. `dataset.documents` and `dataset.cache` are ignored.
absl::StatusOr<std::unique_ptr<SampleSource>> OpenMockSentences(
    const SentenceDataOptions& options, const SentenceDatasetOptions& dataset,
    const Tokenizer& tokenizer);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_BATCHES_SENTENCE_DATA_H_
