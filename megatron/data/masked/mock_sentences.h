// Synthetic documents of sentences, for BERT and T5 runs without data: 10,000 documents of 2 to 32
// sentences of 4 to 64 tokens. Only the lengths are stored.
//
// A document counts through the ids of the vocabulary that are not special, from sentence to
// sentence, so there is something to learn: masked tokens follow from their neighbours, and the
// order of sentences from their tokens. (Megatron has mock data only for GPT.)
#ifndef MEGATRON_DATA_MASKED_MOCK_SENTENCES_H_
#define MEGATRON_DATA_MASKED_MOCK_SENTENCES_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "megatron/data/masked/word_masking.h"
#include "megatron/data/token_sequences.h"

namespace megatron {

// Returns a vocabulary for runs without a tokenizer. Its last ids are [CLS], [SEP], [MASK],
// padding, BOS, EOS and then `num_sentinels` sentinels; the others, at least one, are words.
WordPieces MockWordPieces(int32_t vocab_size, int32_t num_sentinels);

class MockSentences : public TokenSequences {
 public:
  // The vocabulary must have an id that is not special.
  explicit MockSentences(const WordPieces& pieces);

  int64_t num_documents() const { return static_cast<int64_t>(first_sentences_.size()) - 1; }

  // Sentences [first, second) make up document `i`.
  std::pair<int64_t, int64_t> DocumentSequences(int64_t i) const {
    return {first_sentences_[i], first_sentences_[i + 1]};
  }

  int64_t num_sequences() const override { return static_cast<int64_t>(begins_.size()) - 1; }
  int32_t SequenceLength(int64_t i) const override {
    return static_cast<int32_t>(begins_[i + 1] - begins_[i]);
  }
  absl::Status ReadTokens(int64_t i, int32_t begin, absl::Span<int32_t> out) const override;

 private:
  std::vector<int32_t> words_;
  std::vector<int64_t> first_sentences_ = {0};  // first sentence of each document, and the end
  std::vector<int64_t> begins_ = {0};           // first token of each sentence, and the end
};

}  // namespace megatron

#endif  // MEGATRON_DATA_MASKED_MOCK_SENTENCES_H_
