// The common parts of the BERT and T5 datasets: sentences, the list of samples made of them, and
// the masking of their words.
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
  // The dataset has at least this many samples, from as many epochs as that takes. If it is not
  // set, the dataset is one epoch.
  std::optional<int64_t> num_samples;
  double short_sequence_probability = 0.1;
  WordMaskingOptions masking;
  // The cache of the list of samples.
  SentenceSampleCache cache;
};

// Tells how to make a model's samples of sentences.
struct SampleForm {
  const char* dataset;    // name of Megatron's dataset class, which names its lists of samples
  int32_t max_length;     // tokens of text in a sample, at most
  int32_t min_sentences;  // smallest number of sentences of a usable document
};

struct MaskedCorpus {
  // Returns kInvalidArgument if the documents give no sample or an option is out of range.
  static absl::StatusOr<MaskedCorpus> Create(std::shared_ptr<const TokenSequences> sentences,
                                             DocumentSentences document, WordPieces pieces,
                                             const MaskedDatasetOptions& options,
                                             const SampleForm& form);

  std::shared_ptr<const TokenSequences> sentences;
  WordPieces pieces;
  WordMasker masker;
  std::vector<SentenceSample> samples;
};

// Creates a dataset of the documents of mock_sentences.h, whose three splits are equal thirds.
// `options.documents` and `options.cache` are ignored.
template <typename Dataset, typename Options>
absl::StatusOr<std::unique_ptr<Dataset>> CreateMockDataset(Split split, WordPieces pieces,
                                                           Options options) {
  auto sentences = std::make_shared<MockSentences>(pieces);
  options.cache = {};  // nothing identifies the corpus in a cache
  options.documents = SplitRange(split, {1.0 / 3, 1.0 / 3, 1.0 / 3}, sentences->num_documents());
  const auto document = [&](int64_t i) { return sentences->DocumentSequences(i); };
  return Dataset::Create(sentences, document, std::move(pieces), options);
}

}  // namespace megatron

#endif  // MEGATRON_DATA_MASKED_MASKED_CORPUS_H_
