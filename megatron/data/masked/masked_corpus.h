// What the datasets of BERT and T5 have in common: sentences, the list of samples made of them, and
// what masks their words.
#ifndef MEGATRON_DATA_MASKED_MASKED_CORPUS_H_
#define MEGATRON_DATA_MASKED_MASKED_CORPUS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/data/masked/mock_sentences.h"
#include "megatron/data/masked/sentence_sample_cache.h"
#include "megatron/data/masked/sentence_samples.h"
#include "megatron/data/masked/word_masking.h"
#include "megatron/data/split.h"
#include "megatron/data/token_sequences.h"

namespace megatron {

struct MaskedDatasetOptions {
  // The documents that this dataset may read.
  SequenceRange documents;
  int32_t seq_length = 0;
  uint32_t seed = 1234;
  // At least so many samples, from as many epochs as it takes; one epoch where it is not set.
  std::optional<int64_t> num_samples;
  double short_sequence_probability = 0.1;
  WordMaskingOptions masking;
  // Where the list of samples is kept.
  SentenceSampleCache cache;
};

// How a model's samples are made of sentences.
struct SampleForm {
  const char* dataset;    // Megatron's class, which names its lists of samples
  int32_t max_length;     // tokens of text
  int32_t min_sentences;  // that a document needs
};

struct MaskedCorpus {
  // kInvalidArgument where the documents give no sample or an option is out of its range.
  static absl::StatusOr<MaskedCorpus> Create(std::shared_ptr<const TokenSequences> sentences,
                                             DocumentSentences document, WordPieces pieces,
                                             const MaskedDatasetOptions& options,
                                             const SampleForm& form);

  std::shared_ptr<const TokenSequences> sentences;
  WordPieces pieces;
  WordMasker masker;
  std::vector<SentenceSample> samples;
};

// A dataset of mock_sentences.h; the three splits are equal thirds. `options.documents` and
// `options.cache` are ignored.
template <typename Dataset, typename Options>
absl::StatusOr<std::unique_ptr<Dataset>> CreateMockDataset(Split split, WordPieces pieces,
                                                           Options options) {
  auto sentences = std::make_shared<MockSentences>(pieces);
  options.cache = {};  // there is nothing to know the corpus by
  options.documents = SplitRange(split, {1.0 / 3, 1.0 / 3, 1.0 / 3}, sentences->num_documents());
  const auto document = [&](int64_t i) { return sentences->DocumentSequences(i); };
  return Dataset::Create(sentences, document, std::move(pieces), options);
}

}  // namespace megatron

#endif  // MEGATRON_DATA_MASKED_MASKED_CORPUS_H_
