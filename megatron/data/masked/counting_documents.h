// Six documents whose tokens count up, from which tests make BERT and T5 datasets.
#ifndef MEGATRON_DATA_MASKED_COUNTING_DOCUMENTS_H_
#define MEGATRON_DATA_MASKED_COUNTING_DOCUMENTS_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "megatron/data/gpt/in_memory_sequences.h"
#include "megatron/data/masked/masked_corpus.h"

namespace megatron {

inline constexpr int32_t kCountingVocabulary = 1000;

// Returns a vocabulary in which ids that are 3 modulo 4 continue words.
inline WordPieces CountingPieces() {
  WordPieces pieces;
  pieces.special.pad = 0;
  pieces.special.cls = 1;
  pieces.special.sep = 2;
  pieces.continues_word.resize(kCountingVocabulary);
  for (size_t id = 3; id < kCountingVocabulary; id += 4) pieces.continues_word[id] = true;
  return pieces;
}

// Returns options for all six documents; tests set those that depend on the model.
template <typename Options>
Options CountingOptions() {
  Options options;
  options.documents = {0, 6};
  options.num_samples = 9;
  options.short_sequence_probability = 0.5;
  options.masking.probability = 0.3;
  return options;
}

template <typename Dataset, typename Options>
absl::StatusOr<std::unique_ptr<Dataset>> CreateCountingDataset(const WordPieces& pieces,
                                                               const Options& options,
                                                               int32_t first_token = 8) {
  const std::vector<std::vector<int32_t>> sentence_lengths = {{4, 3, 5}, {2},    {6, 2, 3, 4, 1},
                                                              {},        {3, 3}, {5, 600}};
  auto corpus = std::make_shared<InMemorySequences>();
  std::vector<int64_t> bounds = {0};
  int32_t next = 0;
  for (const std::vector<int32_t>& document : sentence_lengths) {
    for (const int32_t length : document) {
      std::vector<int32_t> sentence(length);
      for (int32_t& token : sentence) token = first_token + next++ % 800;
      corpus->Append(sentence);
    }
    bounds.push_back(corpus->num_sequences());
  }
  return Dataset::Create(
      corpus, [&](int64_t i) { return std::make_pair(bounds[i], bounds[i + 1]); }, pieces, options);
}

}  // namespace megatron

#endif  // MEGATRON_DATA_MASKED_COUNTING_DOCUMENTS_H_
